"""Read captions, transcripts and metadata from the sidecar files of downloaders, editors and data sets.

For a video ``clip.mp4`` these are ``clip.txt`` (every line is a caption), ``clip.json`` (``caption``, ``captions``,
``text`` and ``description`` are captions, other plain fields are metadata), yt-dlp's ``clip.info.json`` and
``clip.description`` (``title`` and ``description`` are captions), and ``clip.srt`` or else ``clip.vtt`` (the
transcript), also with a language code, as in ``clip.en.vtt``. For videos named by a table, only subtitles are read.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain
from pathlib import PurePosixPath
from typing import Any, BinaryIO

from cinestrata_schemas.tasks import VideoSpec
from cinestrata_schemas.videos import Cue
from media.sources.media_source import is_source_uri
from service.core import request_limits
from service.core.errors import InvalidInput
from service.tasks.manifests.json_documents import read_document
from service.tasks.manifests.manifest_lines import PeekedText, read_lines
from service.tasks.manifests.plain_fields import plain_fields, shorten_caption
from service.tasks.manifests.subtitle_files import read_subtitles

SUBTITLE_SUFFIXES = (".srt", ".vtt")
SIDECAR_SUFFIXES = (".txt", ".json", ".info.json", ".description", *SUBTITLE_SUFFIXES)

# Downloaders name the subtitles of clip.mp4 clip.en.vtt, clip.pt-BR.srt or clip.en-orig.vtt.
_LANGUAGE_SUBTITLES = re.compile(
    r"(?P<stem>.*[^/])\.(?P<code>[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*)\.(?P<kind>srt|vtt)", re.DOTALL
)

OpenSidecar = Callable[[str], BinaryIO | None]

_JSON_CAPTIONS = {  # fields that are captions; WebDataset shards have clip.json
    ".json": ("caption", "captions", "text", "description"),
    ".info.json": ("title", "description"),
}
_MAX_INFO_BYTES = 8 * 1024**2  # parsed JSON takes up to 20 times as much memory


def read_sidecars(uri: str, open_sidecar: OpenSidecar, encoding: str = "utf-8") -> VideoSpec:
    """Add the captions, transcript and metadata from a video's sidecar files.

    Lines in a ``.txt`` file are kept as they are. Other captions are cut to their maximum length.

    Args:
        open_sidecar: Opens the file at a path; None if there is none.

    Raises:
        InvalidInput: A sidecar file is invalid; the error names the file, and the line if it is text.
    """
    stem = sidecar_stem(uri)
    captions: dict[str, None] = {}
    metadata: dict[str, Any] = {}
    for line in _read(f"{stem}.txt", open_sidecar, encoding, read_lines):
        if text := line.strip():
            captions[text] = None
    for suffix, keys in _JSON_CAPTIONS.items():
        for info in _read(f"{stem}{suffix}", open_sidecar, encoding, _read_info):
            values = (info.get(key) for key in keys)
            texts = chain.from_iterable(value if isinstance(value, list) else [value] for value in values)
            captions |= dict.fromkeys(shorten_caption(text) for text in texts if text)
            metadata |= plain_fields(info, frozenset(keys))
    for line in _read(f"{stem}.description", open_sidecar, encoding, _read_description):
        captions[line] = None
    transcript = _read_transcript(stem, open_sidecar, encoding)
    captions.pop("", None)
    if len(captions) > request_limits.MAX_CAPTIONS:
        raise InvalidInput.at(
            f"{stem}.txt",
            f"The sidecar files have {len(captions)} captions for one video.",
            f"Keep at most {request_limits.MAX_CAPTIONS}.",
        )
    return VideoSpec(uri=uri, captions=list(captions), transcript=transcript, metadata=metadata or None)


def add_subtitles(row: VideoSpec, path: str, open_sidecar: OpenSidecar, encoding: str = "utf-8") -> VideoSpec:
    """Add a transcript from subtitles to a table's video, unless the table gives one.

    Args:
        path: Path of the file. A remote source's URI has no sidecar files.
        open_sidecar: Opens the file at a path; None if there is none.

    Raises:
        InvalidInput: The subtitles are invalid.
    """
    if row.transcript or is_source_uri(path):
        return row
    transcript = _read_transcript(sidecar_stem(path), open_sidecar, encoding)
    return row.model_copy(update={"transcript": transcript}) if transcript else row


def sidecar_stem(path: str) -> str:
    """Strip the extension from a video's path, to which those of its sidecar files are added."""
    pure = PurePosixPath(path)
    return str(pure).removesuffix(pure.suffix)


def subtitle_aliases(paths: Iterable[str]) -> dict[str, str]:
    """Map paths without a language code to subtitle files with one: ``clip.vtt`` → ``clip.en.vtt``.

    English comes first, then the order of the codes.
    """
    found = (_LANGUAGE_SUBTITLES.fullmatch(path) for path in paths)
    ordered = sorted(
        (match for match in found if match),
        key=lambda match: (match["code"][:2].lower() != "en", match["code"]),
    )
    aliases: dict[str, str] = {}
    for match in ordered:
        aliases.setdefault(f"{match['stem']}.{match['kind']}", match[0])
    return aliases


def is_sidecar(path: str, stems: Collection[str]) -> bool:
    """Check whether a path is that of a sidecar file.

    Args:
        stems: Paths of the videos without extension.
    """
    return any(path.endswith(suffix) and path.removesuffix(suffix) in stems for suffix in SIDECAR_SUFFIXES)


def add_caption_from_name(video: VideoSpec) -> VideoSpec:
    """Use the file name as caption if a video has none and the name contains a word."""
    text = " ".join(re.sub(r"[\W_]+", " ", PurePosixPath(video.uri).stem).split())
    if video.captions or not re.search(r"[^\W\d_]{2}", text):
        return video
    return video.model_copy(update={"captions": [text[: request_limits.MAX_CAPTION_CHARS]]})


def _read_transcript(stem: str, open_sidecar: OpenSidecar, encoding: str) -> list[Cue]:
    subtitles = (
        _read(f"{stem}{suffix}", open_sidecar, encoding, read_subtitles) for suffix in SUBTITLE_SUFFIXES
    )
    return next(filter(None, map(list, subtitles)), [])


def _read(
    name: str,
    open_sidecar: OpenSidecar,
    encoding: str,
    read: Callable[[BinaryIO, str, str], Iterator[Any]],
) -> Iterator[Any]:
    stream = open_sidecar(name)
    if stream is not None:
        with stream:
            yield from read(stream, name, encoding)


def _read_description(stream: BinaryIO, name: str, encoding: str) -> Iterator[str]:
    yield shorten_caption("".join(read_lines(stream, name, encoding)))


def _read_info(stream: BinaryIO, name: str, encoding: str) -> Iterator[dict[str, Any]]:
    raw = PeekedText(stream, name).read(_MAX_INFO_BYTES + 1)
    if len(raw) > _MAX_INFO_BYTES:
        raise InvalidInput.at(
            name, f"The file is larger than {_MAX_INFO_BYTES} bytes.", "Remove its comments."
        )
    info = read_document(io.BytesIO(raw), name, "utf-8")
    if not isinstance(info, dict):
        raise InvalidInput.at(name, "The file is not a JSON object.", "Correct or remove it.")
    yield info
