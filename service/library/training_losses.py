"""The curve of a task's training loss, from its progress events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import select

from cinestrata_schemas.explanations import LossCurve, LossPoint
from service.catalog.database import session_scope
from service.catalog.tables import Event, Task
from service.catalog.task_names import require_task

__all__ = ["MAX_LOSS_POINTS", "read_loss_curve"]

MAX_LOSS_POINTS = 400  # more than a chart has pixels per point


def read_loss_curve(name_or_id: str) -> LossCurve:
    """Return the losses of a task's training.

    Workers record the loss of a step at most twice per second. A training that was resumed or repeated replaces the
    steps that it has done again.

    Args:
        name_or_id: Name or identifier of the task.

    Raises:
        NotFound: the task does not exist.
    """
    with session_scope() as session:
        task = require_task(session, name_or_id)
        events = session.execute(
            select(Event.at, Event.data)
            .where(Event.task_id == task.id, Event.kind == "progress")
            .order_by(Event.id)
        )
        training = [(at, data) for at, data in events if data.get("stage") == "training"]
        points = _thinned(_last_training(training))
        reason = None if points else _reason(task, bool(training))
        return LossCurve(task_id=task.id, method=task.method, points=points, reason=reason)


def _last_training(events: Iterable[tuple[datetime, dict[str, Any]]]) -> list[LossPoint]:
    points: list[LossPoint] = []
    for at, data in events:
        fraction = data.get("fraction", 0.0)
        while points and points[-1].fraction >= fraction:
            points.pop()
        if data.get("loss") is not None:
            points.append(LossPoint(at=at, epoch=data.get("epoch"), fraction=fraction, loss=data["loss"]))
    return points


def _thinned(points: Sequence[LossPoint]) -> list[LossPoint]:
    """At most ``MAX_LOSS_POINTS`` of the points at even distances, with the first and the last one."""
    last = MAX_LOSS_POINTS - 1
    if len(points) <= MAX_LOSS_POINTS:
        return list(points)
    return [points[round(place * (len(points) - 1) / last)] for place in range(MAX_LOSS_POINTS)]


def _reason(task: Task, has_trained: bool) -> str:
    """Reason why a task has no losses."""
    if task.target_id is not None:
        return "Appended videos are embedded without training."
    if has_trained:
        return f"The method {task.method!r} learns in closed form, without a loss."
    if task.state == "ready":
        if task.trained:
            return "The events of the training are no longer stored."
        return "The domain was indexed without training, because no training video has a caption."
    return "The training has not begun."
