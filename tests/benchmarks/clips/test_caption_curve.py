"""Recall against the number of captioned clips."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.clips.clip_comparison import keep_captions, measure_caption_curve
from benchmarks.clips.clip_report import write_caption_report
from benchmarks.data.clip_folders import read_clip_domains
from benchmarks.learning.protocol import parse_variant
from trainer.task_data import Clip, TaskData


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


def test_other_clips_and_held_out_captions_stay() -> None:
    task = _task(4)
    limited = keep_captions(task, 1, seed=0)
    assert [clip.id for clip in limited.clips] == [clip.id for clip in task.clips]
    assert limited.test == task.test
    assert keep_captions(task, 4, seed=0) == task


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
