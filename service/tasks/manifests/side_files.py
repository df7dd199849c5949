"""Tell the videos of a folder from side files and from files that are no part of it, and read the side files.

A side file's name begins with that of its video, with or without the ending. A file that fits several videos belongs to
the longest name: ``clip.2.srt`` is for ``clip.2.mp4`` rather than ``clip.mp4``. Endings may have any case. For a video
``clip.mp4``, side files are ``clip.txt`` (every line is a caption), ``clip.json`` (``caption``, ``captions``, ``text``
and ``description`` are captions, other plain fields are metadata), yt-dlp's ``clip.info.json`` and ``clip.description``
(``title`` and ``description`` are captions), ``clip.mp4.json`` (as ``clip.json``, or the metadata of Google Takeout),
and the transcript: the first of the subtitles, ``clip.tsv`` and ``clip.json`` of Whisper. A ``clip.txt`` with the words
of a transcript is none of the captions. For videos named by a table, only the transcript is read.

Subtitles may have a language and kinds, as in ``clip.pt_BR.sdh.srt``. Google Takeout has
``clip.mp4.supplemental-metadata.json``, also shortened, and ``clip.mp4.supplemental-metadata(1).json`` for
``clip(1).mp4``.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from pathlib import PurePosixPath
from typing import Any, BinaryIO

from cinestrata_schemas.tasks import VideoSpec
from cinestrata_schemas.uris import is_source_uri
from cinestrata_schemas.videos import Cue
from media import MediaError
from media.video_limits import VIDEO_SUFFIXES
from service.core import request_limits
from service.core.errors import FieldError, InvalidInput
from service.tasks.ingestion_checks import content_errors, raise_first
from service.tasks.manifests import text_files
from service.tasks.manifests.subtitle_files import (
    build_cues,
    find_segments,
    read_segments,
    read_speech_table,
    read_subtitles,
)

SYSTEM, HIDDEN, PARTIAL, REPEATED = "system", "hidden", "partly downloaded", "repeated or circular"

# In lower case. A rule would also match "@home" or "#1 goals". Names with a dot at the start are hidden anyway.
_SYSTEM_NAMES = frozenset(
    [
        *("@eadir", "@recently-snapshot", "@recycle", "#recycle", "#snapshot", "$recycle.bin"),
        *("__macosx", "lost+found", "system volume information"),
    ]
)
# yt-dlp's streams until they are merged, such as clip.f137.mp4 and clip.temp.mp4, and what programs append to names.
_PARTIAL_NAME = re.compile(
    r".+\.(temp|f\d{2,}(-\w+)*|f(hls|dash|http)[\w-]*)\.[^.]+"
    r"|.+\.(?i:part|part-frag\d+|partial|crdownload|opdownload|download|filepart|aria2|ytdl|!qb|!ut)",
    re.DOTALL,
)


def is_video_name(path: str) -> bool:
    """Check whether a path has a video file extension."""
    return PurePosixPath(path).suffix.lower() in VIDEO_SUFFIXES


def find_omission(path: str) -> tuple[str, str] | None:
    """Find the file or outermost folder (with a slash) that leaves a path out of its folder, and why; or None."""
    parts = path.split("/")
    for depth, part in enumerate(parts, 1):
        is_system = part.casefold() in _SYSTEM_NAMES
        if is_system or (part.startswith(".") and part.strip(".")):
            omitted = "/".join(parts[:depth]) + ("/" if depth < len(parts) else "")
            return omitted, SYSTEM if is_system else HIDDEN
    return (path, PARTIAL) if _PARTIAL_NAME.fullmatch(parts[-1]) else None


def find_videos(paths: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """Find the videos among a folder's files, and what is left out although it looks like one, with the reasons."""
    videos: list[str] = []
    omitted: dict[str, str] = {}
    for path in paths:
        omission = find_omission(path)
        if omission is None and is_video_name(path):
            videos.append(path)
        elif omission is not None and (omission[1] == PARTIAL or is_video_name(path)):
            omitted.setdefault(*omission)
    return videos, omitted


NO_VIDEOS_HINT = "Add a manifest, or videos with an extension such as .mp4, .mov, .mkv, .webm or .avi."


SUBTITLES = ".srt"  # read under this name, whatever their format
SIDECAR_SUFFIXES = (".txt", ".json", ".info.json", ".description", ".tsv", SUBTITLES)
SUBTITLE_SUFFIXES = (SUBTITLES, ".vtt", ".ass", ".ssa", ".ttml", ".sub")
_MAX_PARTS = 8  # after the name of a video
_KINDS = frozenset(("a", "cc", "default", "forced", "hi", "sdh"))
_LANGUAGE = re.compile(r"[a-z]{2,3}([-_][\w-]*)?|[^\W\d_]{4,}")  # a code, or a name
_NUMBER = re.compile(r"[-+]?\d[\d.,:]*")  # of a measurement, or a time
_TAKEOUT = ".supplemental-metadata"
_COUNTED = re.compile(r"(.+?)(\.[^./]+?)(\.s[a-z-]*)?(\(\d+\))\.json", re.DOTALL)


def normalize_path(path: str) -> str:
    """Normalize a path: composed characters (NFC), forward slashes, no leading ``./`` or ``/``.

    Some systems list names with decomposed characters, while tables contain composed ones.
    """
    parts = unicodedata.normalize("NFC", path).replace("\\", "/").split("/")
    return "/".join(part for part in parts if part not in ("", "."))


def sidecar_stem(path: str) -> str:
    """Strip the extension from a video's path, to which those of its side files are added."""
    pure = PurePosixPath(path)
    return str(pure).removesuffix(pure.suffix)


def side_file_names(uri: str) -> list[str]:
    """List the names under which a video's side files are read."""
    return [*(f"{sidecar_stem(uri)}{suffix}" for suffix in SIDECAR_SUFFIXES), f"{uri}.json"]


class SideFileNames:
    """The side files among all files of a folder, but not those that are left out of it."""

    def __init__(self, paths: Iterable[str]) -> None:
        included = {path for path in paths if find_omission(path) is None}
        pictures = {f"{path[:-4]}.sub" for path in included if path.endswith(".idx")}  # of DVDs
        self._paths = included - pictures
        self._videos = set(filter(is_video_name, included))
        self._stems = {path: sidecar_stem(path) for path in self._videos}
        self._stems |= {stem: stem for stem in self._stems.values()}
        self._by_name: dict[str, list[str]] = defaultdict(list)
        # JSON files that belong to a video are no caption tables, whatever they contain.
        self.side_files: set[str] = set()
        self.unused: list[str] = []  # subtitle files that belong to no video
        for *_, path, name in sorted(self._rank(path) for path in self._paths - self._videos):
            if name:
                self._by_name[name].append(path)
                self.side_files.add(path)
            elif path.lower().endswith(SUBTITLE_SUFFIXES):
                self.unused.append(path)
            elif path.lower().endswith(".json") and self._owner(path):
                self.side_files.add(path)

    def find(self, name: str) -> Sequence[str]:
        """Find the files to read for one of the :func:`side_file_names`, best first."""
        return self._by_name.get(name) or ([name] if name in self._paths else [])

    def _owner(self, path: str) -> str:
        """Find the name of a video that a path begins with; empty if there is none."""
        name = path
        for _ in range(_MAX_PARTS):
            name = name.rpartition(".")[0]
            if name in self._stems:
                return name
        return ""

    def _rank(self, path: str) -> tuple[Any, ...]:
        """Return a path's rank among files for the same name, the path, and that name; empty if it is not read."""
        owner = self._owner(path)
        stem, rest = self._stems.get(owner, ""), path[len(owner) :].lower()
        order, suffix = next(
            ((n, each) for n, each in enumerate(SUBTITLE_SUFFIXES) if rest.endswith(each)), (0, "")
        )
        tags = [tag for tag in re.split(r"[.\s()\[\]]+", rest.removesuffix(suffix)) if tag]
        languages = [tag for tag in tags if tag not in _KINDS]
        name = ""
        counted = _COUNTED.fullmatch(path) if rest.endswith(").json") else None
        if counted and (video := f"{counted[1]}{counted[4]}{counted[2]}") in self._videos:
            name = f"{video}.json"
        elif owner in self._videos and rest.endswith(".json") and _TAKEOUT.startswith(rest[:-5]):
            name = f"{owner}.json"
        elif owner and suffix and len(languages) < 2 and all(map(_LANGUAGE.fullmatch, languages)):
            name = f"{stem}{SUBTITLES}"
        elif owner and rest in SIDECAR_SUFFIXES:
            name = f"{stem}{rest}"
        is_foreign = bool(tags) and not any(tag.startswith("en") for tag in languages)
        kinds = len(tags) - len(languages)
        return "forced" in tags, is_foreign, kinds, order, tags, path != name, path, name


_JSON_CAPTIONS = {  # fields that are captions; WebDataset shards have clip.json
    ".json": ("caption", "captions", "text", "description"),
    ".info.json": ("title", "description"),
}
UNREADABLE = (InvalidInput, MediaError, OSError)  # errors of a file that cannot be used

_MAX_BYTES = 8 * 1024**2  # per file; parsed, it takes some 20 times as much memory


@dataclass(frozen=True)
class SideFiles:
    """Reads the side files of videos."""

    find: Callable[[str], Sequence[str]]  # finds the files that are read under a name, best first
    open: Callable[[str], BinaryIO]
    encoding: str | None = None  # encoding of texts that are not UTF-8; None: detected
    is_strict: bool = True  # whether the error of a file that cannot be read is raised
    notes: dict[str, str] = field(default_factory=dict)  # detected encodings, by path
    # errors of the files that cannot be read, by path
    left_out: dict[str, FieldError] = field(default_factory=dict)

    def read(self, name: str) -> Iterator[tuple[str, str]]:
        """Read the files with a name: their paths and texts."""
        for path in self.find(name):
            if path not in self.left_out:
                with self.check(path):
                    yield path, self._text(path)

    @contextmanager
    def check(self, path: str) -> Iterator[None]:
        """Leave a file out if it raises an error here."""
        try:
            yield
        except UNREADABLE as error:
            if self.is_strict:
                raise
            self.left_out[path] = explain_error(path, error)

    def _text(self, path: str) -> str:
        with self.open(path) as stream:
            raw = stream.read(_MAX_BYTES + 1)
        if path.lower().endswith(".txt") and text_files.is_binary(raw):
            self.notes[path] = "is not used: it is not text"
            return ""
        if len(raw) > _MAX_BYTES:
            message = f"The file is larger than {_MAX_BYTES} bytes."
            raise InvalidInput.at(path, message, "Shorten or remove it.")
        text, detected = text_files.decode_text(raw, path, self.encoding)
        if detected:
            self.notes[path] = f"is not UTF-8, and was read as {detected}; --encoding names another encoding"
        return text


def explain_error(path: str, error: Exception) -> FieldError:
    """Explain why a file cannot be used: one of the errors ``UNREADABLE``."""
    if isinstance(error, InvalidInput):
        return error.errors[0]
    if isinstance(error, OSError):
        return FieldError(path, f"The file cannot be read ({error.strerror}).", "Let the service read it.")
    return FieldError(path, f"{error}.")


def read_sidecars(uri: str, files: SideFiles) -> VideoSpec:
    """Add the captions, transcript and metadata from a video's sidecar files; raise InvalidInput.

    Lines in a ``.txt`` file are kept as they are. Other captions are cut to their maximum length.
    """
    stem = sidecar_stem(uri)
    captions: dict[str, None] = {}
    metadata: dict[str, Any] = {}
    documents = [*_read_documents(uri, files)]
    transcripts = chain(_read_subtitles(uri, files), (cues for *_, cues in documents))
    transcript = next(filter(None, transcripts), [])
    for path, text in files.read(f"{stem}.txt"):
        said = (" ".join(cue.text for cue in cues) for cues in chain([transcript], transcripts))
        if not any(_words(text) == _words(words) for words in said):
            lines = [*filter(None, map(str.strip, re.split(r"[\r\n]", text)))]
            if len(lines) > max(
                request_limits.MAX_CAPTIONS, 2 * len({_NUMBER.sub("", line) for line in lines})
            ):
                files.notes[path] = "is not used: most of its lines differ only in their numbers"
                continue
            with files.check(path):
                if not files.is_strict:
                    raise_first(content_errors(path, VideoSpec(uri=uri, captions=lines)))
                _add_captions(captions, lines, path)
    for path, suffix, info, _ in documents:
        keys = _JSON_CAPTIONS[suffix]
        if "photoTakenTime" in info:
            info, keys = _takeout_fields(info), ()
        elif find_segments(info) is not None:
            info["text"] = None  # all that is said
        values = (info.get(key) for key in keys)
        texts = chain.from_iterable(value if isinstance(value, list) else [value] for value in values)
        with files.check(path):
            _add_captions(captions, (text_files.shorten_caption(text) for text in texts if text), path)
            metadata |= text_files.plain_fields(info, frozenset(keys))
    for path, text in files.read(f"{stem}.description"):
        with files.check(path):
            _add_captions(captions, [text_files.shorten_caption(text)], path)
    return VideoSpec(uri=uri, captions=list(captions), transcript=transcript, metadata=metadata or None)


def add_subtitles(row: VideoSpec, path: str, files: SideFiles) -> VideoSpec:
    """Add a transcript from a local file's side files, unless its table gives one; raise InvalidInput."""
    if row.transcript or is_source_uri(path):
        return row
    spoken = (cues for *_, cues in _read_documents(path, files))
    transcript = next(filter(None, chain(_read_subtitles(path, files), spoken)), [])
    return row.model_copy(update={"transcript": transcript}) if transcript else row


def add_caption_from_name(video: VideoSpec) -> VideoSpec:
    """Use the file name as caption if a video has none and the name contains a word."""
    text = " ".join(re.sub(r"[\W_]+", " ", PurePosixPath(video.uri).stem).split())
    if video.captions or not re.search(r"[^\W\d_]{2}", text):
        return video
    return video.model_copy(update={"captions": [text[: request_limits.MAX_CAPTION_CHARS]]})


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


def _add_captions(captions: dict[str, None], texts: Iterable[str], path: str) -> None:
    """Add a file's captions to a video's; none of them if one does not fit."""
    new = dict.fromkeys(filter(None, texts))
    if (count := len(captions | new)) > request_limits.MAX_CAPTIONS:
        message = f"The sidecar files have {count} captions for one video."
        raise InvalidInput.at(path, message, f"Keep at most {request_limits.MAX_CAPTIONS}.")
    captions |= new


def _read_documents(uri: str, files: SideFiles) -> Iterator[tuple[str, str, dict[str, Any], list[Cue]]]:
    """Read a video's JSON files: the path, the suffix whose captions it has, the object, and the speech in it."""
    names = {f"{sidecar_stem(uri)}{suffix}": suffix for suffix in _JSON_CAPTIONS} | {f"{uri}.json": ".json"}
    for name, suffix in names.items():
        for path, text in files.read(name):
            with files.check(path):
                info = text_files.read_document(text.encode("utf-8", "replace"), path)
                if not isinstance(info, dict):
                    raise InvalidInput.at(path, "The file is not a JSON object.", "Correct or remove it.")
                yield path, suffix, info, list(build_cues(read_segments(find_segments(info) or []), path))


def _read_subtitles(uri: str, files: SideFiles) -> Iterator[list[Cue]]:
    """Read a video's transcripts from subtitles and tables of speech, best first."""
    stem = sidecar_stem(uri)
    for path, text in files.read(f"{stem}{SUBTITLES}"):
        with files.check(path):
            yield list(read_subtitles(text, path))
    for path, text in files.read(f"{stem}.tsv"):
        with files.check(path):
            yield list(build_cues(read_speech_table(text), path))


def _takeout_fields(info: dict[str, Any]) -> dict[str, Any]:
    """Read the fields of Google Takeout's metadata that filters and searches can use."""
    fields: dict[str, Any] = {}
    if isinstance(info.get("description"), str):
        fields["description"] = " ".join(info["description"].split())[: text_files.MAX_METADATA_CHARS]
    with suppress(KeyError, TypeError, ValueError, OverflowError, OSError):
        taken = int(info["photoTakenTime"]["timestamp"])
        fields["photoTakenTime"] = datetime.fromtimestamp(taken, UTC).isoformat()
    with suppress(KeyError, TypeError):
        fields["people"] = [person["name"] for person in info["people"]]
    location = info.get("geoData")
    if isinstance(location, dict) and location.get("latitude"):
        fields |= {key: location.get(key) for key in ("latitude", "longitude")}
    return fields
