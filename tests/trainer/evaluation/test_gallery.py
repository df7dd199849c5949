"""Galleries of tasks: from shards, and embedded again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from trainer.evaluation.gallery import Query, task_gallery
from trainer.task_data import Clip, TaskData
from trainer.video_embedding import MemoryShard


def _task(folder: Path, name: str, first: int, shades: Sequence[int]) -> TaskData:
    """Return the single-color videos: the first is for training, the others are held out with two captions each."""
    clips = []
    for number, shade in enumerate(shades):
        path = folder / f"{first + number}.npy"
        np.save(path, np.full((1, 2, 2, 3), shade, np.uint8))
        split = "test" if number else "train"
        captions = (f"{shade}", f"again {shade}")
        clips.append(Clip(f"{name}-{number}", first + number, path, captions, split))  # type: ignore[arg-type]
    return TaskData(name, name, tuple(clips))


def test_gallery_holds_out_test_videos(tmp_path: Path) -> None:
    task = _task(tmp_path, "day", 10, [5, 20, 40])
    shard = MemoryShard(np.array([10, 11, 12]), np.eye(3, dtype=np.float32))
    gallery = task_gallery(task, shard)
    assert gallery.task == "day"
    assert gallery.held_out.tolist() == [11, 12]
    assert gallery.queries == (Query("20", 11), Query("40", 12))
    assert [query.text for query in task_gallery(task, shard, None).queries] == [
        "20",
        "again 20",
        "40",
        "again 40",
    ]
