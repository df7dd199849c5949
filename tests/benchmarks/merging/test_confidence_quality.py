"""Quality of confidence estimates: captions of the fits and of the evaluation."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.merging.confidence_quality import ConfidenceLibrary, learn_library, measure_confidence
from models.backbones.backbone_loading import load_backbone
from models.routing.confidence_model import ConfidenceModel
from trainer.task_data import TaskData


@pytest.fixture(scope="module")
def library(tasks: list[TaskData]) -> ConfidenceLibrary:
    """The first of the small tasks with the untrained backbone."""
    torch.set_num_threads(1)
    return learn_library(tasks[:1], load_backbone("tiny", 2), "zero_shot", {})


def test_calibration_tasks_contain_captions_and_videos_of_the_given_splits(
    library: ConfidenceLibrary, tasks: list[TaskData]
) -> None:
    (selected,) = library.calibration_tasks("val", ("train", "val"))
    val = {clip.vector_id: clip.captions for clip in tasks[0].val}
    assert set(selected.ids) == {clip.vector_id for clip in tasks[0].clips if clip.split in ("train", "val")}
    assert sorted(selected.captions) == sorted(
        (video, text) for video, texts in val.items() for text in texts
    )
    (first,) = library.calibration_tasks("test", ("test",), first=True)
    assert [text for _, text in first.captions] == [clip.captions[0] for clip in tasks[0].test]
    searches = library.results_with_video([first])
    assert len(searches) == len(tasks[0].test)
    # There are six videos at most, so each is among the first ten results.
    assert all(results.relevant.sum() == 1 for results in searches)


def test_every_fit_is_evaluated_on_learned_and_on_foreign_captions(
    library: ConfidenceLibrary, tasks: list[TaskData], monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = (4.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    model = ConfidenceModel("pinned", 0.04, weights, -1.0, 7, 0.1)
    monkeypatch.setattr(ConfidenceLibrary, "fit", lambda self, tasks: model)
    score, *fits = measure_confidence(library, tasks[1:])
    assert [score.captions, *(fit.captions for fit in fits)] == [0, 7, 7, 7]
    # The confidence is a monotonic function of the score, so both rank results alike.
    assert all(fit.learned == pytest.approx(score.learned) for fit in fits)
    assert all(fit.right == pytest.approx(score.right) for fit in fits)
    assert {fit.error for fit in fits} != {score.error}
    assert np.isfinite([score.error, score.right, score.learned]).all()


def test_fit_with_too_few_captions_has_no_row(library: ConfidenceLibrary, tasks: list[TaskData]) -> None:
    names = [quality.name for quality in measure_confidence(library, tasks[1:])]
    assert names == ["score, cut to 0..1"]
