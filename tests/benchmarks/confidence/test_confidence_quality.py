"""Quality of confidence estimates: texts of the evaluation, and measures with known values."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.confidence.absent_texts import random_letters, word_salad
from benchmarks.confidence.confidence_quality import (
    ConfidenceLibrary,
    ConfidenceRound,
    learn_library,
    measure_answers,
    measure_results,
    search_library,
)
from models.backbones.backbone_loading import load_backbone
from models.routing.confidence_model import AnswerModel, ConfidenceModel
from trainer.evaluation.calibration_searches import LabeledResults, SearchedLibrary
from trainer.task_data import TaskData

# The confidence of a result and of an answer is the logistic function of its score.
ANSWER = AnswerModel((1.0, 0.0, 0.0, 0.0), 0.0, threshold=0.5, reach=0.5, error=0.1)
MODEL = ConfidenceModel("pinned", 0.04, (1.0, 0.0, 0.0, 0.0, 0.0, 0.0), 0.0, 30, 0.1, ANSWER)


@pytest.fixture(scope="module")
def library(tasks: list[TaskData]) -> ConfidenceLibrary:
    """The first of the small tasks with the untrained backbone."""
    torch.set_num_threads(1)
    return learn_library(tasks[:1], load_backbone("tiny", 2), "zero_shot", {})


def _search(scores: list[float], right: int | None, searched: SearchedLibrary = "all") -> LabeledResults:
    features = np.zeros((len(scores), 6))
    features[:, 0] = scores
    distance = float("nan") if right is None else scores[0] - scores[right]
    return LabeledResults(
        features, np.arange(len(scores)) == right, 0, searched, np.array([scores[0], 0, 0, 0]), distance
    )


def test_calibration_tasks_contain_captions_and_videos_of_the_given_splits(
    library: ConfidenceLibrary, tasks: list[TaskData]
) -> None:
    (selected,) = library.calibration_tasks("val", ("train", "val"))
    val = {clip.vector_id: clip.captions for clip in tasks[0].val}
    assert set(selected.ids) == {clip.vector_id for clip in tasks[0].clips if clip.split in ("train", "val")}
    assert sorted(selected.captions) == sorted(
        (video, text) for video, texts in val.items() for text in texts
    )


def test_library_is_searched_with_texts_of_all_kinds(
    library: ConfidenceLibrary, tasks: list[TaskData], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert search_library(library, tasks[1:], {}) is None, "two captions are too few"
    monkeypatch.setattr(ConfidenceLibrary, "fit", lambda self: MODEL)
    found = search_library(library, tasks[1:], {"published": ["a text", "another"]})
    assert found is not None
    assert len(found.good) == sum(len(clip.captions) for clip in tasks[0].test)
    assert all(search.relevant.sum() == 1 for search in found.good)
    sizes = {kind: len(searches) for kind, searches in found.absent.items()}
    assert sizes["captions of domains left out"] == sum(len(clip.captions) for clip in tasks[1].test)
    assert sizes["published"] == 2
    assert len(sizes) == 5
    assert not any(search.relevant.any() for searches in found.absent.values() for search in searches)


def test_share_of_refused_texts_at_a_share_of_kept_ones() -> None:
    good = [_search([score], 0) for score in np.linspace(1, 3, 21)]
    absent = {
        "foreign": [_search([score], None, "unrelated") for score in (0.5, 0.7, 1.05, 1.2)],
        "letters": [_search([score], None, "unrelated") for score in (-2.0, -1.0)],
    }
    first, answer = measure_answers([ConfidenceRound(MODEL, good, absent)])
    # The 5 % quantile of the good scores is 1.1.
    assert answer.refused == {"foreign": 0.75, "letters": 1.0}
    assert answer.area == pytest.approx(1 - 3.5 / 84)  # three pairs are in the wrong order, and one is a tie
    assert (answer.kept, answer.refused_by_release) == (1.0, {"foreign": 0.0, "letters": 1.0})
    assert first.kept is None
    logistic = 1 / (1 + np.exp(-np.array([0.5, 0.7, 1.05, 1.2])))
    assert logistic.min() > 0.6
    assert 0 < answer.error < 1


def test_quality_of_single_results_and_of_the_end_of_the_answer() -> None:
    good = [
        _search([2.0, 1.8, 1.6, 1.0], 0),
        _search([2.0, 1.8, 1.6, 1.0], 2),
        _search([2.0, 0.0, -3.0], 2),
        _search([2.0, 1.0], None),
    ]
    good[3] = good[3]._replace(distance=1.4)
    found = measure_results([ConfidenceRound(MODEL, good, {})])
    assert (found["texts"], found["R@1"], found["R@10"]) == (4, 0.25, 0.75)
    assert found["video within reach"] == 0.5
    assert found["results within reach, of ten"] == pytest.approx((3 + 3 + 1 + 1) / 4)
    assert found["ECE of the first result"] == pytest.approx(1 / (1 + np.exp(-2.0)) - 0.25)


def test_generated_texts_are_repeatable() -> None:
    captions = ["a red taxi turns", "two owls sleep"]
    salad = word_salad(captions, 9, seed=1)
    assert salad == word_salad(captions, 9, seed=1) != word_salad(captions, 9, seed=2)
    words = {word for caption in captions for word in caption.split()}
    assert all(set(text.split()) <= words and len(set(text.split())) == len(text.split()) for text in salad)
    assert random_letters(9) == random_letters(9)
