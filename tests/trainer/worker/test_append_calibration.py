"""Calibration after appends: captions of appended videos calibrate the served release, and later ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from index.index_snapshot import IndexSnapshot
from service.catalog.database import session_scope
from service.catalog.domain_videos import read_calibration
from service.catalog.tables import Task
from service.search.snapshots.search_snapshot import SearchSnapshot
from service.tasks import commands
from service.tasks.lifecycle import AppendPublication
from tests.trainer.worker.library_state import call_before, current_release, learn, open_store, post_append
from trainer.worker import append_job, job_environment

pytestmark = pytest.mark.usefixtures("library")

COLORS = ("red", "blue", "green", "gray", "pink")
CAPTIONS = 4  # of each video: five videos have enough captions for a model


def append(
    domain: str,
    monkeypatch: pytest.MonkeyPatch,
    colors: Sequence[str] = COLORS,
    min_captions: int = len(COLORS),
) -> str:
    """Return the ID of a probed append of captioned videos."""
    monkeypatch.setattr(append_job, "MIN_CAPTIONS", min_captions)
    captions = [f"the {{}} video number {number}" for number in range(CAPTIONS)]
    return post_append(domain, {color: color for color in colors}, captions)


def load_snapshot() -> SearchSnapshot:
    return SearchSnapshot.load(IndexSnapshot.open(open_store()), job_environment.task_backbone())


def served_captions() -> int | None:
    """Count the captions behind the confidence model of a new search snapshot; None without a model."""
    snapshot = load_snapshot()
    return snapshot.confidence_model.captions if snapshot.confidence_model else None


def test_appended_captions_calibrate_searches_and_later_releases(
    learned_task: str, post_videos: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert served_captions() is None  # four training captions are too few
    task = append(learned_task, monkeypatch)
    append_job.run_append_job(task)
    assert commands.get_task(task).counts.appended == len(COLORS)
    assert served_captions() == len(COLORS) * CAPTIONS
    assert current_release().confidence is None  # a release never changes
    learn(post_videos("night", videos=2, tests=0))
    fitted = current_release().confidence
    assert fitted is not None
    assert fitted.captions == len(COLORS) * CAPTIONS + 1  # a derived test split calibrates, too
    assert served_captions() == fitted.captions


def test_several_small_appends_calibrate_searches(learned_task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for colors, captions in ((COLORS[:3], None), (COLORS[3:], len(COLORS) * CAPTIONS)):
        append_job.run_append_job(append(learned_task, monkeypatch, colors))
        assert served_captions() == captions


def test_release_that_is_served_again_has_the_model_of_its_appends(
    learned_task: str, post_videos: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = open_store().manifest().release
    append_job.run_append_job(append(learned_task, monkeypatch))
    learn(post_videos("night", videos=2, tests=0))
    append_job.run_append_job(append(learned_task, monkeypatch, ["white"], min_captions=1))
    assert served_captions() == (len(COLORS) + 1) * CAPTIONS + 1
    open_store().serve(release)
    assert served_captions() == len(COLORS) * CAPTIONS


def test_model_applies_from_its_generation_unless_the_append_failed(
    learned_task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = append(learned_task, monkeypatch)
    before = open_store().manifest()
    append_job.run_append_job(task)
    after, release = open_store().manifest(), before.release or ""
    with session_scope(write=True) as session:
        assert read_calibration(session, release, before.generation) is None
        assert read_calibration(session, release, after.generation) is not None
        assert read_calibration(session, "other", after.generation) is None
        session.get_one(Task, task).state = "failed"
        session.flush()
        assert read_calibration(session, release, after.generation) is None


def test_running_server_uses_the_model_of_a_resumed_publication(
    learned_task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The resumed attempt stores its model for a generation that servers have loaded already."""
    task = append(learned_task, monkeypatch)

    def die(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(append_job, "_measure", lambda *_: append_job.AppendMeasurement())
        patch.setattr(AppendPublication, "complete", die)
        with pytest.raises(KeyboardInterrupt):
            append_job.run_append_job(task)
    served = load_snapshot()
    assert (served.confidence_model, served.with_current_confidence()) == (None, None)
    append_job.run_append_job(task)
    assert load_snapshot().generation == served.generation
    fresh = served.with_current_confidence()
    assert fresh is not None
    assert fresh.confidence_model is not None
    assert fresh.confidence_model == load_snapshot().confidence_model
    assert fresh.with_current_confidence() is None


@pytest.mark.slow
def test_model_is_fitted_to_the_release_of_the_publication(
    learned_task: str, post_videos: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release that is published during the embedding is calibrated, and keeps the models of other appends."""
    task = append(learned_task, monkeypatch)

    call_before(
        monkeypatch, append_job, "embed_shared", lambda: learn(post_videos("night", videos=2, tests=0))
    )
    append_job.run_append_job(task)
    assert commands.get_task(task).state == "ready"
    assert served_captions() == len(COLORS) * CAPTIONS + 1


def test_failed_measurement_does_not_fail_the_append(
    learned_task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = append(learned_task, monkeypatch)

    def fail(*_: Any, **__: Any) -> None:
        raise ValueError("no model")

    monkeypatch.setattr(append_job, "fit_library_confidence", fail)
    append_job.run_append_job(task)
    view = commands.get_task(task)
    assert (view.state, view.counts.appended, served_captions()) == ("ready", len(COLORS), None)
