"""Paths in the data folder and the media root, and write access to the data folder."""

from __future__ import annotations

import posixpath
import re
import tempfile
from pathlib import Path

from media import MediaError, resolve_uri
from service.core.errors import DataFolderNotWritable
from service.core.settings import Settings, settings

UPLOAD_SCHEME = "upload://"  # upload://<task id>/<path>: a file in a posted archive
UPLOAD_FOLDER = re.compile(r"tsk_[0-9a-f]{16}")  # other folders in uploads_dir belong to users


def normalize_uri(uri: str) -> str:
    """Normalize a video's URI to the form that the catalog stores.

    Upload URIs are compared as strings, so they have no empty segments, ``.`` or ``..``.
    """
    if not uri.startswith(UPLOAD_SCHEME):
        return uri
    return UPLOAD_SCHEME + posixpath.normpath(uri.removeprefix(UPLOAD_SCHEME))


def resolve_video_path(uri: str) -> Path:
    """Resolve a video's URI to its file.

    Raises:
        MediaError: The file is outside the media root or, for an upload, outside the uploads folder.
    """
    if uri.startswith(UPLOAD_SCHEME):
        inside = uri.removeprefix(UPLOAD_SCHEME)
        if inside.startswith(("/", "file:")):
            raise MediaError("The URI of an upload is upload://<task>/<path>.")
        return resolve_uri(inside, settings().uploads_dir)
    return resolve_uri(uri, settings().media_root)


def thumbnail_path(video_id: str) -> Path:
    """Name the file of a video's thumbnail, which may not exist yet."""
    return settings().thumbnails_dir / f"{video_id}.jpg"


def recall_cache_path() -> Path:
    """Name the file in which version 1.0.0 kept query vectors of captions; nothing reads it."""
    return settings().index_dir / "ledger.npz"


def require_writable(*folders: Path) -> None:
    """Create each missing folder, and create and remove a file in each.

    Raises:
        DataFolderNotWritable: A folder cannot be written; the error names it.
    """
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
