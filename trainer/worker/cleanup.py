"""Removal of files that a finished or abandoned learning job leaves."""

from __future__ import annotations

import shutil

import structlog

from index.errors import ShardStoreError
from index.shard_store import ShardStore
from service.core.settings import settings

__all__ = ["clean_up", "remove_checkpoints", "remove_other_checkpoints"]

log = structlog.get_logger(__name__)


def clean_up(store: ShardStore, task_id: str) -> None:
    """Remove the task's checkpoints and unpublished index files; failures are logged, since nothing depends on it."""
    try:
        remove_checkpoints(task_id)
        store.collect_garbage()
    except (OSError, ShardStoreError) as error:
        log.warning("cleanup_failed", task=task_id, error=str(error))


def remove_checkpoints(task_id: str) -> None:
    """Remove the checkpoints of a task."""
    shutil.rmtree(settings().checkpoints_dir / task_id, ignore_errors=True)


def remove_other_checkpoints(task_id: str) -> None:
    """Remove the checkpoints of all tasks except this one."""
    folder = settings().checkpoints_dir
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name != task_id:
            shutil.rmtree(path, ignore_errors=True)
