"""Where files lie: what a task's URIs mean, and thumbnails."""

from __future__ import annotations

from pathlib import Path

from media import MediaError, resolve_uri
from service.core.settings import settings

__all__ = ["UPLOAD_SCHEME", "recall_cache_path", "resolve_video_path", "thumbnail_path"]

UPLOAD_SCHEME = "upload://"  # upload://<task id>/<path>: a file of an archive that was posted


def resolve_video_path(uri: str) -> Path:
    """The file that a video's URI names.

    Raises:
        MediaError: it lies outside the media root (or, for an upload, outside the uploads).
    """
    if uri.startswith(UPLOAD_SCHEME):
        inside = uri.removeprefix(UPLOAD_SCHEME)
        if inside.startswith(("/", "file:")):
            raise MediaError("An upload is named upload://<task>/<path>.")
        return resolve_uri(inside, settings().uploads_dir)
    return resolve_uri(uri, settings().media_root)


def thumbnail_path(video_id: str) -> Path:
    """Where the thumbnail of a video is, or will be."""
    return settings().thumbnails_dir / f"{video_id}.jpg"


def recall_cache_path() -> Path:
    """What the worker has counted for the recall matrix; may be deleted at any time."""
    return settings().index_dir / "ledger.npz"
