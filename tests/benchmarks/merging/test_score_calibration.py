"""Score calibration and merging rules against their definitions."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from benchmarks.merging.comparison import clustered_mean
from benchmarks.merging.merging_rules import merging_rules
from benchmarks.merging.score_calibration import (
    Affine,
    bank_norms,
    centroids,
    dynamic_inverted_softmax,
    fit_affine,
    fit_scales,
    inverted_softmax,
    keep_candidates,
    late_interaction,
    own_shard,
    prototype_weights,
    query_hubs,
    shard_posteriors,
    shard_statistics,
    standardize,
)
from benchmarks.merging.score_matrices import ScoreMatrix
from trainer.evaluation.retrieval_metrics import rank_by_id

Array = npt.NDArray[Any]
TASKS = 3


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(5)


@pytest.fixture
def matrix(rng: np.random.Generator) -> ScoreMatrix:
    return random_scores(rng, texts=24, videos=15)


def random_scores(rng: np.random.Generator, texts: int, videos: int, bank: int = 21) -> ScoreMatrix:
    """Shards whose scores differ in mean and spread, every task with captions and videos."""
    rows, columns, bank_rows = (np.arange(n) % TASKS for n in (texts, videos, bank))
    mean, spread = np.array([0.1, 0.4, 0.2])[columns], np.array([0.05, 0.1, 0.3])[columns]
    truth = np.array([rng.choice(np.flatnonzero(columns == task)) for task in rows])
    cosines = mean + spread * rng.standard_normal((texts, videos))
    cosines[np.arange(texts), truth] += 0.1
    evidence = rng.standard_normal((texts, TASKS)) + 3 * (rows[:, None] == np.arange(TASKS))
    evidence -= np.log(np.exp(evidence).sum(axis=1, keepdims=True))
    return ScoreMatrix(
        cosines=cosines,
        rows=rows,
        columns=columns,
        truth=truth,
        evidence=evidence,
        bank=mean + spread * rng.standard_normal((bank, videos)),
        bank_rows=bank_rows,
    )


# --- rules ---


def test_standardize_subtracts_mean_and_divides_by_deviation_of_the_shard(matrix: ScoreMatrix) -> None:
    mean, deviation = shard_statistics(matrix.bank, matrix.bank_rows, matrix.columns)
    scores = standardize(matrix.cosines, matrix.columns, mean, deviation)
    for text in range(len(matrix.rows)):
        for video, task in enumerate(matrix.columns):
            scores_of_task = [
                matrix.bank[b, v]
                for b, other in enumerate(matrix.bank_rows)
                for v, its in enumerate(matrix.columns)
                if other == its == task
            ]
            mu = sum(scores_of_task) / len(scores_of_task)
            sigma = math.sqrt(sum((s - mu) ** 2 for s in scores_of_task) / len(scores_of_task))
            assert scores[text, video] == pytest.approx((matrix.cosines[text, video] - mu) / sigma)


@pytest.mark.parametrize("own", [True, False])
def test_inverted_softmax_matches_its_definition(matrix: ScoreMatrix, own: bool) -> None:
    beta = 7.0
    bank = own_shard(matrix.bank, matrix.bank_rows, matrix.columns) if own else matrix.bank
    scores = inverted_softmax(matrix.cosines, bank_norms(bank, beta))
    for text in range(len(matrix.rows)):
        for video, task in enumerate(matrix.columns):
            captions = [b for b, other in enumerate(matrix.bank_rows) if other == task or not own]
            below = sum(math.exp(beta * matrix.bank[b, video]) for b in captions) / len(captions)
            share = math.exp(beta * matrix.cosines[text, video]) / below
            assert math.exp(beta * scores[text, video]) == pytest.approx(share)


def test_dynamic_inverted_softmax_applies_to_hub_queries_only(matrix: ScoreMatrix) -> None:
    beta, bank = 20.0, matrix.bank
    norms = bank_norms(bank, beta)
    scores = dynamic_inverted_softmax(matrix.cosines, norms, query_hubs(bank))
    hubs = {max(range(bank.shape[1]), key=lambda v: bank[b, v]) for b in range(len(bank))}
    hub_queries = 0
    for text, row in enumerate(matrix.cosines):
        hub = max(range(len(row)), key=lambda v: row[v]) in hubs
        hub_queries += hub
        np.testing.assert_allclose(scores[text], row - norms if hub else row)
    assert 0 < hub_queries < len(matrix.rows), "both cases must occur"


def _likelihood(matrix: ScoreMatrix, fitted: Affine, own: bool = False) -> float:
    """Mean log-likelihood of the captions' videos, less the ridge."""
    total = 0.0
    for text, row in enumerate(matrix.cosines):
        lift = fitted.shift + fitted.words * matrix.evidence[text]
        scores = {
            video: fitted.scale[task] * row[video] + lift[task]
            for video, task in enumerate(matrix.columns)
            if not own or task == matrix.rows[text]
        }
        total += scores[matrix.truth[text]] - math.log(sum(math.exp(s) for s in scores.values()))
    ridge = np.mean(np.log(fitted.scale) ** 2) + np.mean(fitted.shift**2) + fitted.words**2
    return float(total / len(matrix.rows) - 1e-3 * ridge)


def _perturbed(fitted: Affine, field: str) -> list[Affine]:
    """Copies of the fit with one temperature or bias changed by a small or large step."""
    steps = [step * one for step in (-1.0, -0.1, 0.1, 1.0) for one in np.eye(TASKS)]
    if field == "scale":
        return [replace(fitted, scale=fitted.scale * np.exp(step)) for step in steps]
    return [replace(fitted, shift=fitted.shift + step) for step in steps]


def test_fit_scales_maximizes_likelihood(matrix: ScoreMatrix) -> None:
    fitted = fit_scales(matrix.cosines, matrix.rows, matrix.columns, matrix.truth)
    assert not fitted.shift.any()
    best = _likelihood(matrix, fitted, own=True)
    assert all(_likelihood(matrix, one, own=True) < best for one in _perturbed(fitted, "scale"))


def test_fit_affine_maximizes_likelihood(matrix: ScoreMatrix) -> None:
    unweighted = fit_affine(matrix.cosines, matrix.columns, matrix.truth)
    assert unweighted.words == 0
    weighted = fit_affine(matrix.cosines, matrix.columns, matrix.truth, matrix.evidence)
    assert weighted.words > 0
    others = [replace(weighted, words=weighted.words + step) for step in (-0.3, 0.3)]
    assert all(_likelihood(matrix, one) < _likelihood(matrix, weighted) for one in others)
    for fitted in (unweighted, weighted):
        best = _likelihood(matrix, fitted)
        assert all(
            _likelihood(matrix, one) < best for w in ("scale", "shift") for one in _perturbed(fitted, w)
        )


def test_identity_affine_keeps_raw_cosines(matrix: ScoreMatrix) -> None:
    raw = Affine(np.ones(TASKS), np.zeros(TASKS))
    np.testing.assert_array_equal(raw(matrix.cosines, matrix.columns), matrix.cosines)
    np.testing.assert_array_equal(raw(matrix.cosines, matrix.columns, matrix.evidence), matrix.cosines)


def test_shard_posteriors_sum_to_one_within_a_shard(matrix: ScoreMatrix) -> None:
    scores = shard_posteriors(matrix.cosines, matrix.columns)
    for text, row in enumerate(matrix.cosines):
        for video, task in enumerate(matrix.columns):
            total = sum(math.exp(row[v]) for v, other in enumerate(matrix.columns) if other == task)
            assert math.exp(scores[text, video]) == pytest.approx(math.exp(row[video]) / total)


@pytest.mark.parametrize("r", [1, 2])
def test_keep_candidates_ranks_candidate_tasks_first_by_score(matrix: ScoreMatrix, r: int) -> None:
    kept = keep_candidates(matrix.cosines, matrix.columns, matrix.evidence, r)
    for text, row in enumerate(matrix.cosines):
        likeliest = sorted(range(TASKS), key=lambda task: -matrix.evidence[text, task])[:r]
        expected = sorted(range(len(row)), key=lambda v: (matrix.columns[v] not in likeliest, -row[v]))
        assert np.argsort(-kept[text]).tolist() == expected


def test_keep_candidates_with_all_tasks_changes_nothing(matrix: ScoreMatrix) -> None:
    kept = keep_candidates(matrix.cosines, matrix.columns, matrix.evidence, TASKS)
    np.testing.assert_array_equal(kept, matrix.cosines)


def _units(rng: np.random.Generator, *shape: int) -> Array:
    vectors = rng.standard_normal(shape)
    return (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).astype(np.float32)


def test_single_centroid_is_the_mean_direction(rng: np.random.Generator) -> None:
    vectors = _units(rng, 20, 6)
    mean = vectors.sum(axis=0)
    np.testing.assert_allclose(centroids(vectors, 1, rng)[0], mean / np.linalg.norm(mean), rtol=1e-5)


def test_centroids_find_clusters(rng: np.random.Generator) -> None:
    middles = np.eye(6, dtype=np.float32)[:4]
    vectors = np.repeat(middles, 5, axis=0) + 0.05 * rng.standard_normal((20, 6)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    found = centroids(vectors, 4, rng)
    for middle in range(4):
        mean = vectors[5 * middle : 5 * middle + 5].sum(axis=0)
        assert min(np.abs(found - mean / np.linalg.norm(mean)).max(axis=1)) < 1e-5
    assert len(centroids(vectors[:2], 4, rng)) == 2


def test_prototype_weight_is_the_cosine_of_the_nearest_prototype(rng: np.random.Generator) -> None:
    texts, prototypes = _units(rng, 5, 4), [_units(rng, k, 4) for k in (1, 3)]
    weights = prototype_weights(texts, prototypes)
    for text, vector in enumerate(texts):
        for task, owned in enumerate(prototypes):
            assert weights[text, task] == pytest.approx(max(float(vector @ p) for p in owned))


@pytest.mark.parametrize("tau", [0.0, 0.05])
def test_late_interaction_matches_its_definition(rng: np.random.Generator, tau: float) -> None:
    texts, frames = _units(rng, 7, 5), _units(rng, 4, 3, 5)
    scores = late_interaction(texts, frames, tau, texts_per_chunk=3)
    for text, vector in enumerate(texts):
        for video, shots in enumerate(frames):
            cosines = [float(vector @ shot) for shot in shots]
            weights = [math.exp(c / tau) for c in cosines] if tau else []
            pooled = (
                sum(w * c for w, c in zip(weights, cosines, strict=True)) / sum(weights)
                if tau
                else max(cosines)
            )
            assert scores[text, video] == pytest.approx(pooled, abs=1e-6)


@pytest.mark.parametrize("tau", [0.0, 0.01, 1.0])
def test_late_interaction_of_one_frame_is_the_cosine(rng: np.random.Generator, tau: float) -> None:
    texts, videos = _units(rng, 7, 5), _units(rng, 4, 5)
    np.testing.assert_allclose(late_interaction(texts, videos[:, None], tau), texts @ videos.T, atol=1e-6)


def test_clustered_mean_counts_captions_of_a_video_as_one_sample(rng: np.random.Generator) -> None:
    differences, videos = rng.standard_normal(12), np.arange(12) % 4
    mean, error = clustered_mean(differences, videos)
    parts = [sum(d - mean for d, v in zip(differences, videos, strict=True) if v == one) for one in range(4)]
    assert (mean, error) == pytest.approx((sum(differences) / 12, math.sqrt(sum(p * p for p in parts)) / 12))
    once, again = (
        clustered_mean(differences, np.arange(12)),
        clustered_mean(np.repeat(differences, 5), np.repeat(np.arange(12), 5)),
    )
    assert again == pytest.approx(once), "repeated captions are no additional evidence"


def test_rules_score_every_query_independently(rng: np.random.Generator, matrix: ScoreMatrix) -> None:
    training, tuning = random_scores(rng, 21, 15), random_scores(rng, 18, 9)
    alone = replace(
        matrix,
        cosines=matrix.cosines[:1],
        rows=matrix.rows[:1],
        truth=matrix.truth[:1],
        evidence=matrix.evidence[:1],
    )
    for name, candidates in merging_rules(training, tuning).items():
        for one in candidates:
            np.testing.assert_allclose(
                one.score(alone), one.score(matrix)[:1], err_msg=f"{name} {one.parameters}"
            )


def test_ranks_follow_the_tie_rule(matrix: ScoreMatrix) -> None:
    scores = np.round(matrix.cosines, 1)
    expected = rank_by_id(scores, range(len(matrix.columns)), matrix.truth)
    np.testing.assert_array_equal(matrix.ranks(scores), expected)
    assert (matrix.ranks(scores) % 1 == 0.5).any(), "some scores must be equal"
