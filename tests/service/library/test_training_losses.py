"""The loss of a task's training, read from its progress events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest

from cinestrata_schemas.tasks import TaskDetails
from service.catalog.database import session_scope
from service.catalog.tables import Task
from service.core.errors import NotFound
from service.core.settings import Settings
from service.library import training_losses
from service.library.training_losses import read_loss_curve
from service.tasks import task_events

Post = Callable[..., TaskDetails]


def _record(task_id: str, steps: Sequence[tuple[float, float | None]], stage: str = "training") -> None:
    with session_scope(write=True) as session:
        for fraction, loss in steps:
            data: dict[str, Any] = {"stage": stage, "fraction": fraction, "epoch": 1, "loss": loss}
            task_events.record(
                session,
                task_id,
                "progress",
                {name: value for name, value in data.items() if value is not None},
            )


def _set(task_id: str, **values: Any) -> None:
    with session_scope(write=True) as session:
        task = session.get_one(Task, task_id)
        for name, value in values.items():
            setattr(task, name, value)


def test_losses_are_those_of_the_training_in_order(catalog: Settings, post: Post) -> None:
    task = post()
    _record(task.id, [(0.5, None)], stage="probing")
    _record(task.id, [(0.1, 4.0), (0.6, 2.5), (1.0, 1.25)])
    _record(task.id, [(0.5, 9.0)], stage="indexing")
    curve = read_loss_curve(task.id)
    assert [(point.fraction, point.loss, point.epoch) for point in curve.points] == [
        (0.1, 4.0, 1),
        (0.6, 2.5, 1),
        (1.0, 1.25, 1),
    ]
    assert curve.reason is None


def test_resumed_training_replaces_repeated_steps(sqlite_catalog: Settings, post: Post) -> None:
    task = post()
    _record(task.id, [(0.2, 5.0), (0.4, 4.0), (0.6, 3.0)])
    _record(task.id, [(0.3, 4.5), (0.7, 2.0)])
    points = read_loss_curve(task.id).points
    assert [(point.fraction, point.loss) for point in points] == [(0.2, 5.0), (0.3, 4.5), (0.7, 2.0)]
    _record(task.id, [(0.0, 6.0)])
    assert [point.loss for point in read_loss_curve(task.id).points] == [6.0]


def test_long_training_is_thinned_out(
    sqlite_catalog: Settings, post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_losses, "MAX_LOSS_POINTS", 40)
    task = post()
    _record(task.id, [(number / 150, 150.0 - number) for number in range(1, 151)])
    points = read_loss_curve(task.id).points
    assert len(points) == 40
    assert (points[0].loss, points[-1].loss) == (149.0, 0.0)
    gaps = {round(before.loss - after.loss) for before, after in pairwise(points)}
    assert gaps <= {3, 4}


def test_missing_losses_have_a_reason(sqlite_catalog: Settings, post: Post) -> None:
    task = post()
    assert read_loss_curve(task.id).reason == "The training has not begun."
    _set(task.id, state="ready")
    assert "without training" in (read_loss_curve(task.id).reason or "")
    _set(task.id, trained=True, method="analytic")
    assert "no longer stored" in (read_loss_curve(task.id).reason or "")
    _record(task.id, [(1.0, None)])
    assert read_loss_curve(task.id).reason == "The method 'analytic' learns in closed form, without a loss."
    _set(task.id, target_id="tsk_other")
    assert "Appended videos" in (read_loss_curve(task.id).reason or "")


def test_unknown_task_is_refused(sqlite_catalog: Settings) -> None:
    with pytest.raises(NotFound, match="no task 'nowhere'"):
        read_loss_curve("nowhere")
