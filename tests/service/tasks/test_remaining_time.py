"""Remaining time of tasks: the rate of the running stage, comparable finished tasks, and the queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cinestrata_schemas.tasks import TaskDetails
from service.catalog.database import session_scope
from service.catalog.tables import Release, Shard, Task
from service.core.errors import SourceUnavailable, WorkerStopping
from service.core.settings import Settings
from service.tasks import commands, lifecycle, task_details, task_events
from service.tasks.lifecycle import lease

Post = Callable[..., TaskDetails]

SECONDS = {"probing": 20.0, "training": 110.0, "indexing": 30.0}  # 16 s for each of ten videos


class Clock:
    """Monotonic time that a test advances."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(task_details, "monotonic", clock)
    monkeypatch.setattr(lease, "EVENT_SECONDS", 0)
    return clock


@pytest.fixture
def finished(post: Post) -> Callable[..., str]:
    """``finished(name, videos, seconds, **fields)``: ID of a ready task whose stages took these seconds."""

    def make(name: str, videos: int = 10, seconds: Any = None, **fields: Any) -> str:
        view = post(name, videos, **fields)
        with session_scope(write=True) as session:
            task = session.get_one(Task, view.id)
            task.state = "ready"
            times = {**task.progress["times"], "seconds": SECONDS if seconds is None else seconds}
            task.progress = {"stage": "ready", "fraction": 1.0, "times": times}
        return view.id

    return make


def _claimed(claim: lifecycle.Claim | None) -> lifecycle.Claim:
    assert claim is not None
    return claim


def test_waiting_task_takes_the_median_of_comparable_tasks_after_those_ahead(
    catalog: Settings, post: Post, finished: Callable[..., str]
) -> None:
    for number, seconds in enumerate((900.0, 160.0, 20.0)):
        finished(f"former {number}", seconds={"training": seconds})
    assert post("first", 10).eta_seconds == pytest.approx(160)
    assert post("second", 5).eta_seconds == pytest.approx(160 + 80)
    post("incomparable", 5, method="finetune")
    assert post("after it", 5).eta_seconds is None


@pytest.mark.parametrize(
    "former", [{"method": "finetune"}, {"seconds": {}}, {"captioned": False}, {"append": True}]
)
def test_other_tasks_give_no_estimate(
    sqlite_catalog: Settings, post: Post, finished: Callable[..., str], former: dict[str, Any]
) -> None:
    captioned, append = former.pop("captioned", True), former.pop("append", False)
    domain = finished("domain", method="finetune") if append else None
    task_id = finished("former", **former)
    with session_scope(write=True) as session:
        task = session.get_one(Task, task_id)
        task.progress = {**task.progress, "times": {**task.progress["times"], "captioned": captioned}}
        task.target_id = domain
    assert post("next").eta_seconds is None


def test_append_does_not_wait_for_domains(
    sqlite_catalog: Settings, post: Post, finished: Callable[..., str]
) -> None:
    domain = finished("domain")
    former, append = finished("append 1", 2, {"probing": 2.0, "indexing": 4.0}), post("append 2", 2).id
    with session_scope(write=True) as session:
        for task_id in (former, append):
            session.get_one(Task, task_id).target_id = domain
    post("blocked", 2, method="finetune")
    assert commands.get_task(append).eta_seconds == pytest.approx(6.0)


def test_running_task_is_estimated_from_its_rate_and_from_comparable_tasks(
    catalog: Settings, post: Post, finished: Callable[..., str], clock: Clock
) -> None:
    finished("former")
    view = post("next", 10)
    claim = _claimed(lifecycle.claim_probing(view.id, "prober"))
    claim.progress("probing", 0.2, done=2, total=10)
    shown = commands.get_task(view.id)
    assert (shown.progress.eta_seconds, shown.eta_seconds) == (None, pytest.approx(160)), "no rate yet"
    clock.seconds += 12.0
    claim.progress("probing", 0.5, done=5, total=10)
    shown = commands.get_task(view.id)
    assert shown.progress.videos_per_second == pytest.approx(0.25)
    assert shown.progress.eta_seconds == pytest.approx(20)
    assert shown.eta_seconds == pytest.approx(160 - 12)
    assert "times" not in task_events.events_after(view.id)[-1].data
    claim.finish_probing(counts={"videos": 10, "accepted": 10}, held_out=None)
    waiting = commands.get_task(view.id)
    assert (waiting.progress.eta_seconds, waiting.eta_seconds) == (None, pytest.approx(160 - 12))
    slow = _claimed(lifecycle.claim_training(view.id, "worker"))
    slow.progress("training", 0.0)
    clock.seconds += 1000.0
    slow.progress("training", 0.5)
    assert commands.get_task(view.id).eta_seconds == pytest.approx(1000), "at least the time of the stage"


def test_finished_task_has_the_times_of_its_stages(
    sqlite_catalog: Settings, post_probed: Post, clock: Clock
) -> None:
    task = post_probed("birds")
    claim = _claimed(lifecycle.claim_training(task.id, "worker"))
    for state in ("training", "indexing", "evaluating"):
        claim.advance(state)
        clock.seconds += 7.0
    release = Release(id="r", method="strata", backbone="tiny", kind="low_rank", fingerprint="f", bytes=1)
    with claim.publishing() as publication:
        shard = Shard(id="s", release_id="r", fingerprint="f", count=2, dim=8, bytes=1)
        publication.complete(release=release, shard=shard, trained=True)
    shown = commands.get_task(task.id)
    assert (shown.state, shown.eta_seconds, shown.progress.eta_seconds) == ("ready", None, None)
    assert shown.progress.times is not None
    assert shown.progress.times.model_dump() == {
        "videos": 2,
        "captioned": True,
        "seconds": {"training": 7.0, "indexing": 7.0, "evaluating": 7.0},
    }


@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_next_attempt_has_a_rate_of_its_own_and_adds_to_the_times(
    sqlite_catalog: Settings, post_probed: Post, expire: Callable[[str], None], clock: Clock, end: str
) -> None:
    task = post_probed("birds")
    claim = _claimed(lifecycle.claim_training(task.id, "first"))
    for step in range(3):
        claim.progress("training", step / 10)
        clock.seconds += 5.0
    assert commands.get_task(task.id).progress.eta_seconds == pytest.approx(40)
    if end == "killed":
        expire(task.id)
    else:
        with claim:
            raise WorkerStopping("stops")
        released = commands.get_task(task.id)
        assert (released.progress.eta_seconds, released.eta_seconds) == (None, None)
    again = _claimed(lifecycle.claim_training(task.id, "second"))
    again.progress("training", 0.5)
    assert commands.get_task(task.id).progress.eta_seconds is None
    clock.seconds += 5.0
    again.progress("training", 0.75)
    shown = commands.get_task(task.id).progress
    assert shown.eta_seconds == pytest.approx(5)
    assert shown.times is not None
    assert shown.times.seconds["training"] == 15.0


def test_outage_of_the_source_gives_no_estimate(
    sqlite_catalog: Settings, post: Post, finished: Callable[..., str]
) -> None:
    finished("former")
    view = post("next")
    with _claimed(lifecycle.claim_probing(view.id, "worker")) as claim:
        claim.progress("probing", 0.5, done=1, total=2)
        raise SourceUnavailable("The source does not answer.")
    shown = commands.get_task(view.id)
    assert (shown.progress.stage, shown.eta_seconds) == ("waiting for the source", None)
    assert shown.progress.times is not None


def test_retried_task_is_measured_again(sqlite_catalog: Settings, post: Post) -> None:
    view = post("birds")
    claim = _claimed(lifecycle.claim_probing(view.id, "worker"))
    claim.progress("probing", 0.5, done=1, total=2)
    claim.fail("broken")
    times = commands.retry_task(view.id).progress.times
    assert times is not None
    assert times.seconds == {}
