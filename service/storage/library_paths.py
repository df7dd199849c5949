"""Paths in the data folder and the media root: videos, thumbnails, the evaluation ledger."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from media import MediaError, resolve_uri
from service.core.settings import settings

__all__ = [
    "UPLOAD_FOLDER",
    "UPLOAD_SCHEME",
    "normalize_uri",
    "recall_cache_path",
    "resolve_video_path",
    "thumbnail_path",
]

UPLOAD_SCHEME = "upload://"  # upload://<task id>/<path>: a file of an archive that was posted
UPLOAD_FOLDER = re.compile(r"tsk_[0-9a-f]{16}")  # other folders in uploads_dir belong to users


def normalize_uri(uri: str) -> str:
    """Return the URI of a video as the catalog stores it.

    URIs of uploads are compared as texts, so they contain neither empty segments nor ``.`` and ``..``.
    """
    if not uri.startswith(UPLOAD_SCHEME):
        return uri
    return UPLOAD_SCHEME + posixpath.normpath(uri.removeprefix(UPLOAD_SCHEME))


def resolve_video_path(uri: str) -> Path:
    """Return the file of a video's URI.

    Raises:
        MediaError: the file is outside the media root or, for an upload, outside the uploads folder.
    """
    if uri.startswith(UPLOAD_SCHEME):
        inside = uri.removeprefix(UPLOAD_SCHEME)
        if inside.startswith(("/", "file:")):
            raise MediaError("The URI of an upload is upload://<task>/<path>.")
        return resolve_uri(inside, settings().uploads_dir)
    return resolve_uri(uri, settings().media_root)


def thumbnail_path(video_id: str) -> Path:
    """Return the file of a video's thumbnail, which may not exist yet."""
    return settings().thumbnails_dir / f"{video_id}.jpg"


def recall_cache_path() -> Path:
    """Return the file of the worker's evaluation ledger; it may be deleted at any time."""
    return settings().index_dir / "ledger.npz"
