"""Caption tables next to videos: find them, and read the videos in their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any, BinaryIO

from cinestrata_schemas.tasks import VideoSpec
from media.sources.media_source import is_source_uri
from service.core.errors import InvalidInput
from service.tasks.manifests.file_matching import FileMatcher
from service.tasks.manifests.manifest_parser import ManifestEntries, read_rows
from service.tasks.manifests.side_file_names import SideFileNames
from service.tasks.manifests.video_files import SYSTEM, find_omission
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
        delimiter: Delimiter, for text tables.
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
        tables: The tables that were read.
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

    def add(
        self, path: str, stream: BinaryIO, encoding: str = "utf-8", *, typed_tables: bool = False
    ) -> None:
        """Read a table's rows.

        Args:
            path: Path of the table; paths in it are relative to its folder.
            typed_tables: As for :func:`read_rows`.

        Raises:
            InvalidInput: The table is not recognized, is invalid, or names no existing video.
        """
        table = read_rows(stream, path, encoding, typed_tables=typed_tables)
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
