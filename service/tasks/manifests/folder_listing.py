"""Read a folder's caption tables and sidecar files. One that cannot be read is left out by name, and stops nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from cinestrata_schemas.tasks import VideoSpec
from service.core.errors import FieldError, InvalidInput
from service.tasks.manifests.caption_tables import CaptionTables, find_tables
from service.tasks.manifests.side_file_names import SideFileNames
from service.tasks.manifests.sidecar_captions import (
    UNREADABLE,
    SideFiles,
    add_caption_from_name,
    add_subtitles,
    explain_error,
    read_sidecars,
)


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

    def read_tables(self, manifest: str | None, typed_tables: bool) -> CaptionTables:
        """Read a manifest, which must be valid, or the tables in the folder."""
        names = find_tables(self.list_files()) if manifest is None else [manifest]
        files = self.side_files
        while True:
            tables = CaptionTables(self.list_files)
            for name in (name for name in names if name not in files.left_out):
                rows = tables.rows
                try:
                    with files.open(name) as stream:
                        tables.add(name, stream, files.encoding or "utf-8", typed_tables=typed_tables)
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
