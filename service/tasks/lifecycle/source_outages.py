"""Tasks whose source is unavailable: they are repeated with growing pauses, and fail after about two hours."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from cinestrata_schemas.problems import Action
from cinestrata_schemas.tasks import StageTimes, TaskProgress
from service.catalog.database import now
from service.catalog.tables import Task, Video
from service.core.errors import SourceUnavailable
from service.tasks.lifecycle.state_machine import clear_lease, set_state
from service.tasks.task_events import record

MAX_OUTAGES = 12  # attempts in a row in which no video was finished
_FIRST_PAUSE = 30.0  # seconds; each further pause is twice as long
_MAX_PAUSE = 900.0


def postpone(session: Session, task: Task, former: Mapping[str, Any], error: SourceUnavailable) -> None:
    """Give a task back until its source may be available again; the attempt does not count. Or fail it.

    Args:
        session: Transaction that locks the task.
        former: Progress of the task when it was claimed.
        error: The outage.
    """
    finished = session.scalar(select(func.count()).where(Video.task_id == task.id, Video.status != "pending"))
    outages = 1 + (int(former.get("outages") or 0) if former.get("done") == finished else 0)
    if outages > MAX_OUTAGES:
        set_state(
            session,
            task,
            "failed",
            error=error.detail,
            hint=f"No video was rejected for this. Make {error.awaited} available, then retry the task.",
            remedy=Action(name="retry_task", id=task.id),
        )
        return
    pause = min(_FIRST_PAUSE * 2 ** (outages - 1), _MAX_PAUSE)
    clear_lease(task)
    task.lease_expires_at = now(session) + timedelta(
        seconds=pause
    )  # without an owner: nobody may claim it earlier
    task.attempts = max(task.attempts - 1, 0)
    task.progress = TaskProgress(
        stage=f"waiting for {error.awaited}",
        done=finished,
        outages=outages,
        times=StageTimes.of(task.progress),
    ).model_dump(exclude_none=True)
    record(session, task.id, "log", {"message": f"{error.detail} The task is repeated in {pause:.0f} s."})
