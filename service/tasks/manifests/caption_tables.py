"""Read a folder's caption tables and side files. One that cannot be read is left out by name, and stops nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import PurePosixPath
from typing import Any, BinaryIO

from cinestrata_schemas.tasks import VideoSpec
from media.sources.media_source import is_source_uri
from service.core.errors import FieldError, InvalidInput
from service.tasks.manifests.manifest_parser import ManifestEntries, read_rows
from service.tasks.manifests.side_files import (
    UNREADABLE,
    SideFileNames,
    SideFiles,
    add_caption_from_name,
    add_subtitles,
    explain_error,
    read_sidecars,
)
from service.tasks.manifests.video_files import SYSTEM, FileMatcher, find_omission
from service.tasks.manifests.video_tables import TYPED_SUFFIXES

TABLE_SUFFIXES = (".csv", ".tsv", ".json", ".jsonl", ".ndjson")

_REASONS = ("not found", "", "several files have this name")  # by the number of files that match a row
_MAX_MISSING = 100_000
_MAX_NAMED = 3


def find_tables(
    paths: Iterable[str], suffixes: tuple[str, ...] = (*TABLE_SUFFIXES, *TYPED_SUFFIXES)
) -> list[str]:
    """Find the files in a folder that look like caption tables by name.

    Files that are not part of the folder, JSON sidecar files and spreadsheet lock files are skipped.
    """
    found = list(paths)
    tables = [path for path in found if path.lower().endswith(suffixes) and find_omission(path) is None]
    has_json = any(path.lower().endswith(".json") for path in tables)
    side_files = SideFileNames(found).side_files if has_json else ()
    return [
        path
        for path in tables
        if not (path.lower().endswith(".json") and path in side_files)
        and not PurePosixPath(path).name.startswith("~$")
    ]


@dataclass(frozen=True)
class CaptionTableSummary:
    """A table that was read.

    Attributes:
        videos: Number of files that it names.
    """

    path: str
    format: str
    delimiter: str | None
    videos: int


class CaptionTables:
    """The videos in a folder's caption tables.

    Args:
        list_files: Lists the paths of the files; called only if a row has to be searched among them.
        is_searched: Whether to search for the files of all tables. Otherwise, only those of data sets are searched,
            whose IDs lack folders and extensions; rows of other tables name paths relative to the table's folder.

    Attributes:
        rows: Number of rows that were read, also of tables with an error.
        missing: Why rows were left out: they match no file, or several.
        unused: What the files are that have no videos, by path.
    """

    def __init__(self, list_files: Callable[[], Sequence[str]], *, is_searched: bool = False) -> None:
        self._list_files = list_files
        self._is_searched = is_searched
        self._entries = ManifestEntries()
        self.tables: list[CaptionTableSummary] = []
        self.rows = 0
        self.missing: dict[str, str] = {}
        self.unused: dict[str, str] = {}

    @cached_property
    def _matcher(self) -> FileMatcher:
        return FileMatcher(self._list_files())

    def add(self, path: str, stream: BinaryIO, encoding: str = "utf-8") -> None:
        """Read a table's rows; raise InvalidInput."""
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
                    found = self._matcher.find(uri, folder)
                    reason = _REASONS[len(found)]
                    if len(found) == 1 and named.setdefault(found[0], uri) != uri:
                        reason = "another row names the same file"
                    if reason:
                        missing.append(uri)
                        if len(self.missing) < _MAX_MISSING:
                            self.missing[uri] = reason
                        continue
                    uri = found[0]
                elif folder:
                    uri = str(PurePosixPath(folder, uri))
                fields = {**fields, "uri": uri}
            self._entries.add(location, fields, is_partial=table.is_partial)
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
        self.tables.append(
            CaptionTableSummary(path, table.format, table.delimiter, len(named) + len(missing))
        )

    def _clip_id(self, uri: str, metadata: Any, folder: str) -> str:
        """Add a row's start and end to its ID, as in the names of MSVD's clips, unless only the whole video exists."""
        values = {key.lower(): value for key, value in metadata.items()} if isinstance(metadata, dict) else {}
        try:
            start, end = (int(float(values[key])) for key in ("start", "end"))
        except (KeyError, TypeError, ValueError, OverflowError):
            return uri
        names = [f"{uri}_{start}_{end}", f"{uri}_{start:06}_{end:06}", uri]
        return next((name for name in names if self._matcher.find(name, folder)), names[0])

    def videos(self) -> list[VideoSpec]:
        """List the videos in the order of their first rows; ``uri`` is the path of the matched file."""
        return self._entries.videos()


@dataclass(frozen=True)
class VideoListing:
    """The videos in a folder or manifest.

    Attributes:
        base: Folder that the URIs are relative to.
        videos: The videos; their files may be missing.
        left_out: Why files cannot be used, by path: videos that are not listed, tables, and sidecar files of listed
            videos. A path that ends with a slash is a folder that is not listed.
        omitted: Why paths are not part of the folder, such as hidden files.
        without_row: Paths of videos that the folder's caption tables do not mention.
        missing: Why table rows were left out: they match no file, or several.
        formats: Format of each caption table or manifest by its path.
        notes: What else is worth knowing about files: detected encodings, and files that are not used.
    """

    base: Any
    videos: Sequence[VideoSpec]
    left_out: Mapping[str, FieldError]
    omitted: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    without_row: Sequence[str] = field(default=(), kw_only=True)
    missing: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    formats: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    notes: Mapping[str, str] = field(default_factory=dict, kw_only=True)

    def require_all(self) -> None:
        """Raise InvalidInput if any file was left out."""
        if self.left_out:
            raise InvalidInput.of(list(self.left_out.values()))


@dataclass
class FolderReader:
    """Reads a folder's tables, and its videos with their sidecar files.

    Attributes:
        list_files: Lists the paths of all files.
        check_file: Raises an error for a video file that cannot be used.
        side_files: Opens sidecar files, and tables; tables are UTF-8 without an encoding. Also collects what is left
            out, and notes.
    """

    list_files: Callable[[], Sequence[str]]
    check_file: Callable[[str], object]
    side_files: SideFiles

    def read_tables(self, manifest: str | None) -> CaptionTables:
        """Read a manifest, which must be valid, or the tables in the folder."""
        names = find_tables(self.list_files()) if manifest is None else [manifest]
        files = self.side_files
        while True:
            tables = CaptionTables(self.list_files)
            for name in (name for name in names if name not in files.left_out):
                rows = tables.rows
                try:
                    with files.open(name) as stream:
                        tables.add(name, stream, files.encoding or "utf-8")
                except UNREADABLE as error:
                    if manifest is not None:
                        raise
                    files.left_out[name] = explain_error(name, error)
                    if tables.rows > rows:
                        break  # read the others again, without the rows before the error
            else:
                files.notes.update(tables.unused)
                if manifest is None:
                    unused = SideFileNames(self.list_files()).unused
                    files.notes.update(dict.fromkeys(unused, "belongs to no video, and is not used"))
                return tables

    def read_videos(
        self,
        rows: Iterable[tuple[str, VideoSpec]],
        names: Iterable[str],
        no_videos: FieldError,
        captions_from_names: bool,
        report_progress: Callable[[], object] = lambda: None,
    ) -> list[VideoSpec]:
        """Read the videos of tables and the others, by path; raise ``no_videos`` if none can be used."""
        files = self.side_files
        videos: list[VideoSpec] = []
        for name, row in chain(rows, ((name, None) for name in names)):
            report_progress()
            try:
                if row is None:
                    self.check_file(name)
                video = read_sidecars(name, files) if row is None else add_subtitles(row, name, files)
                videos.append(add_caption_from_name(video) if captions_from_names else video)
            except UNREADABLE as error:
                files.left_out[name] = explain_error(name, error)
        if not videos:
            raise InvalidInput.of([*files.left_out.values(), no_videos])
        return videos

    def describe(self, tables: CaptionTables, names: Iterable[str]) -> dict[str, Any]:
        """Describe the tables, and the videos ``names`` that have no row, for a :class:`VideoListing`."""
        return {
            "without_row": [n for n in names if n not in self.side_files.left_out] if tables.tables else (),
            "missing": tables.missing,
            "formats": {table.path: table.format for table in tables.tables},
            "notes": self.side_files.notes,
        }
