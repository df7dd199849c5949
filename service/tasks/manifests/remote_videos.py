"""List the videos in an object store folder or a remote manifest, which is read like a local folder."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO
from urllib.parse import quote

from cinestrata_schemas.tasks import VideoSpec
from media import MediaError
from media.errors import SourceOutage
from media.sources.media_source import ListedFile, SourceUri, is_source_uri
from service.core import request_limits
from service.core.errors import FieldError, InvalidInput, SourceUnavailable
from service.storage.video_access import SourceReader
from service.tasks.manifests.caption_tables import TABLE_SUFFIXES, FolderReader, VideoListing
from service.tasks.manifests.manifest_parser import FULL_MANIFEST_NAMES, require_text_table
from service.tasks.manifests.side_files import SideFileNames, SideFiles
from service.tasks.manifests.text_files import check_encoding
from service.tasks.manifests.video_files import NO_VIDEOS_HINT, find_videos
from service.tasks.manifests.video_tables import TYPED_SUFFIXES


@dataclass(frozen=True)
class RemoteVideos(VideoListing):
    """The videos in a remote folder or manifest.

    Attributes:
        base: URI of the folder that video URIs are relative to, ending with a slash.
        files: The folder's files by path; None for a web server, which cannot be listed.
    """

    base: SourceUri
    files: Mapping[str, ListedFile] | None = None

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
) -> RemoteVideos:
    """List the videos in an object store folder, or in a manifest in an object store or on a web server.

    The files mean the same as in :func:`~service.tasks.manifests.folder_videos.list_folder_videos`. A video is left out
    if its name cannot be part of a URI, or if a table names a file that is missing or outside its folder.

    Args:
        source: URI of the folder or the manifest.
        report_progress: Called for each page of a listing and each part of a file.

    Raises:
        InvalidInput: The source is not allowed or has no videos, all are left out, or its manifest is invalid.
        SourceUnavailable: The source is unreachable at the moment.
    """
    try:
        check_encoding(encoding or "utf-8")
        return _list(source, reader, encoding, captions_from_names, report_progress)
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
) -> RemoteVideos:
    named = SourceUri.parse(source)
    is_table = named.segments[-1].lower().endswith((*TABLE_SUFFIXES, *TYPED_SUFFIXES))
    manifest = named.segments[-1] if is_table else None
    folder = source.partition("?")[0] if named.port is not None else source
    base = SourceUri.parse(folder[: folder.rindex("/") + 1] if manifest else folder.rstrip("/") + "/")
    files: dict[str, ListedFile] | None = None
    if manifest is None or named.port is None:
        files = {file.name: file for file in reader.list_files(base, report_progress)}
        manifest = manifest or next((name for name in FULL_MANIFEST_NAMES if name in files), None)

    def open_file(name: str) -> BinaryIO:
        require_text_table(name, name)  # before the download
        uri = named if named.segments[-1] == name else SourceUri.parse(base.text + _encode(base, name))
        return io.BytesIO(reader.read(uri, request_limits.MAX_TABLE_BYTES, report_progress))

    side_files = SideFiles(SideFileNames(files or ()).find, open_file, encoding, is_strict=False)
    folder_reader = FolderReader(
        lambda: list(files or ()), lambda name: SourceUri.parse(base.text + name), side_files
    )
    tables = folder_reader.read_tables(manifest)
    listed = tables.videos()
    left_out = side_files.left_out
    named_files = {row.uri.removeprefix(base.text) for row in listed}
    names, omitted = find_videos(sorted({*(files or ())} - named_files) if manifest is None else ())
    rows, unlisted = _split(base, listed, files)
    left_out.update(unlisted)
    paths = ((row.uri.removeprefix(base.text), row) for row in rows)
    no_videos = FieldError("source", f"There are no videos in {base.shown}.", NO_VIDEOS_HINT)
    videos = folder_reader.read_videos(paths, names, no_videos, captions_from_names)
    return RemoteVideos(
        base, videos, left_out, files, omitted=omitted, **folder_reader.describe(tables, names)
    )


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
