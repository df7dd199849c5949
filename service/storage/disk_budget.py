"""Estimate the disk space that a task's videos will need, before the task is stored."""

from __future__ import annotations

import math
import shutil
from functools import lru_cache
from pathlib import Path

from sqlalchemy import func, select

from index.errors import ShardStoreError
from index.files.store_folder import StoreFolder
from service.catalog.database import session_scope
from service.catalog.tables import ACTIVE_STATES, Task, Video
from service.core.errors import InsufficientStorage
from service.core.settings import settings
from service.storage.library_backbone import library_backbone

RESERVE_BYTES = 128 * 1024**2  # kept free for the catalog, logs and the broker
_THUMBNAIL_BYTES = 20 * 1024  # that of a photographed scene, 320 pixels wide, has 10 to 25 KB
# For a library without measurements: a vector of 512 dimensions in half precision, and its search structure.
_SHARD_BYTES = 4 * 1024
_RELEASE_BYTES = 64 * 1024**2
_CATALOG_BYTES = 4 * 1024  # per video: its row, captions, indexes and events
_RELEASE_COPIES = 4  # the release, its staged copy, and two training checkpoints
_DEFAULT_FRAME_BYTES = 8 * 224 * 224 * 3


def require_disk_space(
    videos: int, *, files_bytes: int = 0, is_append: bool = False, backbone: str | None = None
) -> None:
    """Refuse videos that do not fit on the data folder's disk, before anything is stored; raise InsufficientStorage.

    Pending videos in unfinished tasks count, too, and so do the bytes of files that the request itself stores. An
    append writes no release. Without a backbone, it is that of a new domain.
    """
    with session_scope() as session:
        pending = session.scalar(
            select(func.count())
            .select_from(Video)
            .join(Task)
            .where(Task.state.in_(ACTIVE_STATES), Video.status == "pending")
        )
    needed = (
        estimate_task_bytes(videos + (pending or 0), is_append=is_append, backbone=backbone) + files_bytes
    )
    data = settings().data_dir
    existing = next(folder for folder in (data, *data.parents) if folder.exists())
    free = max(0, shutil.disk_usage(existing).free - RESERVE_BYTES)
    if needed > free:
        raise InsufficientStorage(needed, free)


def estimate_task_bytes(videos: int, *, is_append: bool = False, backbone: str | None = None) -> int:
    """Estimate how many bytes videos occupy at most while their task is processed.

    Sampled frames dominate; they are deleted when the task is ready. Vectors and releases are assumed to be as large as
    the library's, if it has any.
    """
    shard_bytes, release_bytes = _index_bytes(settings().index_dir)
    per_video = (
        _frame_cache_bytes(backbone or library_backbone(), settings().frames)
        + _THUMBNAIL_BYTES
        + shard_bytes
        + _CATALOG_BYTES
    )
    return videos * per_video + (0 if is_append else _RELEASE_COPIES * release_bytes)


@lru_cache(maxsize=4)
def _frame_cache_bytes(backbone: str, frames: int | None) -> int:
    """Compute how many bytes a video's sampled frames occupy."""
    # Imported here: command-line clients do not need the library of backbones.
    from models.backbones.backbone_loading import frame_spec
    from models.errors import ModelError

    try:
        spec = frame_spec(backbone, frames)
    except ModelError:  # the workers report it
        return _DEFAULT_FRAME_BYTES
    return spec.frames * math.prod(spec.shape) * 3


def _index_bytes(folder: Path) -> tuple[int, int]:
    """Measure the mean bytes per video in the shards, and the largest release with its training state."""
    try:
        manifest = StoreFolder(folder).manifest()
    except ShardStoreError:
        return _SHARD_BYTES, _RELEASE_BYTES
    segments = [entry for entry in manifest.all_segments() if entry.count]
    rows = sum(entry.count for entry in segments)
    shard_bytes = sum(entry.bytes for entry in segments) // rows if rows else _SHARD_BYTES
    release_bytes = max((entry.bytes for entry in manifest.releases.values()), default=_RELEASE_BYTES)
    return shard_bytes, release_bytes + max((entry.bytes for entry in manifest.training.values()), default=0)
