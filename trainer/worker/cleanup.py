"""Removal of files that a finished or abandoned learning job leaves."""

from __future__ import annotations

import shutil

import structlog
from sqlalchemy import select

from service.catalog.database import session_scope
from service.catalog.tables import ACTIVE_STATES, Task
from service.core.errors import Unavailable
from service.core.settings import settings
from service.library.compaction import sweep_index
from service.storage.video_files import delete_unneeded_frames, remove_deleted_files
from trainer.task_data import TaskData

log = structlog.get_logger(__name__)


def clean_up(task: TaskData) -> None:
    """Remove checkpoints, frame caches and rejected uploads of a ready task, and index files that no task needs.

    Failures are logged, since nothing depends on the removal; the maintenance deletes the frame caches and uploads that
    remain.
    """
    try:
        remove_checkpoints(task.task_id)
        sweep_index()
        delete_unneeded_frames({clip.frames_path.stem for clip in task.clips})
        remove_deleted_files()
    except (OSError, Unavailable) as error:
        log.warning("cleanup_failed", task=task.task_id, error=str(error))


def remove_checkpoints(task_id: str) -> None:
    """Remove the checkpoints of a task."""
    shutil.rmtree(settings().checkpoints_dir / task_id, ignore_errors=True)


def remove_other_checkpoints(task_id: str) -> None:
    """Remove the checkpoints of all tasks except this one and unfinished appends, which run at the same time.

    Raises:
        Unavailable: The catalog is unreachable.
    """
    folder = settings().checkpoints_dir
    others = [path for path in folder.iterdir() if path.name != task_id] if folder.is_dir() else []
    # Queried after the listing, so that every listed folder of an append belongs to a task that the catalog has.
    with session_scope() as session:
        unfinished = Task.state.in_(ACTIVE_STATES) & Task.target_id.is_not(None)
        appends = set(session.scalars(select(Task.id).where(unfinished)))
    for path in others:
        if path.name not in appends:
            shutil.rmtree(path, ignore_errors=True)
