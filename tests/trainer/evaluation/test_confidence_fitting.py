"""Confidence fitting against slow references, and on libraries with library results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from models.releases.release_state import CalibrationCaption
from models.routing.confidence_model import CONFIDENCE_DEPTH, RESULT_FEATURES, AnswerModel
from models.routing.routing_profiles import RoutingProfiles
from tests.word_routing import WordRouting
from trainer.evaluation.calibration_searches import (
    CalibrationTask,
    LabeledResults,
    label_results,
    remaining_captions,
    unrelated_texts,
)
from trainer.evaluation.confidence_fitting import calibration_error, fit_answer, fit_confidence, fit_logistic
from trainer.video_embedding import MemoryShard

DIM, WORDS, PRIOR = 8, 12, 0.04


class NumberEncoder(WordRouting):
    """An encoder of numbers as texts: vectors and tokens are drawn from the number, by task."""

    modes = ("pinned",)

    def __init__(self, noise: float = 0.0) -> None:
        self.noise = noise
        self.encoded_texts: list[str] = []

    def piece_presence(self, texts: Sequence[str]) -> np.ndarray:
        presence = np.zeros((len(texts), WORDS), np.float32)
        for row, text in enumerate(texts):
            task, number = map(int, text.split())
            presence[row, [3 * task, 3 * task + 1 + number % 2]] = 1
        return presence

    def encode(self, texts: Sequence[str], tasks: Sequence[str], mode: str) -> np.ndarray:
        assert len(tasks) == 1
        self.encoded_texts += texts
        return np.stack([self.vector(text, tasks[0]) for text in texts])[:, None]

    def vector(self, text: str, task: str) -> np.ndarray:
        of_text, number = map(int, text.split())
        vector = np.random.default_rng([of_text, number]).normal(size=DIM)
        vector += self.noise * np.random.default_rng([of_text, number, int(task), 1]).normal(size=DIM)
        return (vector / np.linalg.norm(vector)).astype(np.float32)


def _library(
    encoder: NumberEncoder, tasks: int = 3, videos: int = 30, captions: int = 12
) -> list[CalibrationTask]:
    """Return the tasks whose video vectors encode their texts without noise; captions belong to the first videos of
    each task.
    """
    clean = NumberEncoder()
    library = []
    for task in range(tasks):
        ids = np.arange(100 * task, 100 * task + videos)
        vectors = np.stack([clean.vector(f"{task} {number}", str(task)) for number in range(videos)])
        texts = tuple((100 * task + number, f"{task} {number}") for number in range(captions))
        # The last four videos are held out.
        library.append(CalibrationTask(str(task), MemoryShard(ids, vectors), ids[:-4], texts))
    return library


from_dense = RoutingProfiles.from_dense


def _profiles(tasks: int) -> np.ndarray:
    profiles = np.zeros((tasks, WORDS), np.float32)
    for task in range(tasks):
        profiles[task, 3 * task : 3 * task + 3] = [2.0, 1.0, 0.5]
    profiles[:, 0] += 0.25  # a token that all tasks share
    return profiles


@pytest.mark.parametrize("bare", [None, 1], ids=["all have captions", "one has none"])
def test_captions_are_searched_with_and_without_their_video_and_task(bare: int | None) -> None:
    encoder = NumberEncoder(noise=0.4)
    library, profiles = _library(encoder), _profiles(3)
    if bare is not None:
        library[bare] = replace(library[bare], captions=())
        profiles[bare] = 0
    answers = iter(list(label_results(encoder, library, from_dense(profiles), prior=PRIOR)))
    number = 0
    for row, task in enumerate(library):
        for video, text in task.captions:
            words = encoder.piece_presence([text])[0]
            for left_out, without in ((None, None), (None, video), (row, None)):
                log_odds = {t: float(words @ profiles[t]) for t in range(3) if t not in (left_out, bare)}
                if bare is not None:  # it has the evidence of the likeliest searched task
                    log_odds[bare] = max(log_odds.values())
                total = np.log(sum(np.exp(list(log_odds.values()))))
                cosines = [
                    (float(encoder.vector(text, other.task) @ other.shard.vectors(np.array([i]))[0]), t, i)
                    for t, other in enumerate(library)
                    if t in log_odds
                    for i in other.ids.tolist()
                    if i != without
                ]
                scores = ((cosine + PRIOR * (log_odds[t] - total), i) for cosine, t, i in cosines)
                best = sorted(scores, reverse=True)[:CONFIDENCE_DEPTH]
                answer = next(answers)
                assert (answer.caption, answer.present) == (number, left_out is None and without is None)
                np.testing.assert_allclose(answer.features[:, 0], [score for score, _ in best], atol=1e-6)
                np.testing.assert_array_equal(answer.relevant, [i == video for _, i in best])
                np.testing.assert_allclose(answer.features[:, 4], max(log_odds.values()) / 2, atol=1e-6)
                np.testing.assert_allclose(answer.features[:, 5], max(log_odds.values()) - total, atol=1e-6)
            number += 1
    assert next(answers, None) is None


def test_held_out_videos_are_excluded() -> None:
    encoder = NumberEncoder(noise=0.4)
    library = _library(encoder)
    held_out = {int(i) for task in library for i in np.setdiff1d(task.shard.ids, task.ids)}
    assert len(held_out) == 12

    class Watched(MemoryShard):
        def vectors(self, ids: np.ndarray) -> np.ndarray:
            assert not held_out & set(ids.tolist())
            return super().vectors(ids)

    watched = [
        replace(task, shard=Watched(task.shard.ids, task.shard.vectors(task.shard.ids))) for task in library
    ]
    reports: list[int] = []

    def report() -> None:
        reports.append(len(encoder.encoded_texts))

    fitted = fit_confidence(encoder, watched, from_dense(_profiles(3)), prior=PRIOR, report_alive=report)
    assert fitted is not None
    assert reports == sorted(set(reports)), "progress is reported between two tasks"
    assert len(reports) == 3
    assert set(encoder.encoded_texts) == {text for task in library for _, text in task.captions}


def test_caption_is_scored_against_a_bounded_number_of_tasks() -> None:
    encoder = NumberEncoder()
    few, many = _library(encoder, tasks=4, captions=10), _library(encoder, tasks=40, captions=1)
    list(label_results(encoder, few, from_dense(_profiles(4)), prior=PRIOR))
    encoded, encoder.encoded_texts = len(encoder.encoded_texts), []
    profiles = np.random.default_rng(0).random((40, WORDS)).astype(np.float32)
    encoder.piece_presence = lambda texts: np.ones((len(texts), WORDS), np.float32)  # type: ignore[method-assign]
    list(label_results(encoder, many, from_dense(profiles), prior=PRIOR))
    assert encoded == 4 * 40
    assert 5 * 40 <= len(encoder.encoded_texts) <= 6 * 40


def test_confidence_is_high_for_a_distinct_relevant_video_and_low_without_it() -> None:
    encoder = NumberEncoder(noise=0.5)
    library, profiles = _library(encoder, captions=20), _profiles(3)
    calibrated = fit_confidence(encoder, library, from_dense(profiles), prior=PRIOR)
    assert calibrated is not None
    assert calibrated.captions == 60
    assert min(calibrated.weights[:RESULT_FEATURES]) >= 0
    sure: dict[bool, list[float]] = {True: [], False: []}
    confidences, right = [], []
    for results in label_results(encoder, library, from_dense(profiles), prior=PRIOR):
        odds = results.features @ np.array(calibrated.weights) + calibrated.bias
        sure[results.present].append(1 / (1 + np.exp(-odds[0])))
        if results.present:
            confidences.append(sure[True][-1])
            right.append(results.relevant[0])
    assert np.mean(sure[True]) > 2 * np.mean(sure[False])
    assert np.mean(confidences) == pytest.approx(np.mean(right), abs=0.1)
    assert calibrated.error < 0.3


def test_unrelated_texts_are_searched_once_in_the_whole_library() -> None:
    encoder = NumberEncoder(noise=0.4)
    library = _library(encoder, captions=2)
    searches = list(
        label_results(encoder, library, from_dense(_profiles(3)), prior=PRIOR, unrelated=["0 77", "2 78"])
    )
    assert [search.searched for search in searches[:3]] == ["all", "without video", "without task"]
    assert [search.searched for search in searches[18:]] == ["unrelated"] * 2
    assert not any(search.relevant.any() for search in searches[18:])
    for search in searches:
        if search.searched != "all":
            assert np.isnan(search.distance)
        elif search.relevant.any():
            rank = int(search.relevant.argmax())
            assert search.distance == pytest.approx(search.features[0, 0] - search.features[rank, 0])
        else:
            assert search.distance >= search.features[0, 0] - search.features[-1, 0]


def test_training_captions_have_their_stored_results_in_their_own_task() -> None:
    encoder = NumberEncoder(noise=0.4)
    library, profiles = _library(encoder, captions=0), _profiles(3)
    stored = CalibrationCaption(
        "1",
        105,
        "1 5",
        words=1.25,
        captions=0.0,
        coverage=0.5,
        score=0.2,
        ids=(103, 999, 105),
        cosines=(0.9, 0.8, 0.2),
    )
    deleted = replace(stored, video=999)
    unknown = replace(stored, task="7")
    fitted = [stored, deleted, unknown]
    remaining = remaining_captions(library, fitted)
    whole, without, elsewhere = label_results(
        encoder, library, from_dense(profiles), prior=PRIOR, fitted=remaining
    )
    log_odds = encoder.piece_presence(["1 5"])[0] @ profiles.T
    log_odds[1] = 1.25
    bonuses = PRIOR * (log_odds - np.log(np.exp(log_odds).sum()))
    videos = {
        video: float(encoder.vector("1 5", task.task) @ task.shard.vectors(np.array([video]))[0]) + bonus
        for task, bonus in zip(library, bonuses, strict=True)
        if task.task != "1"
        for video in task.ids.tolist()
    }
    videos |= {103: 0.9 + bonuses[1], 105: 0.2 + bonuses[1]}  # the other stored result was deleted
    best = sorted(videos.values(), reverse=True)[:CONFIDENCE_DEPTH]
    np.testing.assert_allclose(whole.features[:, 0], best, atol=1e-6)
    assert whole.distance == pytest.approx(max(0, best[0] - videos[105]), abs=1e-6)
    assert (without.searched, elsewhere.searched) == ("without video", "without task")


def _probabilities(answer: AnswerModel, searches: Sequence[LabeledResults], searched: str) -> np.ndarray:
    features = np.array([search.answer for search in searches if search.searched == searched])
    return np.asarray(1 / (1 + np.exp(-(features @ np.array(answer.weights) + answer.bias))))


def test_answer_model_tells_texts_with_a_video_from_others() -> None:
    encoder = NumberEncoder(noise=1.0)
    library, profiles = _library(encoder, captions=20), _profiles(3)
    searches = list(label_results(encoder, library, from_dense(profiles), prior=PRIOR))
    answer = fit_answer(searches)
    assert answer is not None
    assert min(answer.weights) >= 0

    has_video = _probabilities(answer, searches, "all")
    without_task = _probabilities(answer, searches, "without task")
    assert np.mean(has_video) > np.mean(without_task) + 0.3
    assert np.mean(has_video >= answer.threshold) >= 0.9
    assert answer.threshold <= 0.5
    distances = [search.distance for search in searches if search.present]
    assert 0.9 <= np.mean(np.array(distances) <= answer.reach) <= 0.95
    assert 0 <= answer.error < 0.3


@pytest.mark.parametrize(("count", "rank"), [(19, 18), (9, 9), (4, 4)])
def test_reach_is_the_conformal_quantile_of_the_distances(count: int, rank: int) -> None:
    """The ⌈0.9 (n + 1)⌉-th smallest of n distances (Vovk et al., split conformal prediction), else the largest."""
    encoder = NumberEncoder(noise=1.0)
    searches = list(
        label_results(encoder, _library(encoder, captions=20), from_dense(_profiles(3)), prior=PRIOR)
    )
    present = [search for search in searches if search.present][:count]
    measured = [search._replace(distance=float(place)) for place, search in enumerate(present, start=1)]
    answer = fit_answer(measured + [search for search in searches if not search.present])
    assert answer is not None
    assert answer.reach == rank


def test_almost_all_unrelated_texts_are_refused_although_described_ones_are_then_too() -> None:
    """Unrelated texts look like the described ones, as in libraries with one-word captions."""
    encoder = NumberEncoder(noise=1.0)
    library, profiles = _library(encoder, captions=20), _profiles(3)
    others = [text for task in library for _, text in task.captions][::2]
    searches = list(label_results(encoder, library, from_dense(profiles), prior=PRIOR, unrelated=others))
    answer = fit_answer(searches)
    assert answer is not None
    assert np.mean(_probabilities(answer, searches, "unrelated") < answer.threshold) >= 0.9


def test_answer_model_needs_texts_without_a_video() -> None:
    encoder = NumberEncoder(noise=0.3)
    library, profiles = _library(encoder, tasks=1, captions=25), _profiles(1)
    alone = fit_confidence(encoder, library, from_dense(profiles), prior=PRIOR)
    assert alone is not None
    assert alone.answer is None
    others = [f"2 {number}" for number in range(20)]
    fitted = fit_confidence(encoder, library, from_dense(profiles), prior=PRIOR, unrelated=others)
    assert fitted is not None
    assert fitted.answer is not None
    assert fitted.weights == pytest.approx(alone.weights, rel=1e-5)


def test_unrelated_texts_are_distinct_and_repeatable() -> None:
    texts = unrelated_texts()
    assert texts == unrelated_texts()
    assert len(set(texts)) == len(texts) > 40


def test_no_model_is_fitted_to_few_captions() -> None:
    encoder = NumberEncoder()
    for captions, enough in ((2, False), (3, True)):
        library = _library(encoder, captions=captions)
        fitted = fit_confidence(encoder, library, from_dense(_profiles(3)), prior=PRIOR)
        assert (fitted is not None) == enough
    assert fit_confidence(encoder, [], from_dense(np.empty((0, WORDS))), prior=PRIOR) is None


def test_logistic_fit_minimizes_the_cross_entropy() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(400, 3)) * [1, 5, 0.1] + [0, 3, 1]
    right = rng.random(400) < 1 / (1 + np.exp(-(rows @ [1.0, 0.4, -8.0] + 6)))
    counts = rng.random(400)

    def loss(weights: np.ndarray, bias: float) -> float:
        odds = rows @ weights + bias
        return float(
            sum(c * (np.log1p(np.exp(o)) - o * r) for c, o, r in zip(counts, odds, right, strict=True))
        )

    weights, bias = fit_logistic(rows, right, counts, 0)
    for step in 0.02 * np.eye(4):
        for sign in (1, -1):
            moved = weights + sign * step[:3] / rows.std(axis=0)
            # The ridge penalty is negligible.
            assert loss(moved, bias + sign * step[3]) > loss(weights, bias) - 1e-3
    assert weights[2] < 0
    bounded, _ = fit_logistic(rows, right, counts, 3)
    assert bounded[2] == 0
    assert (bounded >= 0).all()
    assert bounded[1] > 0


def test_logistic_fit_of_separable_classes_is_finite() -> None:
    rows = np.arange(20.0)[:, None]
    weights, bias = fit_logistic(rows, rows[:, 0] > 9.5, np.ones(20), 1)
    assert np.isfinite([*weights, bias]).all()
    assert weights[0] > 0


def test_calibration_error_equals_a_slow_reference() -> None:
    rng = np.random.default_rng(1)
    confidences = np.append(rng.random(300), [0.0, 1.0])
    right = rng.random(302) < confidences**2
    gap = 0.0
    for low in np.arange(10) / 10:
        inside = [
            (s, r)
            for s, r in zip(confidences, right, strict=True)
            if low <= s < low + 0.1 or (low == 0.9 and s == 1)
        ]
        gap += abs(sum(s - r for s, r in inside)) / 302
    assert calibration_error(confidences, right) == pytest.approx(gap)
    counts = rng.integers(0, 4, 302)
    repeated = calibration_error(np.repeat(confidences, counts), np.repeat(right, counts))
    assert calibration_error(confidences, right, counts) == pytest.approx(repeated)
    assert calibration_error(np.array([0.25] * 8), np.array([True, False, False, False] * 2)) == 0
