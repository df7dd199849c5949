"""Where files lie: what a task's URIs mean, thumbnails, and what the index has published."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import func, select

from index.errors import ManifestError, ShardStoreError
from index.files.manifest_format import Manifest
from index.shard_store import ShardStore
from media import MediaError, resolve_uri
from service.catalog.database import session_scope
from service.catalog.tables import Task
from service.core.errors import Unavailable
from service.core.settings import settings

__all__ = ["UPLOAD_SCHEME", "is_published", "ledger", "locate", "manifest", "require_found", "thumbnail"]

UPLOAD_SCHEME = "upload://"  # upload://<task id>/<path>: a file of an archive that was posted


def locate(uri: str) -> Path:
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


def thumbnail(video_id: str) -> Path:
    """Where the thumbnail of a video is, or will be."""
    return settings().thumbnails_dir / f"{video_id}.jpg"


def ledger() -> Path:
    """What the worker has counted for the recall matrix; may be deleted at any time."""
    return settings().index_dir / "ledger.npz"


def is_published(task_id: str) -> bool:
    """Whether the index already shows the task's shard.

    The manifest is replaced just before the catalog commits. When a worker dies in between, the shard is
    out and only the catalog's rows are missing: such a task must be finished, not failed or cancelled.

    Raises:
        Unavailable: the manifest cannot be read.
    """
    return task_id in manifest().shards


def manifest() -> Manifest:
    """What is published; nothing, where there is no index yet.

    Raises:
        Unavailable: it cannot be read.
    """
    if not settings().index_dir.exists():
        return Manifest.empty()
    try:
        return ShardStore(settings().index_dir).manifest()
    except ShardStoreError as error:
        raise Unavailable(f"The index cannot be read: {error}", 30) from error


def require_found(published: Manifest) -> None:
    """A lost manifest must not be taken for an empty library: nobody would be told, and the next task that is laid down
    would begin a new one, which does not name what is there.

    Raises:
        ManifestError: nothing is published, and the catalog knows of tasks that were.
        Unavailable: the catalog cannot be reached.
    """
    if published.release is not None:
        return
    with session_scope() as session:
        laid_down = session.scalar(select(func.count()).where(Task.learned_order.is_not(None)))
    if laid_down:
        raise ManifestError(
            f"manifest.json is gone, and the catalog says that domains were laid down ({laid_down}); restore it from a "
            "backup"
        )
