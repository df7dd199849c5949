"""Methods and rivals on real video files, recall against the number of captions, and intervals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.clips.clip_comparison import (
    compare_on_clips,
    keep_captions,
    measure_caption_curve,
    write_caption_report,
)
from benchmarks.clips.clip_runs import GALLERIES, ClipRun, difference_interval
from benchmarks.data.clip_folders import read_clip_domains
from benchmarks.learning.protocol import parse_variant
from trainer.task_data import Clip, TaskData

VARIANTS = ("zero_shot", "finetune@epochs=1", "joint@epochs=1")


@pytest.fixture(scope="module")
def runs(
    clip_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[ClipRun], list[ClipRun], list[str]]:
    lines: list[str] = []
    comparison = compare_on_clips(
        read_clip_domains(clip_folder),
        [parse_variant(name) for name in VARIANTS],
        backbone="tiny",
        seeds=2,
        cache=tmp_path_factory.mktemp("frames"),
        report=lines.append,
    )
    steps = [(len(methods), methods, rivals) for methods, rivals in comparison]
    counts, methods, rivals = zip(*steps, strict=True)
    assert counts == (1, 2, 3, 4, 5), "the tables of a long comparison grow run by run"
    return methods[-1], rivals[-1], lines


@pytest.mark.slow
def test_every_query_has_a_rank_in_every_gallery(
    runs: tuple[list[ClipRun], list[ClipRun], list[str]],
) -> None:
    methods, rivals, lines = runs
    assert [(run.label, run.seed) for run in methods] == [
        ("zero_shot", 0),
        *((name, seed) for seed in range(2) for name in VARIANTS[1:]),
    ]
    assert [run.label for run in rivals] == [
        f"{name}, routed {evidence}"
        for evidence in ("by words", "as zero_shot")
        for name in ("ridge per domain", "ridge over all domains")
    ]
    for run in [*methods, *rivals]:
        assert {name: len(ranks) for name, ranks in run.ranks["local"].items()} == {"disks": 3, "stripes": 3}
        assert run.clips == {"disks": 9, "stripes": 9}
        for gallery in GALLERIES:
            largest = {"local": 3, "local_all": 9}.get(gallery, 6)
            assert all(1 <= rank <= largest for ranks in run.ranks[gallery].values() for rank in ranks)
    assert "finetune@epochs=1, seed 0: domain 2 of 2 (stripes)" in " ".join(lines)


@pytest.mark.slow
def test_costs_and_forgetting(runs: tuple[list[ClipRun], list[ClipRun], list[str]]) -> None:
    zero_shot, finetune, joint, *_ = runs[0]
    assert zero_shot.forgetting("local") == 0, "nothing changes between the domains"
    assert finetune.forgetting("global") is not None
    assert joint.forgetting("local") is None, "joint training has no release between the domains"
    assert joint.seconds_per_100_clips == pytest.approx(joint.seconds_per_domain * 2 * 100 / 18)
    assert finetune.peak == max(map(max, finetune.peak_mib.values())) > 0
    assert runs[1][0].peak is None


def _task(count: int) -> TaskData:
    train = [Clip(f"v{number}", number, Path("f.npy"), ("a car",), "train") for number in range(count)]
    return TaskData("tsk", "cars", (*train, Clip("held", count, Path("f.npy"), ("a red car",), "test")))


def _captioned(task: TaskData) -> set[str]:
    return {clip.id for clip in task.train if clip.captions}


def test_smaller_selections_are_part_of_larger_ones() -> None:
    task = _task(20)
    selections = [_captioned(keep_captions(task, limit, seed=3)) for limit in (2, 5, 9)]
    assert [len(selection) for selection in selections] == [2, 5, 9]
    assert selections[0] < selections[1] < selections[2]
    assert _captioned(keep_captions(task, 5, seed=4)) != selections[1]
    limited = keep_captions(task, 1, seed=0)
    assert [clip.id for clip in limited.clips] == [clip.id for clip in task.clips]
    assert limited.test == task.test, "held-out captions stay"
    assert keep_captions(task, 20, seed=0) == task


@pytest.mark.slow
def test_curve_of_a_folder(clip_folder: Path, tmp_path: Path) -> None:
    points = measure_caption_curve(
        read_clip_domains(clip_folder),
        parse_variant("finetune@epochs=1"),
        [3, 1, 60, 3],
        backbone="tiny",
        seeds=2,
        cache=tmp_path / "frames",
    )
    assert [(point.limit, point.clips) for point in points] == [(1, 2), (3, 6), (None, 12)]
    for point in points:
        assert [run.seed for run in point.runs] == [0, 1]
        assert {name: len(ranks) for name, ranks in point.runs[0].ranks["local"].items()} == {
            "disks": 3,
            "stripes": 3,
        }
    table = write_caption_report(
        tmp_path, points, "cinestrata bench clips folder --counts 1", "finetune", "tiny"
    )
    assert "| at most 3 | 6 |" in table
    stored = json.loads((tmp_path / "results.json").read_text())["points"]
    assert [point["limit"] for point in stored] == [1, 3, None]
    assert len(stored[0]["recall"]["global"]["r10"]) == 2


def test_equal_differences_have_no_spread_and_domains_or_queries_equal_weights() -> None:
    assert difference_interval([[3.0, 5.0], [1.0]], [[1.0, 3.0], [-1.0]]) == pytest.approx((2, 2, 2))
    first, second = [[4.0, 4.0, 4.0], [0.0]], [[0.0, 0.0, 0.0], [0.0]]
    assert difference_interval(first, second) == pytest.approx((2, 2, 2))
    assert difference_interval(first, second, pooled=True) == pytest.approx((3, 3, 3))


def test_interval_contains_the_difference_and_repeats() -> None:
    first, second = [[100.0, 0.0, 100.0, 100.0, 0.0]], [[0.0, 0.0, 100.0, 0.0, 100.0]]
    difference, low, high = difference_interval(first, second)
    assert difference == pytest.approx(20)
    assert low < 20 < high
    # Of five queries +100, 0, 0, +100, -100, the mean of a resample is between -100 and 100 in steps of 20.
    assert low == pytest.approx(-40, abs=21)
    assert high == pytest.approx(80, abs=21)
    assert difference_interval(first, second) == (difference, low, high)
