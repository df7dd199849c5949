"""Moves of waiting tasks in the queue."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from pydantic import ValidationError
from sqlalchemy import select, update

from cinestrata_schemas.tasks import TaskDetails, TaskMove
from service.catalog.database import session_scope
from service.catalog.tables import Task
from service.core.errors import Conflict, InvalidInput, NotFound
from service.core.settings import Settings
from service.tasks import commands, lifecycle
from service.tasks.queue_order import move_task

Post = Callable[..., TaskDetails]


def queue() -> list[str]:
    """Names of all tasks in the order of the queue."""
    with session_scope() as session:
        return list(session.scalars(select(Task.name).order_by(Task.position)))


def test_waiting_tasks_change_places(catalog: Settings, post: Post) -> None:
    ids = {name: post(name).id for name in ("a", "b", "c", "d")}
    move_task(ids["d"], TaskMove(to="front"))
    assert queue() == ["d", "a", "b", "c"]
    move_task(ids["a"], TaskMove(to="back"))
    assert queue() == ["d", "b", "c", "a"]
    move_task(ids["a"], TaskMove(before="C"))
    assert queue() == ["d", "b", "a", "c"]
    with session_scope() as session:
        assert sorted(session.scalars(select(Task.position))) == [1, 2, 3, 4]
    post("e")
    assert queue()[-1] == "e"


@pytest.mark.slow
def test_task_in_training_stays_first(catalog: Settings, post_probed: Post) -> None:
    first, second, third = (post_probed(name) for name in ("a", "b", "c"))
    claim = lifecycle.claim_training(first.id, "w")
    assert claim is not None
    move_task(third.id, TaskMove(to="front"))
    assert queue() == ["a", "c", "b"]
    assert lifecycle.claim_training(third.id, "w") is None
    with pytest.raises(Conflict, match="is being learned"):
        move_task(first.id, TaskMove(to="back"))
    with pytest.raises(InvalidInput, match="no waiting task"):
        move_task(second.id, TaskMove(before="a"))
    claim.advance("training")
    claim.release()  # the worker stops; the task continues from its checkpoint
    with pytest.raises(Conflict, match="is being learned"):
        move_task(first.id, TaskMove(to="back"))
    claim = lifecycle.claim_training(first.id, "w")
    assert claim is not None
    claim.fail("no good")
    assert lifecycle.claim_training(third.id, "w") is not None


def test_domain_takes_no_place_of_an_append_before_the_domain_in_training(
    sqlite_catalog: Settings, post_probed: Post
) -> None:
    append, first, second = (post_probed(name) for name in ("append", "a", "b"))
    with session_scope(write=True) as session:
        session.execute(update(Task).where(Task.id == append.id).values(target_id="tsk_x"))
    assert lifecycle.claim_training(first.id, "w") is not None
    move_task(second.id, TaskMove(to="front"))
    move_task(append.id, TaskMove(to="back"))
    assert queue() == ["append", "a", "b"]
    assert lifecycle.claim_training(second.id, "w") is None


def test_claims_and_moves_at_the_same_time_start_one_training(catalog: Settings, post_probed: Post) -> None:
    tasks = [post_probed(name) for name in ("a", "b", "c")]
    claims: list[lifecycle.Claim] = []
    together = threading.Barrier(4)

    def claim(task: TaskDetails) -> None:
        together.wait()
        for _ in range(5):
            if (claimed := lifecycle.claim_training(task.id, "w")) is not None:
                claims.append(claimed)

    def move() -> None:
        together.wait()
        for number in range(6):
            try:
                move_task(tasks[-1 - number % 2].id, TaskMove(to="front"))
            except Conflict:
                return  # it was claimed

    threads = [threading.Thread(target=claim, args=(task,)) for task in tasks]
    threads.append(threading.Thread(target=move))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(claims) == 1
    with session_scope() as session:
        first = session.scalars(select(Task).order_by(Task.position)).first()
    assert first is not None
    assert first.id == claims[0].task.id


def test_ended_and_unknown_tasks_are_not_moved(sqlite_catalog: Settings, post: Post) -> None:
    task = post("a")
    commands.cancel_task(task.id)
    with pytest.raises(Conflict, match="has ended"):
        move_task(task.id, TaskMove(to="front"))
    with pytest.raises(NotFound):
        move_task("tsk_unknown", TaskMove(to="front"))
    with pytest.raises(NotFound):
        move_task(post("b").id, TaskMove(before="nobody"))


@pytest.mark.parametrize("body", [{}, {"to": "front", "before": "a"}, {"to": "middle"}, {"before": ""}])
def test_ambiguous_place_is_refused(body: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        TaskMove.model_validate(body)
