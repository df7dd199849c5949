"""Videos of a folder in an object store, or of a remote manifest: as those of a local folder, through a listing."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import BinaryIO
from urllib.parse import quote

from media import MediaError
from media.sources.media_source import ListedFile
from media.sources.source_errors import SourceOutage
from media.sources.source_uris import SourceUri, is_source_uri
from service.core.errors import InvalidInput, SourceUnavailable
from service.core.schemas import VideoSpec
from service.storage.video_access import SourceReader
from service.tasks.manifests.manifest_parser import MANIFEST_NAMES, TYPED_MANIFEST_NAMES, parse_manifest
from service.tasks.manifests.sidecar_captions import VIDEO_SUFFIXES, add_caption_from_name, read_sidecars

__all__ = ["RemoteVideos", "list_remote_videos"]

_MANIFEST_SUFFIXES = tuple({PurePosixPath(name).suffix for name in (*MANIFEST_NAMES, *TYPED_MANIFEST_NAMES)})
_MAX_MANIFEST_BYTES = 256 * 1024**2
_MAX_LISTED = 20


@dataclass(frozen=True)
class RemoteVideos:
    """Videos of a remote folder or manifest.

    Attributes:
        base: URI of the folder that URIs are relative to, with a slash at the end.
        videos: The videos.
        files: The files of the folder by their path; None for a web server, which cannot be listed.
        has_manifest: Whether a manifest lists the videos.
    """

    base: SourceUri
    videos: Sequence[VideoSpec]
    files: Mapping[str, ListedFile] | None
    has_manifest: bool

    def place(self, videos: Sequence[VideoSpec]) -> list[VideoSpec]:
        """Return videos with complete URIs."""
        return [
            video
            if is_source_uri(video.uri)
            else video.model_copy(update={"uri": self.base.text + _encode(self.base, video.uri)})
            for video in videos
        ]


def list_remote_videos(
    source: str, reader: SourceReader, encoding: str | None = None, captions_from_names: bool = False
) -> RemoteVideos:
    """List the videos of a folder in an object store, or of a manifest in an object store or on a web server.

    Args:
        source: URI of the folder or the manifest.
        reader: Access to the source.
        encoding: Encoding of the manifest or the sidecar files; None is UTF-8.
        captions_from_names: Whether the file name becomes the caption of a video without captions.

    Raises:
        InvalidInput: the source is not allowed, has no videos, or its manifest is invalid or names missing files.
        SourceUnavailable: the source cannot be reached at the moment.
    """
    try:
        return _list(source, reader, encoding or "utf-8", captions_from_names)
    except SourceOutage as error:
        raise SourceUnavailable(error.reason) from error
    except MediaError as error:
        raise InvalidInput.at("source", f"{error.reason}.") from error


def _list(source: str, reader: SourceReader, encoding: str, captions_from_names: bool) -> RemoteVideos:
    named = SourceUri.parse(source)
    manifest = named.segments[-1] if named.segments[-1].endswith(_MANIFEST_SUFFIXES) else None
    folder = source.partition("?")[0] if named.port is not None else source
    base = SourceUri.parse(folder[: folder.rindex("/") + 1] if manifest else folder.rstrip("/") + "/")
    files: dict[str, ListedFile] | None = None
    if manifest is None or named.port is None:
        files = {file.name: file for file in reader.list_files(base)}
        manifest = manifest or next((n for n in (*MANIFEST_NAMES, *TYPED_MANIFEST_NAMES) if n in files), None)
    if manifest is not None:
        uri = named if named.segments[-1] == manifest else SourceUri.parse(base.text + manifest)
        videos = parse_manifest(io.BytesIO(reader.read(uri, _MAX_MANIFEST_BYTES)), manifest, encoding)
        _check_paths(videos, files)
    else:
        videos = _read_folder(base, reader, files or {}, encoding)
    if captions_from_names:
        videos = list(map(add_caption_from_name, videos))
    return RemoteVideos(base, videos, files, manifest is not None)


def _read_folder(
    base: SourceUri, reader: SourceReader, files: Mapping[str, ListedFile], encoding: str
) -> list[VideoSpec]:
    names = [name for name in files if PurePosixPath(name).suffix.lower() in VIDEO_SUFFIXES]
    if not names:
        raise InvalidInput.at(
            "source",
            f"There are no videos in {base.shown}.",
            f"Expected a manifest, or files ending in {', '.join(sorted(VIDEO_SUFFIXES))}.",
        )

    def open_sidecar(name: str) -> BinaryIO | None:
        if name not in files:
            return None
        return io.BytesIO(reader.read(SourceUri.parse(base.text + name), _MAX_MANIFEST_BYTES))

    return [read_sidecars(name, open_sidecar, encoding) for name in sorted(names)]


def _check_paths(videos: Sequence[VideoSpec], files: Mapping[str, ListedFile] | None) -> None:
    """Refuse paths outside of the folder, and files that the listing does not have."""
    relative = [video.uri for video in videos if not is_source_uri(video.uri)]
    outside = [uri for uri in relative if uri.startswith("/") or "://" in uri or ".." in uri.split("/")]
    if outside:
        raise InvalidInput.at(
            "source",
            f"The manifest names files outside of its folder: {', '.join(outside[:_MAX_LISTED])}.",
            "Write paths relative to the manifest's folder, or complete URIs.",
        )
    missing = [uri for uri in relative if uri not in files] if files is not None else []
    if missing:
        more = f" and {len(missing) - _MAX_LISTED} more" if len(missing) > _MAX_LISTED else ""
        raise InvalidInput.at(
            "source",
            f"{len(missing)} files of the manifest do not exist: {', '.join(missing[:_MAX_LISTED])}{more}.",
            "Paths in a manifest are relative to the manifest's folder.",
        )


def _encode(base: SourceUri, path: str) -> str:
    return path if base.port is None else quote(path)
