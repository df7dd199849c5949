"""Estimates of tasks in the catalog: comparable finished tasks, the queue, and interrupted tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cinestrata_schemas.tasks import TaskDetails
from service.catalog.database import session_scope
from service.catalog.tables import Task
from service.core.errors import SourceUnavailable, WorkerStopping
from service.core.settings import Settings
from service.tasks import commands, lifecycle
from service.tasks.estimates.stage_history import StageHistory
from service.tasks.estimates.task_estimator import TaskEstimator
from service.tasks.lifecycle import ReleaseRecord, ShardRecord, lease
from tests.service.tasks.estimates.fake_clock import FakeClock

Post = Callable[..., TaskDetails]

SECONDS = {"probing": 20.0, "loading": 5.0, "training": 100.0, "indexing": 30.0, "evaluating": 10.0}


@pytest.fixture
def finished(post: Post) -> Callable[..., str]:
    """``finished(name, videos, seconds, **fields)``: id of a ready task whose stages took these seconds."""

    def make(name: str, videos: int = 2, seconds: Any = None, **fields: Any) -> str:
        view = post(name, videos, **fields)
        with session_scope(write=True) as session:
            task = session.get_one(Task, view.id)
            task.state = "ready"
            times = {**task.progress["times"], "seconds": SECONDS if seconds is None else seconds}
            task.progress = {"stage": "ready", "fraction": 1.0, "times": times}
        return view.id

    return make


def _expected(task_id: str) -> dict[str, float | None] | None:
    with session_scope() as session:
        return StageHistory(session).expected_seconds(session.get_one(Task, task_id))


def _with_clock(claim: lifecycle.Claim | None, clock: FakeClock) -> lifecycle.Claim:
    """The claim, with the expectations of the catalog and another clock."""
    assert claim is not None
    estimator = TaskEstimator(_expected(claim.task.id), clock=clock)
    return lifecycle.Claim(claim.task, claim.owner, claim.token, estimator)


def test_expected_seconds_are_in_proportion_to_the_videos(
    catalog: Settings, post: Post, finished: Callable[..., str]
) -> None:
    finished("former", videos=4)
    assert _expected(post("next", 6).id) == {
        "probing": 30.0,
        "loading": 5.0,
        "training": 150.0,
        "indexing": 45.0,
        "evaluating": 15.0,
    }


@pytest.mark.parametrize(
    "former",
    [
        {"videos": 9},
        {"videos": 1},
        {"method": "finetune"},
        {"settings": {"epochs": 1}},
        {"videos": 4, "seconds": {}},
    ],
)
def test_other_tasks_give_no_expectation(
    sqlite_catalog: Settings, post: Post, finished: Callable[..., str], former: dict[str, Any]
) -> None:
    finished("former", **{"videos": 4, **former})
    assert not _expected(post("next", 4).id)


def test_task_without_captions_is_not_comparable(
    sqlite_catalog: Settings, post: Post, finished: Callable[..., str]
) -> None:
    task = finished("former")
    with session_scope(write=True) as session:
        row = session.get_one(Task, task)
        row.progress = {**row.progress, "times": {**row.progress["times"], "captioned": False}}
    assert _expected(post("next").id) is None


def test_newest_tasks_decide_by_median(
    sqlite_catalog: Settings, post: Post, finished: Callable[..., str]
) -> None:
    for number, seconds in enumerate((900.0, 10.0, 12.0, 500.0)):
        finished(f"former {number}", seconds={"indexing": seconds})
    finished("interrupted", seconds={"indexing": None, "moments": None})
    # Of the newest three, one was interrupted.
    assert _expected(post("next").id) == {"indexing": pytest.approx(256.0), "moments": 0.0}


def test_task_of_an_earlier_version_has_no_expectation(
    sqlite_catalog: Settings, post: Post, finished: Callable[..., str]
) -> None:
    old, new = finished("old"), post("new")
    for task_id in (old, new.id):
        with session_scope(write=True) as session:
            row = session.get_one(Task, task_id)
            row.progress = {name: value for name, value in row.progress.items() if name != "times"}
    assert _expected(new.id) is None
    assert commands.get_task(new.id).eta_seconds is None
    claim = lifecycle.claim_probing(new.id, "worker")
    assert claim is not None
    claim.progress("probing", 0.5, done=1, total=2)
    claim.finish_probing(counts={"videos": 2, "accepted": 2}, held_out=None)
    assert commands.get_task(new.id).progress.times is None


def test_waiting_tasks_include_those_ahead(
    catalog: Settings, post: Post, finished: Callable[..., str]
) -> None:
    finished("former", videos=2)
    first, second = post("first", 2), post("second", 4)
    assert first.eta_seconds == pytest.approx(165)
    # Its probing (60 s until its end) overlaps the learning of the first (until 165 s).
    assert second.eta_seconds == pytest.approx(165 + 5 + 2 * 140)


def test_unknown_task_ahead_leaves_later_ones_unknown(
    sqlite_catalog: Settings, post: Post, finished: Callable[..., str]
) -> None:
    finished("former", videos=2)
    assert post("first", 2, method="finetune").eta_seconds is None
    assert post("second", 2).eta_seconds is None


def test_append_does_not_wait_for_domains(
    sqlite_catalog: Settings, post: Post, finished: Callable[..., str]
) -> None:
    domain = finished("domain")
    seconds = {"probing": 2.0, "indexing": 3.0, "measuring": 1.0}
    finished_append, append = finished("append 1", seconds=seconds), post("append 2").id
    for task_id in (finished_append, append):
        with session_scope(write=True) as session:
            session.get_one(Task, task_id).target_id = domain
    assert commands.get_task(append).eta_seconds == pytest.approx(6.0)
    post("blocked", 2, method="finetune")
    assert commands.get_task(append).eta_seconds == pytest.approx(6.0)


def test_progress_of_a_task_is_estimated_over_all_stages(
    catalog: Settings, post: Post, finished: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "EVENT_SECONDS", 0)
    finished("former", videos=10)
    view, clock = post("next", 10), FakeClock()
    claim = _with_clock(lifecycle.claim_probing(view.id, "prober"), clock)
    for done in range(6):
        claim.progress("probing", done / 10, done=done, total=10)
        clock.advance(4.0)  # twice the former duration
    shown = commands.get_task(view.id)
    assert (shown.progress.done, shown.progress.total) == (5, 10)
    assert shown.progress.videos_per_second == pytest.approx(0.25)
    assert shown.progress.eta_seconds == pytest.approx(20)
    assert shown.eta_seconds == pytest.approx(20 + 145)
    event = commands.events_after(view.id)[-1].data
    assert (event["eta_seconds"], event["task_eta_seconds"]) == (pytest.approx(20), pytest.approx(165))
    assert "times" not in event
    claim.finish_probing(counts={"videos": 10, "accepted": 10}, held_out=None)
    waiting = commands.get_task(view.id)
    assert waiting.eta_seconds == pytest.approx(145)
    assert waiting.progress.times is not None
    assert waiting.progress.times.seconds == {"probing": pytest.approx(24.0)}


def test_finished_task_has_the_times_of_its_stages(
    sqlite_catalog: Settings, post_probed: Post, post: Post
) -> None:
    task, clock = post_probed("birds"), FakeClock()
    claim = _with_clock(lifecycle.claim_training(task.id, "worker"), clock)
    for state in ("training", "indexing", "evaluating"):
        claim.advance(state)
        clock.advance(7.0)
    release = ReleaseRecord("r", "strata", "tiny", "low_rank", "f", 1)
    with claim.publishing() as publication:
        publication.complete(release=release, shard=ShardRecord("s", "r", "f", 2, 8, 1), trained=True)
    shown = commands.get_task(task.id)
    assert shown.state == "ready"
    assert (shown.eta_seconds, shown.progress.eta_seconds) == (None, None)
    assert shown.progress.times is not None
    assert shown.progress.times.model_dump() == {
        "videos": 2,
        "captioned": True,
        "seconds": {"training": 7.0, "indexing": 7.0, "evaluating": 7.0},
    }
    assert _expected(post("next").id) == {"training": 7.0, "indexing": 7.0, "evaluating": 7.0}


@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_interrupted_stage_is_not_measured(
    sqlite_catalog: Settings,
    post_probed: Post,
    expire: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    end: str,
) -> None:
    monkeypatch.setattr(lease, "EVENT_SECONDS", 0)
    task = post_probed("birds")
    claim = lifecycle.claim_training(task.id, "first")
    assert claim is not None
    claim.progress("loading")
    claim.advance("training")
    for step in range(6):
        claim.progress("training", step / 10)
    assert commands.get_task(task.id).progress.eta_seconds is not None
    if end == "killed":
        expire(task.id)
    else:
        with claim:
            raise WorkerStopping("stops")
        released = commands.get_task(task.id)
        assert (released.progress.eta_seconds, released.eta_seconds) == (None, None)
    again = lifecycle.claim_training(task.id, "second")
    assert again is not None
    again.progress("training", 0.5)
    assert commands.get_task(task.id).progress.eta_seconds is None, (
        "the rate of the dead worker must not remain"
    )
    again.advance("indexing")
    times = commands.get_task(task.id).progress.times
    assert times is not None
    assert times.seconds["training"] is None
    assert times.seconds["loading"] is not None


def test_outage_of_the_source_keeps_the_times_and_gives_no_estimate(
    sqlite_catalog: Settings, post: Post, finished: Callable[..., str]
) -> None:
    finished("former")
    view = post("next")
    claim = lifecycle.claim_probing(view.id, "worker")
    assert claim is not None
    with claim:
        claim.progress("probing", 0.5, done=1, total=2)
        raise SourceUnavailable("The source does not answer.")
    shown = commands.get_task(view.id)
    assert (shown.progress.stage, shown.eta_seconds, shown.progress.eta_seconds) == (
        "waiting for the source",
        None,
        None,
    )
    assert shown.progress.times is not None
    assert shown.progress.times.seconds == {"probing": None}


def test_retried_task_is_measured_again(sqlite_catalog: Settings, post: Post) -> None:
    view = post("birds")
    claim = lifecycle.claim_probing(view.id, "worker")
    assert claim is not None
    claim.progress("probing", 0.5, done=1, total=2)
    claim.fail("broken")
    times = commands.retry_task(view.id).progress.times
    assert times is not None
    assert times.seconds == {"training": None}, "its training may resume from a checkpoint"
