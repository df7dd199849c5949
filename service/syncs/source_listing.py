"""Listing of sources: the files of a local folder or manifest, with size, time and content."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from media import content_hash
from service.core.errors import InvalidInput
from service.core.schemas import VideoSpec
from service.core.settings import settings
from service.syncs.sync_plan import SourceFile
from service.tasks.manifests.folder_videos import list_folder_videos

__all__ = ["list_local_source", "local_files", "resolve_source"]

_MAX_LISTED = 20


def resolve_source(source: str) -> Path:
    """Return the folder or manifest of a source below the media root.

    Raises:
        InvalidInput: the source is outside of the media root, or does not exist.
    """
    hint = "Name a folder below the media root, or its manifest."
    if "://" in source:
        raise InvalidInput.at("source", "The source is not a local folder.", hint)
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


def list_local_source(path: Path, captions_from_names: bool) -> tuple[Path, list[SourceFile]]:
    """Return the files of a folder or manifest, and the folder that their URIs are relative to.

    Raises:
        InvalidInput: the source has no videos, a file of its manifest is missing, or the manifest is invalid or gives
            ids.
        OSError: a file cannot be read.
    """
    base, videos, _ = list_folder_videos(path, captions_from_names=captions_from_names)
    return base, list(local_files(base, videos))


def local_files(base: Path, videos: Sequence[VideoSpec]) -> Iterator[SourceFile]:
    """Yield the files of videos of a local folder.

    Raises:
        InvalidInput: a file is missing, or a video has an id, which a sync derives from path and content.
    """
    if named := next((video.id for video in videos if video.id is not None), None):
        raise InvalidInput.at(
            "id",
            f"The manifest gives the id {named!r}, but a sync derives ids from paths and contents.",
            "Omit the ids.",
        )
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
