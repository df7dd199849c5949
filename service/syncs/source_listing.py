"""Listing of sources: the files of a folder or manifest, with size, time and content or version."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from media import MediaError, content_hash
from media.sources.source_uris import SourceUri, is_source_uri, redact_uri
from service.core.errors import InvalidInput
from service.core.schemas import VideoSpec
from service.core.settings import settings
from service.storage.video_access import SourceReader, find_allowed_prefix
from service.syncs.sync_plan import SourceFile
from service.tasks.manifests.folder_videos import list_folder_videos
from service.tasks.manifests.remote_videos import RemoteVideos, list_remote_videos

__all__ = ["ListedSource", "check_source", "list_source", "local_files", "remote_files"]

_MAX_LISTED = 20


@dataclass(frozen=True)
class ListedSource:
    """Files of a source.

    Attributes:
        files: The files; the URIs of their videos are relative to the source.
        place: Completes the URIs of videos, as tasks name them.
    """

    files: list[SourceFile]
    place: Callable[[Sequence[VideoSpec]], list[VideoSpec]]


def check_source(source: str) -> None:
    """Check that a source is an allowed folder or manifest, before a sync of it is stored.

    Raises:
        InvalidInput: the source is not allowed, cannot be listed, or does not exist.
    """
    if not is_source_uri(source):
        _resolve(source)
        return
    try:
        folder = SourceUri.parse(source.rstrip("/") + "/")
        if folder.port is not None:
            raise MediaError(f"{folder.shown!r} is on a web server, which cannot be listed")
        find_allowed_prefix(folder)
    except MediaError as error:
        raise InvalidInput.at("source", f"{error.reason}.", "Name a folder of an allowed source.") from error


def list_source(source: str, captions_from_names: bool) -> ListedSource:
    """Return the files of a folder or manifest below the media root, or in an allowed source.

    Raises:
        InvalidInput: the source is not allowed, has no videos, a file of its manifest is missing, or the manifest is
            invalid or gives ids.
        SourceUnavailable: a remote source cannot be reached at the moment.
        OSError: a local file cannot be read.
    """
    if is_source_uri(source):
        listing = list_remote_videos(source, SourceReader(), captions_from_names=captions_from_names)
        return ListedSource(list(remote_files(listing)), listing.place)
    base, videos, _ = list_folder_videos(
        _resolve(source), captions_from_names=captions_from_names, root=settings().media_root.resolve()
    )
    return ListedSource(list(local_files(base, videos)), partial(_place_below_media_root, base))


def _resolve(source: str) -> Path:
    """Return the folder or manifest of a source below the media root; raises InvalidInput."""
    hint = "Name a folder below the media root, or its manifest."
    if "://" in source:
        raise InvalidInput.at(
            "source", "The source is neither a local folder nor an s3:// or gs:// folder.", hint
        )
    root = settings().media_root.resolve()
    try:
        path = (root / source).resolve()  # the source may be an absolute path
        exists = path.exists()
    except (OSError, ValueError, RuntimeError):
        raise InvalidInput.at("source", "The path cannot be read.", hint) from None
    if not path.is_relative_to(root):
        raise InvalidInput.at("source", "The folder is outside of the media root.", hint)
    if not exists:
        raise InvalidInput.at("source", f"{source!r} does not exist below the media root.", hint)
    return path


def _place_below_media_root(base: Path, videos: Sequence[VideoSpec]) -> list[VideoSpec]:
    """Videos with their paths below the media root; a file outside keeps its absolute path, and is refused."""
    root = settings().media_root.resolve()
    paths = ((video, (base / video.uri).resolve()) for video in videos)
    return [
        video.model_copy(update={"uri": str(path.relative_to(root) if path.is_relative_to(root) else path)})
        for video, path in paths
    ]


def remote_files(listing: RemoteVideos) -> Iterator[SourceFile]:
    """Yield the files of videos of a remote folder. Their versions, and not their contents, are compared.

    Raises:
        InvalidInput: the source cannot be listed, a video is outside of it, or a video has an id.
    """
    if listing.files is None:
        raise InvalidInput.at(
            "source",
            f"{listing.base.shown} is on a web server, which cannot be listed.",
            "Use `cinestrata ingest` with the manifest.",
        )
    _refuse_ids(listing.videos)
    for video in listing.videos:
        file = listing.files.get(video.uri)
        if file is None:
            raise InvalidInput.at(
                "source",
                f"{redact_uri(video.uri)} is outside of the folder {listing.base.shown}.",
                "A sync follows the files of one folder.",
            )
        version = f"{file.size}:{file.version}".encode()
        yield SourceFile(video, file.size, math.inf, hashlib.sha256(version).hexdigest)


def local_files(base: Path, videos: Sequence[VideoSpec]) -> Iterator[SourceFile]:
    """Yield the files of videos of a local folder.

    Raises:
        InvalidInput: a file is missing, or a video has an id, which a sync derives from path and content.
    """
    _refuse_ids(videos)
    missing = [video.uri for video in videos if not os.path.isfile(base / video.uri)]
    if missing:
        more = f" and {len(missing) - _MAX_LISTED} more" if len(missing) > _MAX_LISTED else ""
        raise InvalidInput.at(
            "source",
            f"{len(missing)} files of the source do not exist: {', '.join(missing[:_MAX_LISTED])}{more}.",
            "Paths in a manifest are relative to the manifest's folder.",
        )
    for video in videos:
        path = base / video.uri
        stat = path.stat()
        yield SourceFile(video, stat.st_size, stat.st_mtime, partial(content_hash, path))


def _refuse_ids(videos: Sequence[VideoSpec]) -> None:
    if named := next((video.id for video in videos if video.id is not None), None):
        raise InvalidInput.at(
            "id",
            f"The manifest gives the id {named!r}, but a sync derives ids from paths and contents.",
            "Omit the ids.",
        )
