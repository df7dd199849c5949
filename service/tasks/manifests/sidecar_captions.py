"""Read captions, transcripts and metadata from the sidecar files of downloaders, editors and data sets.

For a video ``clip.mp4`` these are ``clip.txt`` (every line is a caption), ``clip.json`` (``caption``, ``captions``,
``text`` and ``description`` are captions, other plain fields are metadata), yt-dlp's ``clip.info.json`` and
``clip.description`` (``title`` and ``description`` are captions), ``clip.mp4.json`` (as ``clip.json``, or the metadata
of Google Takeout), and the transcript: the first of the subtitles, ``clip.tsv`` and ``clip.json`` of Whisper. A
``clip.txt`` with the words of a transcript is none of the captions. For videos named by a table, only the transcript is
read. :mod:`service.tasks.manifests.side_file_names` finds files with other names.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from pathlib import PurePosixPath
from typing import Any, BinaryIO

from cinestrata_schemas.tasks import VideoSpec
from cinestrata_schemas.videos import Cue
from media.sources.media_source import is_source_uri
from service.core import request_limits
from service.core.errors import InvalidInput
from service.tasks.manifests.json_documents import read_document
from service.tasks.manifests.manifest_lines import decode_text
from service.tasks.manifests.plain_fields import MAX_METADATA_CHARS, plain_fields, shorten_caption
from service.tasks.manifests.side_file_names import SUBTITLES, sidecar_stem
from service.tasks.manifests.speech_files import find_segments, read_segments, read_speech_table
from service.tasks.manifests.subtitle_files import build_cues, read_subtitles

_JSON_CAPTIONS = {  # fields that are captions; WebDataset shards have clip.json
    ".json": ("caption", "captions", "text", "description"),
    ".info.json": ("title", "description"),
}
_MAX_BYTES = 8 * 1024**2  # per file; parsed, it takes some 20 times as much memory


@dataclass(frozen=True)
class SideFiles:
    """Reads the side files of videos.

    Attributes:
        find: Finds the files that are read under a name, best first.
        open: Opens one of them.
        encoding: Encoding of texts that are not UTF-8; None: detected.
        frame_rate: Finds the frames per second of the video at a path; None if it cannot be read.
        notes: Detected encodings, by path.
    """

    find: Callable[[str], Sequence[str]]
    open: Callable[[str], BinaryIO]
    encoding: str | None = None
    frame_rate: Callable[[str], float | None] = lambda uri: None
    notes: dict[str, str] = field(default_factory=dict)

    def read(self, name: str) -> Iterator[tuple[str, str]]:
        """Read the files with a name: their paths and texts."""
        for path in self.find(name):
            with self.open(path) as stream:
                raw = stream.read(_MAX_BYTES + 1)
            if len(raw) > _MAX_BYTES:
                message = f"The file is larger than {_MAX_BYTES} bytes."
                raise InvalidInput.at(path, message, "Shorten or remove it.")
            text, detected = decode_text(raw, path, self.encoding)
            if detected:
                note = f"is not UTF-8, and was read as {detected}; --encoding names another encoding"
                self.notes[path] = note
            yield path, text

    def read_json(self, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Read the files with a name that are JSON objects."""
        for path, text in self.read(name):
            info = read_document(io.BytesIO(text.encode("utf-8", "replace")), path, "utf-8")
            if not isinstance(info, dict):
                raise InvalidInput.at(path, "The file is not a JSON object.", "Correct or remove it.")
            yield path, info


def read_sidecars(uri: str, files: SideFiles) -> VideoSpec:
    """Add the captions, transcript and metadata from a video's sidecar files.

    Lines in a ``.txt`` file are kept as they are. Other captions are cut to their maximum length.

    Raises:
        InvalidInput: A sidecar file is invalid; the error names the file.
    """
    stem = sidecar_stem(uri)
    captions: dict[str, None] = {}
    metadata: dict[str, Any] = {}
    transcripts = _read_transcripts(uri, files)
    transcript = next(filter(None, transcripts), [])
    for _, text in files.read(f"{stem}.txt"):
        said = (" ".join(cue.text for cue in cues) for cues in chain([transcript], transcripts))
        if not any(_words(text) == _words(words) for words in said):
            captions |= dict.fromkeys(map(str.strip, re.split(r"[\r\n]", text)))
    for name, suffix in _json_names(uri).items():
        for _, info in files.read_json(name):
            keys = _JSON_CAPTIONS[suffix]
            if "photoTakenTime" in info:
                info, keys = _takeout_fields(info), ()
            elif find_segments(info) is not None:
                info["text"] = None  # all that is said
            values = (info.get(key) for key in keys)
            texts = chain.from_iterable(value if isinstance(value, list) else [value] for value in values)
            captions |= dict.fromkeys(shorten_caption(each) for each in texts if each)
            metadata |= plain_fields(info, frozenset(keys))
    captions |= {shorten_caption(text): None for _, text in files.read(f"{stem}.description")}
    captions.pop("", None)
    if len(captions) > request_limits.MAX_CAPTIONS:
        raise InvalidInput.at(
            f"{stem}.txt",
            f"The sidecar files have {len(captions)} captions for one video.",
            f"Keep at most {request_limits.MAX_CAPTIONS}.",
        )
    return VideoSpec(uri=uri, captions=list(captions), transcript=transcript, metadata=metadata or None)


def add_subtitles(row: VideoSpec, path: str, files: SideFiles) -> VideoSpec:
    """Add a transcript from side files to a table's video, unless the table gives one.

    Args:
        path: Path of the file. A remote source's URI has no sidecar files.

    Raises:
        InvalidInput: The transcript is invalid.
    """
    if row.transcript or is_source_uri(path):
        return row
    transcript = next(filter(None, _read_transcripts(path, files)), [])
    return row.model_copy(update={"transcript": transcript}) if transcript else row


def is_hidden(path: str) -> bool:
    """Check whether a path is a hidden file, such as systems add to folders and archives."""
    return any(part.startswith(".") or part == "__MACOSX" for part in path.split("/"))


def add_caption_from_name(video: VideoSpec) -> VideoSpec:
    """Use the file name as caption if a video has none and the name contains a word."""
    text = " ".join(re.sub(r"[\W_]+", " ", PurePosixPath(video.uri).stem).split())
    if video.captions or not re.search(r"[^\W\d_]{2}", text):
        return video
    return video.model_copy(update={"captions": [text[: request_limits.MAX_CAPTION_CHARS]]})


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


def _json_names(uri: str) -> dict[str, str]:
    """Name a video's JSON files, each with the suffix whose captions it has."""
    return {**{f"{sidecar_stem(uri)}{suffix}": suffix for suffix in _JSON_CAPTIONS}, f"{uri}.json": ".json"}


def _read_transcripts(uri: str, files: SideFiles) -> Iterator[list[Cue]]:
    """Read a video's transcripts, best first."""
    stem = sidecar_stem(uri)
    for path, text in files.read(f"{stem}{SUBTITLES}"):
        yield list(read_subtitles(text, path, lambda: files.frame_rate(uri)))
    for path, text in files.read(f"{stem}.tsv"):
        yield list(build_cues(read_speech_table(text), path))
    with suppress(InvalidInput):  # read_sidecars reports it; a table's video does not need these files
        for name in _json_names(uri):
            for path, info in files.read_json(name):
                yield list(build_cues(read_segments(find_segments(info) or []), path))


def _takeout_fields(info: dict[str, Any]) -> dict[str, Any]:
    """Read the fields of Google Takeout's metadata that filters and searches can use."""
    fields: dict[str, Any] = {}
    if isinstance(info.get("description"), str):
        fields["description"] = " ".join(info["description"].split())[:MAX_METADATA_CHARS]
    with suppress(KeyError, TypeError, ValueError, OverflowError, OSError):
        taken = int(info["photoTakenTime"]["timestamp"])
        fields["photoTakenTime"] = datetime.fromtimestamp(taken, UTC).isoformat()
    with suppress(KeyError, TypeError):
        fields["people"] = [person["name"] for person in info["people"]]
    place = info.get("geoData")
    if isinstance(place, dict) and place.get("latitude"):
        fields |= {key: place.get(key) for key in ("latitude", "longitude")}
    return fields
