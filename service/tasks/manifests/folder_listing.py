"""Read a folder's caption tables and sidecar files. One that cannot be read is left out by name, and stops nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, BinaryIO

from cinestrata_schemas.tasks import VideoSpec
from media import MediaError
from service.core.errors import FieldError, InvalidInput
from service.tasks.ingestion_checks import content_errors, raise_first
from service.tasks.manifests.caption_tables import CaptionTables, find_tables
from service.tasks.manifests.sidecar_captions import (
    OpenSidecar,
    add_caption_from_name,
    add_subtitles,
    read_sidecars,
    sidecar_stem,
)

_UNREADABLE = (InvalidInput, MediaError, OSError)


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
    """

    base: Any
    videos: Sequence[VideoSpec]
    left_out: Mapping[str, FieldError]
    omitted: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    without_row: Sequence[str] = field(default=(), kw_only=True)
    missing: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    formats: Mapping[str, str] = field(default_factory=dict, kw_only=True)

    def require_all(self) -> None:
        """Raise InvalidInput if any file was left out."""
        if self.left_out:
            raise InvalidInput.of(list(self.left_out.values()))


@dataclass
class FolderReader:
    """Reads a folder's tables, and its videos with their sidecar files.

    Attributes:
        list_files: Lists the paths of all files.
        open_table, open_sidecar: Open a file by path.
        check_file: Raises an error for a video file that cannot be used.
        left_out: Errors of the files that were left out, by path.
    """

    list_files: Callable[[], Sequence[str]]
    open_table: Callable[[str], BinaryIO]
    open_sidecar: OpenSidecar
    check_file: Callable[[str], object]
    encoding: str
    left_out: dict[str, FieldError] = field(default_factory=dict)

    def read_tables(self, manifest: str | None, typed_tables: bool) -> CaptionTables:
        """Read a manifest, which must be valid, or the tables in the folder."""
        names = find_tables(self.list_files()) if manifest is None else [manifest]
        while True:
            tables = CaptionTables(self.list_files)
            for name in (name for name in names if name not in self.left_out):
                rows = tables.rows
                try:
                    with self.open_table(name) as stream:
                        tables.add(name, stream, self.encoding, typed_tables=typed_tables)
                except _UNREADABLE as error:
                    if manifest is not None:
                        raise
                    self.left_out[name] = _explain(name, error)
                    if tables.rows > rows:
                        break  # read the others again, without the rows before the error
            else:
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
        videos: list[VideoSpec] = []
        for name, row in chain(rows, ((name, None) for name in names)):
            report_progress()
            try:
                if row is None:
                    self.check_file(name)
                video = self._read_video(name, row)
                videos.append(add_caption_from_name(video) if captions_from_names else video)
            except _UNREADABLE as error:
                self.left_out[name] = _explain(name, error)
        if not videos:
            raise InvalidInput.of([*self.left_out.values(), no_videos])
        return videos

    def _read_video(self, name: str, row: VideoSpec | None) -> VideoSpec:
        """Read a video with those sidecar files that can be read."""
        opened: list[str] = []

        def open_next(sidecar: str) -> BinaryIO | None:
            if sidecar in self.left_out:
                return None
            opened.append(sidecar)
            if (stream := self.open_sidecar(sidecar)) is None:
                opened.pop()
            return stream

        try:
            if row is not None:
                return add_subtitles(row, name, open_next, self.encoding)
            video = read_sidecars(name, open_next, self.encoding)
            # Only lines of a text file are not cut to the limits.
            raise_first(content_errors(f"{sidecar_stem(name)}.txt", video))
            return video
        except _UNREADABLE as error:
            if not opened:
                raise
            field = error.errors[0].field if isinstance(error, InvalidInput) else ""
            sidecar = next((sidecar for sidecar in opened if field.startswith(sidecar)), opened[-1])
            self.left_out[sidecar] = _explain(sidecar, error)
            return self._read_video(name, row)


def _explain(name: str, error: Exception) -> FieldError:
    if isinstance(error, InvalidInput):
        return error.errors[0]
    if isinstance(error, OSError):
        return FieldError(name, f"The file cannot be read ({error.strerror}).", "Let the service read it.")
    return FieldError(name, f"{error}.")
