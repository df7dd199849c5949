"""Galleries of tasks, from shards."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trainer.errors import EvaluationError
from trainer.evaluation.gallery import Gallery, Query, task_gallery
from trainer.task_data import Clip, TaskData
from trainer.video_embedding import MemoryShard

SHARD = MemoryShard(np.array([10, 11]), np.eye(2, dtype=np.float32))


def test_gallery_holds_out_test_videos() -> None:
    clips = (
        Clip("day-0", 10, Path("0.npy"), ("5", "again 5"), "train"),
        Clip("day-1", 11, Path("1.npy"), ("20", "again 20"), "test"),
    )
    task = TaskData("day", "day", clips)
    gallery = task_gallery(task, SHARD)
    assert (gallery.task, gallery.held_out.tolist()) == ("day", [11])
    assert gallery.queries == (Query("20", 11),)
    assert [query.text for query in task_gallery(task, SHARD, None).queries] == ["20", "again 20"]


def test_queries_of_other_videos_are_refused() -> None:
    with pytest.raises(EvaluationError, match="task day: a query belongs to video 10, which is not held out"):
        Gallery("day", SHARD, np.array([11]), (Query("5", 10),))
