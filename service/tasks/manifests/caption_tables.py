"""Read caption tables: which files of a folder are tables, their formats, and the videos that their rows name.

The content selects the format, not the file name: JSON or JSON lines in the formats of
:mod:`service.tasks.manifests.caption_formats`, or a delimited table with the columns described in
:mod:`service.tasks.manifests.video_tables`. If a video has several rows, their captions are merged.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import PurePath, PurePosixPath
from typing import Any, BinaryIO

from pydantic import ValidationError

from cinestrata_schemas.tasks import VideoSpec
from cinestrata_schemas.uris import is_source_uri
from cinestrata_schemas.videos import Cue
from service.core import request_limits
from service.core.errors import InvalidInput
from service.tasks.ingestion_checks import storage_problem
from service.tasks.manifests import text_files
from service.tasks.manifests.caption_formats import Rows, read_document_rows, recognize
from service.tasks.manifests.side_files import (
    SYSTEM,
    UNREADABLE,
    SideFileNames,
    SideFiles,
    explain_error,
    find_omission,
    is_video_name,
    normalize_path,
)
from service.tasks.manifests.subtitle_files import SPEECH_COLUMNS
from service.tasks.manifests.video_tables import (
    TYPED_SUFFIXES,
    UnknownTable,
    find_delimiter,
    has_files,
    is_lsmdc,
    read_delimited_table,
    split_header,
)

TABLE_SUFFIXES = (".csv", ".tsv", ".json", ".jsonl", ".ndjson")
CAPTION_TABLE_NAMES = ("captions.csv", "captions.tsv")  # next to videos; they need not name all of them
MANIFEST_NAMES = ("manifest.jsonl", "manifest.csv", "manifest.tsv", *CAPTION_TABLE_NAMES)
TYPED_MANIFEST_NAMES = tuple(f"manifest{suffix}" for suffix in TYPED_SUFFIXES)
FULL_MANIFEST_NAMES = (*MANIFEST_NAMES[:3], *TYPED_MANIFEST_NAMES)  # these list all videos of their folder

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_UPLOAD_PREFIX = re.compile(r"(?P<folder>(.*/)?)[0-9a-f]{8}-(?P<name>[^/]+)", re.DOTALL)
_MAX_CUES = 1_000_000  # over all videos
_MAX_VALUES = 64  # of a data set's column for one video
_MAX_METADATA_BYTES = 64 * 1024**2  # over all videos, as in the body of a JSON request
_REASONS = ("not found", "", "several files have this name")  # by the number of files that match a row
_MAX_MISSING = 100_000
_MAX_NAMED = 3
_SEARCHED_CHARS = 1 << 20  # of an unknown file, for names of videos
_BETWEEN_VALUES = re.compile(r"[\"',;|{}\[\]:\t\r\n]+")
_MAX_FOLDERS = 64  # compared per row that names a file by the end of its path; each folder takes one lookup


def find_tables(
    paths: Iterable[str], suffixes: tuple[str, ...] = (*TABLE_SUFFIXES, *TYPED_SUFFIXES)
) -> list[str]:
    """Find a folder's caption tables by name, without what is no part of it, JSON sidecar files and lock files."""
    paths = list(paths)
    tables = [path for path in paths if path.lower().endswith(suffixes) and find_omission(path) is None]
    has_json = any(path.lower().endswith(".json") for path in tables)
    side_files = SideFileNames(paths).side_files if has_json else ()
    return [
        path
        for path in tables
        if not (path.lower().endswith(".json") and path in side_files)
        and not PurePosixPath(path).name.startswith("~$")
    ]


def require_text_table(name: str, field: str) -> None:
    """Refuse typed tables, whose parsers use unbounded memory; raise InvalidInput."""
    if PurePath(name).suffix.lower() in TYPED_SUFFIXES:
        reason = "the memory for a Parquet file or spreadsheet is not bounded by its size"
        raise InvalidInput.at(
            field, f"Cinestrata doesn't read {name!r}: {reason}.", "Convert it to CSV or JSONL."
        )


@dataclass
class CaptionTable:
    """A manifest or caption table."""

    path: str
    format: str
    rows: Rows  # location and unvalidated fields of each video, as in POST /tasks
    is_partial: bool = False  # whether the table may list videos that are missing, as data sets do
    delimiter: str | None = None
    is_description: bool = False  # whether the file only describes a data set and has no videos
    videos: int = 0  # number of files that it names, once its rows have been read


def read_rows(stream: BinaryIO, name: str, encoding: str = "utf-8") -> CaptionTable:
    """Recognize a manifest's format and read its rows; raise InvalidInput."""
    require_text_table(name, name)
    text_files.check_encoding(encoding)
    text = text_files.read_text(stream, name)
    line = text_files.peek_line(text, name)
    if line.lstrip()[:1] not in (b"{", b"["):
        return _read_table(text, line, name, encoding)
    first = _parse_object(line.decode(encoding, "replace")) if line.lstrip()[:1] == b"{" else None
    caption_format = None if first is None else recognize(first, name)
    if caption_format is None or caption_format.layout != "objects":
        document = text_files.read_document(text, name, encoding)
        caption_format = recognize(document, name)
        rows = read_document_rows(caption_format, document, name)
        first = document[0] if isinstance(document, list) else document
    else:
        numbered = enumerate(text_files.read_lines(text, name, encoding), 1)
        lines = (
            (f"{name}:{n}", text_files.parse_json(line, name, n)) for n, line in numbered if line.strip()
        )
        rows = caption_format.read(lines, name) if caption_format.read else iter(())
    is_partial = caption_format.is_partial or (isinstance(first, dict) and not has_files(first))
    return CaptionTable(
        name, caption_format.name, rows, is_partial, is_description=caption_format.read is None
    )


def _read_table(text: bytes, line: bytes, name: str, encoding: str) -> CaptionTable:
    header = next(iter(line.decode("utf-8", "replace").splitlines()), "")
    rows = read_delimited_table(text_files.read_lines(text, name, encoding), name)
    if is_lsmdc(header):
        return CaptionTable(name, "LSMDC", rows, True, "\t")
    delimiter = find_delimiter(header)
    if split_header(header.strip(), delimiter) == SPEECH_COLUMNS:
        return CaptionTable(name, "speech recognized by Whisper", iter(()), is_description=True)
    return CaptionTable(name, "table", rows, not has_files(split_header(header, delimiter)), delimiter)


def _parse_object(line: str) -> dict[str, Any] | None:
    """Parse the object on a line; None if the line is only part of a JSON document."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


@dataclass(slots=True)
class _Entry:
    """The rows of a video so far. Captions and texts are dictionary keys, so that merging copies no earlier row."""

    location: str
    video: VideoSpec  # the first row, with what later ones add
    captions: dict[str, None]
    transcript: dict[tuple[float, float, str], Cue]


def _merge(uri: str, earlier: _Entry, entry: _Entry, is_partial: bool) -> None:
    """Merge a row into the previous rows of its video; raise InvalidInput."""
    first, added = earlier.video, entry.video

    def check_equal(field: str, before: object, value: object) -> None:
        if None not in (before, value) and before != value:
            message = f"{field[:80]!r} of {uri!r} differs from its row at {earlier.location}."
            hint = "Repeat the same ID, split and metadata, or omit them."
            raise InvalidInput.at(entry.location, message, hint)

    check_equal("id", first.id, added.id)
    check_equal("split", first.split, added.split)
    first.id, first.split = first.id or added.id, first.split or added.split
    first.metadata = added.metadata if first.metadata is None else first.metadata
    for key, value in (added.metadata or {}).items():
        before = (first.metadata or {}).setdefault(key, value)
        values = before if isinstance(before, list) else [before]
        if not is_partial or not isinstance(value, str):
            check_equal(key, before, value)
        elif first.metadata and value not in values and len(values) < _MAX_VALUES:
            first.metadata[key] = [*values, value]
    earlier.captions.update(entry.captions)
    earlier.transcript.update(entry.transcript)


class CaptionTables:
    """The videos in a folder's caption tables.

    The files are listed only if a row has to be searched among them. Those of data sets, whose IDs lack folders and
    extensions, always are, and those of other tables if ``is_searched``; else, they are relative to the table's folder.
    """

    def __init__(self, list_files: Callable[[], Sequence[str]], *, is_searched: bool = False) -> None:
        self._list_files = list_files
        self._is_searched = is_searched
        self._entries: dict[str, _Entry] = {}  # by the path of the file
        self._metadata_bytes = 0
        self._cues = 0
        self.tables: list[CaptionTable] = []
        self.rows = 0  # also of tables with an error
        self.missing: dict[str, str] = {}  # why rows were left out: they match no file, or several
        self.unused: dict[str, str] = {}  # what the files are that have no videos, by path

    @cached_property
    def _matcher(self) -> FileMatcher:
        return FileMatcher(self._list_files())

    def add(self, path: str, stream: BinaryIO, encoding: str = "utf-8", *, is_chosen: bool = False) -> None:
        """Read a table's rows; raise InvalidInput. A file of something else is unused, except a chosen one."""
        try:
            self._add(path, stream, encoding)
        except UnknownTable:
            stream.seek(0)
            text = text_files.read_text(stream, path).decode(encoding, "replace")[:_SEARCHED_CHARS]
            if is_chosen or PurePosixPath(path).name.lower() in MANIFEST_NAMES or self._names_video(text):
                raise
            self.unused[path] = "is not used: it has no captions of these videos"

    def _names_video(self, text: str) -> bool:
        """Check whether a value in a text names a video, or is a video's name without the ending."""
        values = (value.strip() for value in _BETWEEN_VALUES.split(text.replace("\\", "/").casefold()))
        names = {normalize_path(value.rpartition("/")[2]) for value in values}
        videos = (PurePosixPath(normalize_path(path)) for path in self._list_files() if is_video_name(path))
        return any(map(is_video_name, names)) or any(path.stem.casefold() in names for path in videos)

    def _add(self, path: str, stream: BinaryIO, encoding: str) -> None:
        table = read_rows(stream, path, encoding)
        folder = str(PurePosixPath(path).parent).removeprefix(".")
        named: dict[str, str] = {}  # file → path in its first row
        missing: list[str] = []
        for location, fields in table.rows:
            self.rows += 1
            uri = fields.get("uri") if isinstance(fields, dict) else None
            if isinstance(uri, str) and not is_source_uri(uri):
                if (find_omission(uri) or ("", ""))[1] == SYSTEM:
                    missing.append(uri)
                    self.missing[uri] = "in a system folder"
                    continue
                if table.is_partial and ".." in uri.replace("\\", "/").split("/"):
                    raise InvalidInput.at(location, f"{uri[:200]!r} is outside the folder.", "Remove '..'.")
                if table.is_partial or self._is_searched:
                    if table.is_partial:
                        uri = self._clip_id(uri, fields.get("metadata"), folder)
                    matches = self._matcher.find(uri, folder)
                    reason = _REASONS[len(matches)]
                    if len(matches) == 1 and named.setdefault(matches[0], uri) != uri:
                        reason = "another row names the same file"
                    if reason:
                        missing.append(uri)
                        if len(self.missing) < _MAX_MISSING:
                            self.missing[uri] = reason
                        continue
                    uri = matches[0]
                elif folder:
                    uri = str(PurePosixPath(folder, uri))
                fields = {**fields, "uri": uri}
            self.add_row(location, fields, is_partial=table.is_partial)
            named.setdefault(str(uri), "")
        if table.is_description:
            self.unused[path] = f"is not used: {table.format}"
            return
        if missing and not named and table.is_partial:
            some = ", ".join(repr(uri[:80]) for uri in missing[:_MAX_NAMED])
            raise InvalidInput.at(
                path,
                f"None of the videos it names is in the folder, for example {some} ({table.format}).",
                "Put it into the folder with the videos. IDs are file names without extension, or without start and "
                "end, as in ID_33_46.avi.",
            )
        if not named and not missing:
            raise InvalidInput.at(path, "It lists no videos.", "Write one video per line.")
        table.videos = len(named) + len(missing)
        self.tables.append(table)

    def _clip_id(self, uri: str, metadata: Any, folder: str) -> str:
        """Add a row's start and end to its ID, as in the names of MSVD's clips, unless only the whole video exists."""
        values = {key.lower(): value for key, value in metadata.items()} if isinstance(metadata, dict) else {}
        try:
            start, end = (int(float(values[key])) for key in ("start", "end"))
        except (KeyError, TypeError, ValueError, OverflowError):
            return uri
        names = [f"{uri}_{start}_{end}", f"{uri}_{start:06}_{end:06}", uri]
        return next((name for name in names if self._matcher.find(name, folder)), names[0])

    def add_row(self, location: str, fields: Any, *, is_partial: bool = False) -> None:
        """Add a row's video; raise InvalidInput, also for a row that contradicts a previous one.

        Metadata of a partial row, such as one worker's annotation, become lists where they differ from a previous
        row's.
        """
        try:
            video = VideoSpec.model_validate(fields)
        except ValidationError as error:
            first = InvalidInput.from_pydantic(error.errors()).errors[0]
            raise InvalidInput.at(
                f"{location}.{first.field}", first.message, "Write it as in the body of a new task."
            ) from None
        if _CONTROL.search(video.uri):
            raise InvalidInput.at(f"{location}.uri", "The path contains a control character.", "Remove it.")
        texts = {"captions": video.captions, "transcript": [cue.text for cue in video.transcript]}
        for field, value in {**texts, "metadata": video.metadata or {}}.items():
            if problem := storage_problem(value):
                raise InvalidInput.at(f"{location}.{field}", problem, "Use plain JSON values only.")
        self._check_metadata(location, video.metadata)
        self._cues += len(video.transcript)
        if self._cues > _MAX_CUES:
            message = f"The transcripts in the manifest have more than {_MAX_CUES} texts."
            raise InvalidInput.at(f"{location}.transcript", message, "Split the manifest.")
        uri = video.uri.removeprefix("./") or video.uri
        cues = {(cue.start, cue.end, cue.text): cue for cue in video.transcript}
        entry = _Entry(location, video, dict.fromkeys(video.captions), cues)
        if earlier := self._entries.get(uri):
            _merge(uri, earlier, entry, is_partial)
            entry = earlier
        elif len(self._entries) >= (limit := request_limits.MAX_VIDEOS_PER_TASK):
            message = f"The previous rows name {limit} other videos, which is the limit."
            hint = f"Post at most {limit} videos, and append the others to the domain."
            raise InvalidInput.at(location, message, hint)
        if len(entry.captions) > request_limits.MAX_CAPTIONS:
            message = f"{uri!r} has more than {request_limits.MAX_CAPTIONS} captions."
            raise InvalidInput.at(location, message, "Remove some of them.")
        self._entries[uri] = entry

    def videos(self) -> list[VideoSpec]:
        """Build the videos, in the order of their first rows. Rows for the same file become one."""
        for uri, entry in self._entries.items():
            entry.video.uri, entry.video.captions = uri, list(entry.captions)
            if entry.transcript:
                entry.video.transcript = list(entry.transcript.values())
        return [entry.video for entry in self._entries.values()]

    @property
    def locations(self) -> dict[str, str]:
        """Where the first row of each video is, such as ``captions.csv:2``, by the path of the file."""
        return {uri: entry.location for uri, entry in self._entries.items()}

    def _check_metadata(self, location: str, metadata: dict[str, Any] | None) -> None:
        """Limit the metadata per video and in total: parsed JSON takes up to 20 times as much memory as text."""
        size = len(json.dumps(metadata, ensure_ascii=False).encode()) if metadata else 0
        self._metadata_bytes += size
        if size > request_limits.MAX_METADATA_BYTES:
            hint = f"Keep it below {request_limits.MAX_METADATA_BYTES} bytes as JSON."
            raise InvalidInput.at(f"{location}.metadata", f"It takes {size} bytes.", hint)
        if self._metadata_bytes > _MAX_METADATA_BYTES:
            message = f"The metadata in the manifest takes more than {_MAX_METADATA_BYTES} bytes."
            raise InvalidInput.at(f"{location}.metadata", message, "Split the manifest.")


def read_tables(
    manifest: str | None, list_files: Callable[[], Sequence[str]], side_files: SideFiles
) -> CaptionTables:
    """Read a manifest, which must be valid, or the tables in a folder. One that is invalid is left out by name.

    ``side_files`` opens the tables, which are UTF-8 without an encoding, and collects what is left out, and notes.
    """
    names = find_tables(list_files()) if manifest is None else [manifest]
    while True:
        tables = CaptionTables(list_files)
        for name in (name for name in names if name not in side_files.left_out):
            rows = tables.rows
            try:
                with side_files.open(name) as stream:
                    tables.add(name, stream, side_files.encoding or "utf-8", is_chosen=manifest is not None)
            except UNREADABLE as error:
                if manifest is not None:
                    raise
                side_files.left_out[name] = explain_error(name, error)
                if tables.rows > rows:
                    break  # read the others again, without the rows before the error
        else:
            side_files.notes.update(tables.unused)
            if manifest is None:
                unused = SideFileNames(list_files()).unused
                side_files.notes.update(dict.fromkeys(unused, "belongs to no video, and is not used"))
            return tables


class FileMatcher:
    """Finds the file of a folder that a table row names.

    Neither the browser nor the table knows the other's folder, so paths are compared from their ends: if no other file
    fits, ``clips/a.mp4`` names the file ``kitchen/clips/a.mp4``, and ``/data/clips/a.mp4`` names ``a.mp4``. Data set
    IDs are video paths without extension. Spellings that :func:`normalize_path` unifies are equal.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._original = {normalize_path(path): path for path in paths if find_omission(path) is None}
        videos = [path for path in self._original if is_video_name(path)]
        self._files = _PathEnds(self._original)
        self._stems: dict[str, list[str]] = defaultdict(list)
        for path in videos:
            self._stems[path.removesuffix(PurePosixPath(path).suffix)].append(path)
        self._ids = _PathEnds(self._stems)

    def find(self, uri: str, folder: str = "") -> list[str]:
        """Find the file that a row of a table in ``folder`` names: two if it is ambiguous, none if nothing matches."""
        wanted = normalize_path(uri)
        matches = self._files.find(wanted, folder)
        if not matches:
            stems = self._ids.find(wanted, folder)
            matches = list(chain.from_iterable(self._stems[stem] for stem in stems))
        if not matches and (upload := _UPLOAD_PREFIX.fullmatch(wanted)):
            matches = self._files.find(f"{upload['folder']}{upload['name']}", folder)
        return [self._original[path] for path in matches[:2]]


# Label Studio stores an uploaded clip.mp4 as 1a2b3c4d-clip.mp4.


class _PathEnds:
    """Finds paths by their ends."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = set(paths)
        # Paths with the same end are neighbors in this order, so a row is compared with only a few.
        self._reversed = sorted((_reverse(path), path) for path in self._paths)

    def find(self, wanted: str, folder: str) -> list[str]:
        in_folder = f"{folder}/{wanted}" if folder else wanted
        for path in (in_folder, wanted):
            if path in self._paths:
                return [path]
        return list(islice(chain(self._longer_paths(wanted), self._shorter_paths(wanted)), 2))

    def _longer_paths(self, wanted: str) -> Iterator[str]:
        """Find files whose path ends with the given one."""
        start = _reverse(wanted)
        for index in range(bisect_left(self._reversed, (start,)), len(self._reversed)):
            reversed_path, path = self._reversed[index]
            if not reversed_path.startswith(start):
                break
            yield path

    def _shorter_paths(self, wanted: str) -> Iterator[str]:
        """Find files whose path is the end of the given one."""
        wanted = "/".join(["", *wanted.split("/")[1:][-_MAX_FOLDERS:]])
        while wanted := wanted.partition("/")[2]:
            if wanted in self._paths:
                yield wanted


def _reverse(path: str) -> str:
    """List a path's parts from last to first, each followed by a slash."""
    return "".join(f"{part}/" for part in reversed(path.split("/")))
