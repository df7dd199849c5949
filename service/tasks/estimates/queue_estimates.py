"""Remaining time of unfinished tasks, with the time in which they wait for the tasks ahead of them."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.catalog.tables import ACTIVE_STATES, Task
from service.tasks.estimates.stage_history import StageHistory
from service.tasks.estimates.task_estimator import STAGES, seconds_from

__all__ = ["remaining_seconds"]

_LEARNING = STAGES[1]


def remaining_seconds(session: Session) -> dict[str, float | None]:
    """Estimate the seconds until each unfinished task is ready.

    Videos are probed in the order of the tasks, and domains are learned in this order, each after its probing. Appends
    do not wait for domains.

    Returns:
        Seconds by task id; None where the rate of the task, or of a task ahead of it, is unknown.
    """
    history = StageHistory(session)
    remaining: dict[str, float | None] = {}
    probed: float | None = 0.0
    learned: float | None = 0.0
    for task in session.scalars(select(Task).where(Task.state.in_(ACTIVE_STATES)).order_by(Task.position)):
        probing, learning = _seconds_left(task, history)
        own: float | None = 0.0
        if task.probed_at is None:
            own = probed = None if probed is None or probing is None else probed + probing
        if task.target_id is not None:
            end = None if own is None or learning is None else own + learning
        else:
            known = own is not None and learned is not None and learning is not None
            end = learned = max(own or 0.0, learned or 0.0) + (learning or 0.0) if known else None
        remaining[task.id] = None if end is None else round(end, 1)
    return remaining


def _seconds_left(task: Task, history: StageHistory) -> tuple[float | None, float | None]:
    """Seconds of probing, and of all later stages."""
    is_claimed = task.lease_owner is not None
    if is_claimed and task.probed_at is not None:
        return 0.0, task.eta_seconds
    expected = history.expected_seconds(task)
    stage, share = task.progress.get("stage", ""), task.progress.get("fraction") or 0.0
    if task.probed_at is not None:
        first = stage if stage in STAGES[1:] else _LEARNING
        return 0.0, seconds_from(expected, first, share=share if first == stage else 0.0)
    learning = seconds_from(expected, _LEARNING)
    if is_claimed:
        return task.progress.get("eta_seconds"), learning
    if task.progress.get("outages"):  # the end of the outage is unknown
        return None, learning
    whole = (expected or {}).get("probing")
    return None if whole is None else whole * (1 - share if stage == "probing" else 1.0), learning
