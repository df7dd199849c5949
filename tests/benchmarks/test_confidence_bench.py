"""What confidence is compared by: which captions it is fitted to, and which it is tried on."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.merging.confidence_quality import Learned, learn, measure
from models.backbones.backbone_loading import load_backbone
from models.routing.confidence_model import ConfidenceModel
from trainer.task_data import TaskData


@pytest.fixture(scope="module")
def learned(tasks: list[TaskData]) -> Learned:
    """The first of the small tasks, with the backbone as it came."""
    torch.set_num_threads(1)
    return learn(tasks[:1], load_backbone("tiny", 2), "zero_shot", {})


def test_captions_are_those_of_the_split_and_galleries_those_of_theirs(
    learned: Learned, tasks: list[TaskData]
) -> None:
    (known,) = learned.known("val", ("train", "val"))
    val = {clip.vector_id: clip.captions for clip in tasks[0].val}
    assert set(known.ids) == {clip.vector_id for clip in tasks[0].clips if clip.split in ("train", "val")}
    assert sorted(known.captions) == sorted((video, text) for video, texts in val.items() for text in texts)
    (once,) = learned.known("test", ("test",), first=True)
    assert [text for _, text in once.captions] == [clip.captions[0] for clip in tasks[0].test]
    lists = learned.lists([once])
    assert len(lists) == len(tasks[0].test)
    assert all(asked.relevant.sum() == 1 for asked in lists), (
        "six videos at most, so each is among the first ten"
    )


def test_each_fit_is_tried_on_what_is_there_and_on_what_is_not(
    learned: Learned, tasks: list[TaskData], monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = (4.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    monkeypatch.setattr(
        Learned, "fit", lambda self, known: ConfidenceModel("pinned", 0.04, weights, -1.0, 7, 0.1)
    )
    score, *fits = measure(learned, tasks[1:])
    assert [score.captions, *(fit.captions for fit in fits)] == [0, 7, 7, 7]
    assert all(fit.learned == pytest.approx(score.learned) for fit in fits), "the chance rises with the score"
    assert all(fit.right == pytest.approx(score.right) for fit in fits)
    assert {fit.error for fit in fits} != {score.error}
    assert np.isfinite([score.error, score.right, score.learned]).all()


def test_too_few_captions_are_told_by_a_row_less(learned: Learned, tasks: list[TaskData]) -> None:
    assert [quality.name for quality in measure(learned, tasks[1:])] == ["score, cut to 0..1"]
