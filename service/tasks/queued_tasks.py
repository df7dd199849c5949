"""Storage of new tasks: a queued task and its pending videos."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from itertools import islice
from typing import Any

from sqlalchemy import insert
from sqlalchemy.orm import Session

from cinestrata_schemas.tasks import StageTimes, TaskProgress, VideoCounts
from service.catalog.database import now
from service.catalog.tables import Task, Video
from service.catalog.task_names import assign_slug
from service.core.request_ids import current_request_id
from service.tasks.task_events import record

__all__ = ["insert_queued_task", "new_id"]

_INSERTED_ROWS = 1000  # videos of one statement


def insert_queued_task(
    session: Session, task: Task, videos: Iterable[dict[str, Any]], times: StageTimes
) -> None:
    """Insert a task in the state ``queued`` with its videos, and record its first event.

    Args:
        session: Session that holds the lock of the queue, see ``service.tasks.lifecycle.state_machine.next_position``.
        task: Task with its id, position, name, method and settings, and the domain that it appends to or relearns.
        videos: Columns of each video: ``uri``, ``captions``, ``extra`` and others; an ``id`` is generated if absent.
        times: Number of videos, and whether they have captions.
    """
    task.state, task.created_at, task.request_id = "queued", now(session), current_request_id()
    task.progress = TaskProgress(stage="queued", times=times).model_dump(exclude_none=True)
    task.counts = VideoCounts(videos=times.videos).model_dump()
    if task.target_id is None:
        assign_slug(session, task)
    session.add(task)
    session.flush()
    shared = {"task_id": task.id, "added_at": task.created_at, "status": "pending"}
    rows = ({"id": new_id("vid"), **video, **shared} for video in videos)
    while batch := list(islice(rows, _INSERTED_ROWS)):
        session.execute(insert(Video), batch)
    record(session, task.id, "state", {"state": "queued", "from": None}, task.created_at)


def new_id(prefix: str) -> str:
    """Return a random identifier of a task (``tsk``), a video (``vid``) or a sync (``syn``)."""
    return f"{prefix}_{secrets.token_hex(8)}"
