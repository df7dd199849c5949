"""Recall against the number of gradient steps."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from benchmarks.learning.method_variants import parse_variant
from benchmarks.worlds.step_curve import StepPoint, measure_step_curve, step_settings, step_table


@pytest.mark.parametrize(("pairs", "steps"), [(5, 1), (60, 3), (60, 4), (60, 30), (5000, 30), (5000, 480)])
def test_settings_give_the_number_of_steps(pairs: int, steps: int) -> None:
    settings = step_settings(pairs, steps)
    per_epoch = min(math.ceil(pairs / 16), math.ceil(settings["max_steps"] / settings["epochs"]))
    assert steps <= per_epoch * settings["epochs"] < steps + settings["epochs"]


@pytest.mark.slow
def test_curve_of_a_small_domain(tmp_path: Path) -> None:
    points = _measure("strata", tmp_path, steps=(2, 5))
    assert [(point.videos, point.steps) for point in points] == [(3, 2), (3, 5)]
    assert [run.seed for run in points[0].runs] == [0, 1]
    assert all(len(run.ranks["local"]["night-traffic"]) == 120 for point in points for run in point.runs)
    assert points[0].runs[0].ranks != points[1].runs[0].ranks
    table = step_table(points)
    assert "| videos | 2 steps | 5 steps |" in table
    assert table.count("±") == 4


@pytest.mark.slow
def test_methods_without_steps_have_one_point(tmp_path: Path) -> None:
    points = _measure("zero_shot", tmp_path, steps=(2, 5))
    assert [point.steps for point in points] == [0]
    assert "no steps" in step_table(points)


def _measure(method: str, folder: Path, steps: tuple[int, ...]) -> list[StepPoint]:
    return list(
        measure_step_curve(
            parse_variant(method),
            "night-traffic",
            [2],
            steps,
            backbone="tiny",
            frames=2,
            seeds=2,
            cache=folder,
        )
    )
