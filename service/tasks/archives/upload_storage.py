"""Folders of unpacked archives, and removal of those without a task."""

from __future__ import annotations

import math
import os
import shutil
import time
from datetime import timedelta
from pathlib import Path

from sqlalchemy import exists, select

from service.catalog.database import id_chunks, session_scope
from service.catalog.tables import Task, Video
from service.core.settings import settings
from service.storage import index_manifest
from service.storage.library_paths import UPLOAD_FOLDER

# A running upload writes all the time, and its task is stored within seconds after unpacking, so an upload that nothing
# has written to for a day is abandoned. The age counts from the ctime, which no copy preserves: uploads restored from a
# backup before their catalog have a day, too.
_ABANDONED_AFTER = timedelta(days=1)


def remove_upload(upload: str) -> None:
    """Delete the unpacked files of a task that was not stored."""
    shutil.rmtree(settings().uploads_dir / upload, ignore_errors=True)


def renew_uploads() -> list[str]:
    """Restart the day after which unpacked files without a task are deleted; returns the names of their folders.

    A restored catalog has no tasks for uploads that are newer than its backup.

    Raises:
        OSError: a folder cannot be changed.
    """
    uploads = _list_uploads()
    for name in uploads:
        os.utime(settings().uploads_dir / name)
    return uploads


def find_unstored_uploads() -> list[str]:
    """Return the names of the folders of unpacked files whose task is not stored.

    A folder whose task has a shard in the index is not among them, nor is one whose files a video of another task is
    named by, even if the row of its task is gone.

    Raises:
        Unavailable: the catalog or the index cannot be read.
    """
    uploads = _list_uploads()
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
            and not session.scalar(select(exists().where(Video.uri.contains(name, autoescape=True))))
        ]
    if orphans:
        published = index_manifest.read_manifest().shards
        orphans = [name for name in orphans if name not in published]
    return orphans


def sweep_uploads() -> list[str]:
    """Delete unpacked files of tasks that are not stored, because their process was killed or the commit failed.

    Returns:
        Names of the deleted folders, which nothing has written to for a day.

    Raises:
        Unavailable: the catalog or the index cannot be read; nothing was deleted.
    """
    folder = settings().uploads_dir
    abandoned_before = time.time() - _ABANDONED_AFTER.total_seconds()
    abandoned = [name for name in find_unstored_uploads() if _last_change(folder / name) < abandoned_before]
    for name in abandoned:
        remove_upload(name)
    return abandoned


def _list_uploads() -> list[str]:
    return sorted(
        path.name
        for path in settings().uploads_dir.glob("tsk_*")
        if UPLOAD_FOLDER.fullmatch(path.name) and path.is_dir()
    )


def _last_change(folder: Path) -> float:
    """Return the newest ctime in a folder, in seconds since the epoch; infinity if another process removes it."""
    try:
        return max(path.lstat().st_ctime for path in (folder, *folder.rglob("*")))
    except FileNotFoundError:
        return math.inf
