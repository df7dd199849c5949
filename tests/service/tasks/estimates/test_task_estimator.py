"""Remaining time of a task: stages ahead from history, and measured stages."""

from __future__ import annotations

import pytest

from service.tasks.estimates.task_estimator import TaskEstimator, seconds_from
from tests.service.tasks.estimates.fake_clock import FakeClock

HISTORY = {"probing": 90.0, "loading": 5.0, "training": 400.0, "indexing": 100.0, "evaluating": 20.0}


def _run(estimator: TaskEstimator, clock: FakeClock, stage: str, steps: int, seconds: float) -> None:
    for step in range(steps + 1):
        estimator.observe(stage, step / steps)
        if step < steps:
            clock.advance(seconds)


def test_two_stages_are_estimated_with_history() -> None:
    # The stages take 10 % longer than those of former tasks.
    clock = FakeClock()
    estimator = TaskEstimator({"training": 400.0, "indexing": 100.0}, clock=clock)
    end = clock.seconds + 440 + 110
    for stage, steps, seconds in (("training", 100, 4.4), ("indexing", 50, 2.2)):
        stage_end = clock.seconds + steps * seconds
        for step in range(steps):
            estimator.observe(stage, step / steps)
            assert estimator.stage_seconds == pytest.approx(stage_end - clock.seconds, rel=0.25)
            assert estimator.task_seconds == pytest.approx(end - clock.seconds, rel=0.25)
            clock.advance(seconds)
    estimator.finish_stage()
    assert estimator.measured == {"training": pytest.approx(440), "indexing": pytest.approx(110)}


def test_slower_device_slows_the_later_stages_too() -> None:
    clock = FakeClock()
    estimator = TaskEstimator(HISTORY, clock=clock)
    estimator.observe("training")
    assert estimator.task_seconds == pytest.approx(400 + 100 + 20)
    for step in range(1, 11):
        clock.advance(40.0)  # ten times the former duration
        estimator.observe("training", step / 100)
    assert estimator.stage_seconds == pytest.approx(3600)
    assert estimator.task_seconds == pytest.approx(3600 + 10 * (100 + 20))
    _run(estimator, clock, "training", 90, 40.0)
    estimator.observe("evaluating")
    assert estimator.task_seconds == pytest.approx(20 * 10, rel=0.2)


def test_slow_probing_and_short_stages_say_nothing_about_later_stages() -> None:
    clock = FakeClock()
    estimator = TaskEstimator({**HISTORY, "indexing": 10.0}, clock=clock)
    _run(estimator, clock, "probing", 10, 90.0)
    assert estimator.task_seconds == pytest.approx(5 + 400 + 10 + 20)
    _run(estimator, clock, "indexing", 10, 20.0)
    assert estimator.task_seconds == pytest.approx(20)


def test_resumed_training_says_nothing_about_later_stages() -> None:
    clock = FakeClock()
    estimator = TaskEstimator(HISTORY, {"training": None}, clock)
    _run(estimator, clock, "training", 1, 1.0)  # the last epoch was stored
    estimator.observe("indexing")
    assert estimator.task_seconds == pytest.approx(100 + 20)


def test_without_history_only_the_stage_is_estimated() -> None:
    clock = FakeClock()
    estimator = TaskEstimator(clock=clock)
    assert (estimator.stage_seconds, estimator.task_seconds) == (None, None)
    estimator.observe("loading")
    assert (estimator.stage_seconds, estimator.task_seconds) == (None, None)
    _run(estimator, clock, "probing", 10, 1.0)
    estimator.observe("training", 0.0)
    assert estimator.stage_seconds is None, "the rate of a former stage must not remain"
    for step in range(1, 6):
        clock.advance(2.0)
        estimator.observe("training", step / 100)
    assert estimator.stage_seconds == pytest.approx(190)
    assert estimator.task_seconds is None


def test_stage_without_figures_counts_down_from_history() -> None:
    clock = FakeClock()
    estimator = TaskEstimator(HISTORY, clock=clock)
    estimator.observe("evaluating")
    clock.advance(15.0)
    assert estimator.stage_seconds == estimator.task_seconds == pytest.approx(5)
    clock.advance(15.0)
    assert estimator.stage_seconds == 0.0, "an overdue stage never has negative time left"


def test_stage_that_was_never_measured_leaves_the_task_unknown() -> None:
    clock = FakeClock()
    estimator = TaskEstimator({**HISTORY, "indexing": None}, clock=clock)
    _run(estimator, clock, "training", 10, 40.0)
    assert estimator.stage_seconds == pytest.approx(0)
    assert estimator.task_seconds is None
    _run(estimator, clock, "indexing", 10, 1.0)
    assert estimator.task_seconds == pytest.approx(20)


def test_resumed_task_keeps_measured_stages_and_omits_the_interrupted_one() -> None:
    clock = FakeClock()
    estimator = TaskEstimator(HISTORY, {"training": 380.0, "indexing": None}, clock)
    _run(estimator, clock, "training", 1, 0.5)  # from the checkpoint of the last epoch
    _run(estimator, clock, "indexing", 10, 1.0)
    _run(estimator, clock, "evaluating", 10, 3.0)
    estimator.finish_stage()
    assert estimator.measured == {"training": 380.0, "indexing": None, "evaluating": pytest.approx(30)}


def test_stage_that_is_entered_twice_is_measured_as_a_whole() -> None:
    clock = FakeClock()
    estimator = TaskEstimator(clock=clock)
    _run(estimator, clock, "training", 2, 1.0)
    _run(estimator, clock, "decoding", 2, 5.0)
    _run(estimator, clock, "training", 2, 3.0)
    estimator.finish_stage()
    assert estimator.measured == {"decoding": pytest.approx(10), "training": pytest.approx(8)}


def test_sum_of_later_stages_requires_all_of_them() -> None:
    assert seconds_from(HISTORY, "training") == 520
    assert seconds_from(HISTORY, "training", share=0.5) == 320
    assert seconds_from(HISTORY, "moments") == 20
    assert seconds_from({**HISTORY, "evaluating": None}, "training") is None
    assert seconds_from({**HISTORY, "probing": None}, "training") == 520
    assert seconds_from(None, "training") is None
    assert seconds_from(HISTORY, "waiting") is None
