"""Folders of unpacked archives, and removal of those without a task."""

from __future__ import annotations

import math
import re
import shutil
import time
from datetime import timedelta
from pathlib import Path

from sqlalchemy import exists, select

from service.catalog.database import id_chunks, session_scope
from service.catalog.tables import Task, Video
from service.core.settings import settings
from service.storage import index_manifest

__all__ = ["remove_upload", "sweep_uploads"]

_UPLOAD_NAME = re.compile(r"tsk_[0-9a-f]{16}")  # other folders in uploads_dir are not touched
# A running upload writes all the time, and its task is stored within seconds after unpacking, so an upload that nothing
# has written to for a day is abandoned. The age counts from the ctime, which no copy preserves: uploads restored from a
# backup before their catalog have a day, too.
_ABANDONED_AFTER = timedelta(days=1)


def remove_upload(upload: str) -> None:
    """Delete the unpacked files of a task that was not stored."""
    shutil.rmtree(settings().uploads_dir / upload, ignore_errors=True)


def sweep_uploads() -> list[str]:
    """Delete unpacked files of tasks that are not stored, because their process was killed or the commit failed.

    A folder stays if the index has a shard of its task, or if a video of another task is named by a path through it,
    even if the row of its task is gone.

    Returns:
        Names of the deleted folders.

    Raises:
        Unavailable: the catalog or the index cannot be read; nothing was deleted.
    """
    folder = settings().uploads_dir
    abandoned_before = time.time() - _ABANDONED_AFTER.total_seconds()
    uploads = sorted(
        path.name for path in folder.glob("tsk_*") if _UPLOAD_NAME.fullmatch(path.name) and path.is_dir()
    )
    with session_scope() as session:
        stored = {
            task
            for chunk in id_chunks(uploads)
            for task in session.scalars(select(Task.id).where(Task.id.in_(chunk)))
        }
        orphans = [
            name
            for name in uploads
            if name not in stored
            and _last_change(folder / name) < abandoned_before
            and not session.scalar(select(exists().where(Video.uri.contains(name, autoescape=True))))
        ]
    if orphans:
        published = index_manifest.read_manifest().shards
        orphans = [name for name in orphans if name not in published]
    for name in orphans:
        remove_upload(name)
    return orphans


def _last_change(folder: Path) -> float:
    """Return the newest ctime in a folder, in seconds since the epoch; infinity if another process removes it."""
    try:
        return max(path.lstat().st_ctime for path in (folder, *folder.rglob("*")))
    except FileNotFoundError:
        return math.inf
