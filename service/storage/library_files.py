"""Files of the data folder, the media root and remote sources: paths, write access, and videos' content."""

from __future__ import annotations

import os
import posixpath
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache, partial
from pathlib import Path

from cinestrata_schemas.uris import is_source_uri
from media import MediaError, resolve_uri
from media.errors import SourceOutage
from media.sources import media_source
from media.sources.downloading import DownloadLimits, SourceCache, download_file
from media.sources.object_store import ObjectStore
from media.sources.web_server import WebServer
from service.core import request_limits
from service.core.errors import DataFolderNotWritable, SourceUnavailable
from service.core.settings import Settings, settings

UPLOAD_SCHEME = "upload://"  # upload://<task id>/<path>: a file in a posted archive
UPLOAD_FOLDER = re.compile(r"tsk_[0-9a-f]{16}")  # other folders in uploads_dir belong to users
MAX_DOWNLOADED_BYTES = 16 * 1024**3  # over all workers on the data folder


def normalize_uri(uri: str) -> str:
    """Normalize an upload's URI for the catalog: no empty segments, ``.`` or ``..``; other URIs stay as they are."""
    if not uri.startswith(UPLOAD_SCHEME):
        return uri
    return UPLOAD_SCHEME + posixpath.normpath(uri.removeprefix(UPLOAD_SCHEME))


def resolve_video_path(uri: str) -> Path:
    """Resolve a video's URI to its file; raise MediaError outside the media root or the uploads folder."""
    if uri.startswith(UPLOAD_SCHEME):
        inside = uri.removeprefix(UPLOAD_SCHEME)
        if inside.startswith(("/", "file:")):
            raise MediaError("The URI of an upload is upload://<task>/<path>.")
        return resolve_uri(inside, settings().uploads_dir)
    return resolve_uri(uri, settings().media_root)


def thumbnail_path(video_id: str) -> Path:
    """Name the file of a video's thumbnail, which may not exist yet."""
    return settings().thumbnails_dir / f"{video_id}.jpg"


def require_writable(*folders: Path) -> None:
    """Create missing folders, and check that files can be written to each; raise DataFolderNotWritable."""
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=folder, prefix=".write-check-") as file:
                file.write(b"\0")
                file.flush()
        except OSError as error:
            raise DataFolderNotWritable(folder, error) from error


def check_data_folder(configured: Settings) -> str:
    """Explain why the data folder cannot be written; ``ok`` if it can."""
    try:
        require_writable(configured.data_dir)
    except DataFolderNotWritable as error:
        return f"{error.detail} {error.hint}"
    return "ok"


def disk_space() -> tuple[int | None, int | None]:
    """Measure free and total bytes on the data folder's disk; None if unknown."""
    try:
        disk = shutil.disk_usage(settings().data_dir)
    except OSError:
        return None, None
    return disk.free, disk.total


def check_video_uri(uri: str) -> None:
    """Check that a URI names a local file, or one in an allowed source, which is not contacted; raise MediaError."""
    if is_source_uri(uri):
        _parse_file(uri)
    else:
        resolve_video_path(uri)


@contextmanager
def local_video(uri: str) -> Iterator[Path]:
    """Provide a local file with a video's content, which exists during the ``with`` block.

    Raises MediaError if probing must reject the video; SourceUnavailable and DataFolderNotWritable if it must not.
    """
    if not is_source_uri(uri):
        yield resolve_video_path(uri)
        return
    parsed = _parse_file(uri)
    with ExitStack() as stack:
        try:
            path = stack.enter_context(
                download_file(
                    _source(parsed),
                    parsed,
                    SourceCache(settings().sources_dir, MAX_DOWNLOADED_BYTES),
                    DownloadLimits(max_bytes=request_limits.MAX_VIDEO_BYTES),
                )
            )
        except SourceOutage as outage:
            raise SourceUnavailable(outage.reason) from outage
        except OSError as error:
            raise DataFolderNotWritable(settings().sources_dir, error) from error
        yield path


@contextmanager
def open_remote_video(uri: str, part: media_source.ByteRange | None) -> Iterator[media_source.RemoteStream]:
    """Stream a remote video, or a range of it; raise MediaError, or SourceOutage while its source is unreachable."""
    parsed = _parse_file(uri)
    with _source(parsed).open(parsed, part) as stream:
        yield stream


class SourceReader:
    """Lists remote folders, and reads small files such as manifests.

    By default, it reads only sources in the settings; on the command line, it reads any, with the user's credentials.
    """

    def __init__(self, is_restricted: bool = True) -> None:
        self._is_restricted = is_restricted

    def list_files(
        self, folder: media_source.SourceUri, report_progress: Callable[[], object] = lambda: None
    ) -> list[media_source.ListedFile]:
        """List all files below a folder, reporting progress; raise MediaError (server, no access) or SourceOutage."""
        if folder.port is not None:
            raise MediaError(
                f"{folder.shown} is on a web server, which can't be listed; give a manifest of its files"
            )
        self._find_prefix(folder)
        return ObjectStore().list_files(folder, report_progress)

    def read(
        self,
        uri: media_source.SourceUri,
        max_bytes: int,
        report_progress: Callable[[], object] = lambda: None,
    ) -> bytes:
        """Read a small file, reporting progress; raise MediaError (missing, forbidden, too large) or SourceOutage."""
        uri.require_file()
        self._find_prefix(uri)
        source: media_source.MediaSource = ObjectStore() if uri.port is None else WebServer(self._find_prefix)
        content = bytearray()
        with source.open(uri) as stream:
            for chunk in stream.chunks:
                content += chunk
                report_progress()
                if len(content) > max_bytes:
                    raise MediaError(f"{uri.shown} is larger than {max_bytes} bytes; split it")
        return bytes(content)

    def _find_prefix(self, uri: media_source.SourceUri) -> media_source.SourcePrefix:
        if self._is_restricted:
            return find_allowed_prefix(uri)
        return media_source.SourcePrefix(uri, is_private=True)


def _parse_file(uri: str) -> media_source.SourceUri:
    parsed = media_source.SourceUri.parse(uri)
    parsed.require_file()
    find_allowed_prefix(parsed)
    return parsed


def find_allowed_prefix(uri: media_source.SourceUri) -> media_source.SourcePrefix:
    """Find the prefix in ``settings().sources`` that contains a URI; raise MediaError if there is none."""
    return media_source.find_prefix(uri, _allowed_prefixes(settings().sources))


@lru_cache(maxsize=4)
def _allowed_prefixes(sources: tuple[str, ...]) -> tuple[media_source.SourcePrefix, ...]:
    return tuple(map(media_source.SourcePrefix.parse, sources))


def _source(uri: media_source.SourceUri) -> media_source.MediaSource:
    return ObjectStore() if uri.port is None else _web_server(settings().sources, os.getpid())


@lru_cache(maxsize=1)
def _web_server(sources: tuple[str, ...], pid: int) -> WebServer:
    """Hold the open connections to web servers, which a forked process must not share."""
    return WebServer(partial(media_source.find_prefix, allowed=_allowed_prefixes(sources)))
