"""List the videos in an object store folder or a remote manifest, which is read like a local folder."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import BinaryIO
from urllib.parse import quote

from cinestrata_schemas.tasks import VideoSpec
from media import MediaError
from media.errors import SourceOutage
from media.sources.media_source import ListedFile, SourceUri, is_source_uri
from service.core import request_limits
from service.core.errors import FieldError, InvalidInput, SourceUnavailable
from service.storage.video_access import SourceReader
from service.tasks.manifests.caption_tables import TABLE_SUFFIXES, CaptionTables, find_tables
from service.tasks.manifests.file_matching import NO_VIDEOS_HINT, is_video_name
from service.tasks.manifests.manifest_lines import check_encoding
from service.tasks.manifests.manifest_parser import (
    CAPTION_TABLE_NAMES,
    MANIFEST_NAMES,
    TYPED_MANIFEST_NAMES,
    require_text_table,
)
from service.tasks.manifests.side_file_names import SideFileNames
from service.tasks.manifests.sidecar_captions import (
    SideFiles,
    add_caption_from_name,
    add_subtitles,
    is_hidden,
    read_sidecars,
)
from service.tasks.manifests.video_tables import TYPED_SUFFIXES


@dataclass(frozen=True)
class RemoteVideos:
    """The videos in a remote folder or manifest.

    Attributes:
        base: URI of the folder that video URIs are relative to, ending with a slash.
        files: The folder's files by path; None for a web server, which cannot be listed.
        left_out: Why videos are not listed, by path.
        without_row: Paths of videos that the folder's caption tables do not mention.
        missing: Why table rows were left out: they match no file, or several.
        formats: Format of each caption table or manifest by its path.
        notes: As for :class:`service.tasks.manifests.folder_videos.FolderVideos`.
    """

    base: SourceUri
    videos: Sequence[VideoSpec]
    files: Mapping[str, ListedFile] | None
    left_out: Mapping[str, FieldError]
    without_row: Sequence[str] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    formats: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)

    def require_all(self) -> None:
        """Raise InvalidInput if any video was left out."""
        if self.left_out:
            raise InvalidInput.of(list(self.left_out.values()))

    def place(self, videos: Sequence[VideoSpec]) -> list[VideoSpec]:
        """Complete the videos' URIs."""
        return [
            video
            if is_source_uri(video.uri)
            else video.model_copy(update={"uri": self.base.text + _encode(self.base, video.uri)})
            for video in videos
        ]


def list_remote_videos(
    source: str,
    reader: SourceReader,
    encoding: str | None = None,
    captions_from_names: bool = False,
    report_progress: Callable[[], object] = lambda: None,
    typed_tables: bool = False,
) -> RemoteVideos:
    """List the videos in an object store folder, or in a manifest in an object store or on a web server.

    Caption tables found in the folder need not name all videos: the others get captions from sidecar files. A manifest,
    or a table given as ``source``, lists all videos. A listed video without a transcript gets one from its subtitles.

    A video is left out if its name cannot be part of a URI, if a sidecar file is invalid or forbidden, or if the
    manifest names a file that is missing or outside its folder.

    Args:
        source: URI of the folder or the manifest.
        reader: Reads the source.
        encoding: Encoding of the manifest, and of sidecar files that are not UTF-8. None: UTF-8, and detected.
        captions_from_names: Whether a video without captions gets its file name as one.
        report_progress: Called for each page of a listing and each part of a file.
        typed_tables: Whether a manifest may be a Parquet file or a spreadsheet; only for commands.

    Raises:
        InvalidInput: The source is not allowed or has no videos, all are left out, or its manifest is invalid.
        SourceUnavailable: The source is unreachable at the moment.
    """
    try:
        check_encoding(encoding or "utf-8")
        return _list(source, reader, encoding, captions_from_names, report_progress, typed_tables)
    except SourceOutage as error:
        raise SourceUnavailable(error.reason) from error
    except MediaError as error:
        raise InvalidInput.at("source", f"{error.reason}.") from error


def _list(
    source: str,
    reader: SourceReader,
    encoding: str | None,
    captions_from_names: bool,
    report_progress: Callable[[], object],
    typed_tables: bool,
) -> RemoteVideos:
    named = SourceUri.parse(source)
    is_table = named.segments[-1].lower().endswith((*TABLE_SUFFIXES, *TYPED_SUFFIXES))
    manifest = named.segments[-1] if is_table else None
    folder = source.partition("?")[0] if named.port is not None else source
    base = SourceUri.parse(folder[: folder.rindex("/") + 1] if manifest else folder.rstrip("/") + "/")
    files: dict[str, ListedFile] | None = None
    if manifest is None or named.port is None:
        files = {file.name: file for file in reader.list_files(base, report_progress)}
        full = [n for n in (*MANIFEST_NAMES, *TYPED_MANIFEST_NAMES) if n not in CAPTION_TABLE_NAMES]
        manifest = manifest or next((name for name in full if name in files), None)
    tables = CaptionTables(lambda: [*(files or ())])
    for name in find_tables(files or ()) if manifest is None else [manifest]:
        if not typed_tables:
            require_text_table(name, name)  # before the download
        uri = named if named.segments[-1] == name else SourceUri.parse(base.text + _encode(base, name))
        content = reader.read(uri, request_limits.MAX_TABLE_BYTES, report_progress)
        tables.add(name, io.BytesIO(content), encoding or "utf-8", typed_tables=typed_tables)
    listed = tables.videos()
    rows, left_out = _split(base, listed, files)
    names: list[str] = []
    if files is not None and manifest is None:
        names = sorted(name for name in files if is_video_name(name))
        if not listed:
            _require_videos(base, names)
        else:
            named_files = {row.uri.removeprefix(base.text) for row in listed}
            names = [name for name in names if name not in named_files and not is_hidden(name)]
    notes = tables.unused
    if names:
        notes |= dict.fromkeys(SideFileNames(files or ()).unused, "belongs to no video, and is not used")
    videos, unusable = _read_folder(base, reader, files or {}, rows, names, encoding, report_progress, notes)
    left_out |= unusable
    if not videos:
        raise InvalidInput.of(list(left_out.values()))
    if captions_from_names:
        videos = list(map(add_caption_from_name, videos))
    without_row = [name for name in names if name not in left_out] if tables.tables else ()
    formats = {table.path: table.format for table in tables.tables}
    return RemoteVideos(base, videos, files, left_out, without_row, tables.missing, formats, notes)


def _require_videos(base: SourceUri, names: Sequence[str]) -> None:
    """Raise InvalidInput if a folder without a manifest has no videos."""
    if not names:
        raise InvalidInput.at(
            "source",
            f"There are no videos in {base.shown}.",
            NO_VIDEOS_HINT,
        )


def _read_folder(
    base: SourceUri,
    reader: SourceReader,
    files: Mapping[str, ListedFile],
    rows: Sequence[VideoSpec],
    names: Sequence[str],
    encoding: str | None,
    report_progress: Callable[[], object],
    notes: dict[str, str],
) -> tuple[list[VideoSpec], dict[str, FieldError]]:
    """Read a folder's videos with captions and subtitles; also return the errors of those left out.

    Args:
        files: The folder's files; empty for a web server.
        names: Paths of the other videos.
        notes: Receives what is worth knowing about sidecar files.
    """

    def open_file(name: str) -> BinaryIO:
        uri = SourceUri.parse(base.text + name)
        return io.BytesIO(reader.read(uri, request_limits.MAX_TABLE_BYTES, report_progress))

    side_files = SideFiles(SideFileNames(files).find, open_file, encoding, notes=notes)
    videos: list[VideoSpec] = []
    left_out: dict[str, FieldError] = {}
    for name, row in chain(((row.uri, row) for row in rows), ((name, None) for name in names)):
        try:
            if row is not None:
                path = name.removeprefix(base.text)
                videos.append(add_subtitles(row, path, side_files))
                continue
            SourceUri.parse(base.text + name)
            videos.append(read_sidecars(name, side_files))
        except MediaError as error:
            left_out[name] = FieldError(name, f"{error.reason}.")
        except InvalidInput as error:
            left_out[name] = error.errors[0]
    return videos, left_out


def _split(
    base: SourceUri, videos: Sequence[VideoSpec], files: Mapping[str, ListedFile] | None
) -> tuple[list[VideoSpec], dict[str, FieldError]]:
    """Separate a manifest's videos from errors about files that are missing or outside the folder."""
    left_out: dict[str, FieldError] = {}
    for video in videos:
        uri = video.uri
        if is_source_uri(uri):
            continue
        if uri.startswith("/") or "://" in uri or ".." in uri.split("/"):
            left_out[uri] = FieldError(
                uri,
                "The file is outside the manifest's folder.",
                "Write paths relative to the manifest's folder, or complete URIs.",
            )
        elif files is not None and uri not in files:
            left_out[uri] = FieldError(
                uri,
                "The file does not exist.",
                "Add it, or remove its row. Paths in a manifest are relative to the manifest's folder.",
            )
        else:
            try:
                SourceUri.parse(base.text + _encode(base, uri))
            except MediaError as error:
                left_out[uri] = FieldError(uri, f"{error.reason}.")
    return [video for video in videos if video.uri not in left_out], left_out


def _encode(base: SourceUri, path: str) -> str:
    return path if base.port is None else quote(path)
