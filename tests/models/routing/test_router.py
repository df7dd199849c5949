"""Routing evidence of word pieces and mean captions, and its summary, against dense matrices and slow references."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from models.backbones.backbone_description import TextBackground
from models.routing.router import (
    COSINE_LIMIT,
    CaptionEvidence,
    CaptionScatter,
    Floats,
    Router,
    as_slice,
    can_reach_score,
    log_weights,
    summarize_evidence,
)
from models.routing.routing_profiles import (
    VOCABULARY,
    RoutingProfiles,
    count_pieces,
    distinct_pieces,
    piece_presence,
    profile_row,
    split_pieces,
    token_profile,
)


def test_token_profile_is_log_of_one_plus_lift() -> None:
    profile = token_profile(np.array([3.0, 1.0, 0.0, 0.0]))
    expected = np.array([math.log(1 + 4 * 3 / 4), math.log(1 + 4 * 1 / 4), 0, 0], np.float16)
    assert profile.tolist() == expected.tolist()  # in the precision of a release
    weighted = token_profile(np.array([3.0, 1.0, 0.0, 0.0]), 0.3)
    assert weighted.tolist() == (expected.astype(np.float32) * np.float32(0.3)).astype(np.float16).tolist()
    assert token_profile(np.zeros(4)).tolist() == [0, 0, 0, 0]


def test_profile_row_is_the_profile_of_the_captions() -> None:
    """A repeated piece of a caption counts once."""
    captions = ["a heron and a heron", "the heron's lake", "a lake", ""]
    expected = RoutingProfiles.from_dense(token_profile(piece_presence(captions).sum(axis=0), 0.3)[None])
    tokens, values = profile_row(captions, 0.3)
    np.testing.assert_array_equal(tokens, expected.tokens)
    np.testing.assert_array_equal(values, expected.values)
    assert [len(part) for part in profile_row([], 1.0)] == [0, 0]


def test_log_weights_are_normalized_and_prefer_matching_tasks() -> None:
    profiles = np.array([[2.0, 0.0, 1.0], [0.0, 2.0, 1.0]], np.float32)
    weights = np.exp(log_weights(np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1]], np.float32), profiles))
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-6)
    odds = math.exp(2) / (1 + math.exp(2))
    np.testing.assert_allclose(weights, [[odds, 1 - odds], [1 - odds, odds], [0.5, 0.5]], rtol=1e-5)


def test_task_without_captions_gets_the_score_of_the_likeliest_task() -> None:
    profiles = np.array([[2.0, 0.0], [0.0, 2.0], [0.0, 0.0]], np.float32)
    weights = log_weights(np.array([[1, 0]], np.float32), profiles)[0]
    assert weights[2] == weights[0] > weights[1]
    alone = log_weights(np.array([[1, 0]], np.float32), np.zeros((2, 2), np.float32))
    np.testing.assert_allclose(np.exp(alone), [[0.5, 0.5]], rtol=1e-6)


def test_router_equals_dense_log_weights() -> None:
    rng = np.random.default_rng(3)
    profiles = np.maximum(rng.normal(size=(5, 40)), 0).astype(np.float32)
    profiles[2] = 0  # a task without captions
    presence = (rng.random((6, 40)) < 0.2).astype(np.float32)
    router = Router(RoutingProfiles.from_dense(profiles))
    for tasks in ([0, 1, 2, 3, 4], [4, 2, 1], [2], [3, 0]):
        many = log_weights(presence, profiles[tasks])
        for row, text in zip(many, presence, strict=True):
            one, *_ = router.route(np.flatnonzero(text), np.array(tasks))
            np.testing.assert_allclose(one, row, atol=1e-5)


def test_consecutive_tasks_are_routed_like_listed_ones() -> None:
    router = Router(RoutingProfiles.from_dense(PROFILES))
    part = as_slice(np.arange(1, 3))
    assert part == slice(1, 3)
    for listed, selected in zip(
        router.route(TOKENS, np.arange(1, 3)), router.route(TOKENS, part), strict=True
    ):
        np.testing.assert_array_equal(listed, selected)
    for indices in ([], [0, 2], [1, 0]):
        assert np.asarray(as_slice(np.array(indices, np.int64))).tolist() == indices


def test_bounded_evidence_mixes_the_weights_with_equal_ones() -> None:
    profiles = np.array([[9.0, 1.0], [1.0, 2.0], [1.0, 2.5]], np.float32)
    router, tasks = Router(RoutingProfiles.from_dense(profiles)), np.arange(3)
    tokens = np.array([0])
    captions = np.array([-300.0, 0.0, -0.25], np.float32)
    evidence = np.array([9.0 - 0.5, 1.0, 1.0 - 0.25])
    weights = np.exp(evidence) / np.exp(evidence).sum() + 0.2 / 3
    expected = np.log(weights / weights.max())
    _, bounded, _ = router.route(tokens, tasks, captions)
    np.testing.assert_allclose(bounded, expected, atol=1e-5)
    assert expected.min() > -math.log(1 + 3 / 0.2)
    _, alone, _ = router.route(tokens, tasks[:1])
    assert alone.tolist() == [0]


def test_can_reach_score_keeps_every_task_with_a_sufficient_video() -> None:
    """All cosines of unit vectors, also in half precision, against all bars; no task is kept beyond the limit."""
    rng = np.random.default_rng(8)
    texts, videos = (rng.normal(size=(n, 3)).astype(np.float32) for n in (40, 30))
    videos[:10] = texts[:10]  # cosines of exactly 1
    texts, videos = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (texts, videos))
    halves = [torch.from_numpy(v).bfloat16().float().numpy() for v in (texts, videos)]
    cosines = np.maximum(texts @ videos.T, halves[0] @ halves[1].T)
    bonuses = rng.uniform(-3, 0, (40, 1))
    bars = np.concatenate([rng.uniform(-3, 1.1, 50), (cosines + bonuses).ravel()])
    for text in range(40):
        can_reach = can_reach_score(bonuses[text], bars)
        assert can_reach[(cosines[text] + bonuses[text]).max() >= bars].all()
        assert not can_reach[bonuses[text] + COSINE_LIMIT < bars].any()
    assert can_reach_score(bonuses, -np.inf).all()
    bounds, lowest = np.array([[-0.5, -2.0], [0.0, -0.2]]), np.array([[0.4], [0.9]])
    assert can_reach_score(bounds, lowest).tolist() == [[True, False]] * 2


PROFILES = np.array(
    [[1.5, 0.5, 0.0, 0.0, 2.0], [0.0, 0.0, 0.0, 0.0, 0.0], [0.0, 1.0, 3.0, 0.0, 0.0]], np.float32
)
TOKENS = np.array([0, 1, 3])


def test_summary_of_words_and_caption_evidence() -> None:
    captions = np.array([-2.0, 0.0, -1.0], np.float32)
    router, positions = Router(RoutingProfiles.from_dense(PROFILES)), np.arange(3)
    words, coverage = router.word_evidence(TOKENS, positions)
    np.testing.assert_allclose(words, [2.0, 0.0, 1.0])
    np.testing.assert_allclose(coverage, [2 / 3, 0, 1 / 3])
    summary = summarize_evidence(words, captions, coverage, router.profiles.has_captions, 3)
    # The task without captions has the evidence of the likeliest other one, so all have 0.
    assert summary.familiarity == pytest.approx(0)
    assert summary.log_weight == pytest.approx(-np.log(3), abs=1e-6)
    assert summary.words == pytest.approx(2.0 / 3)
    assert summary.captions == pytest.approx(-1.0)
    assert summary.coverage == pytest.approx(2 / 3)


def test_tasks_without_captions_alone_have_no_evidence() -> None:
    zeros = np.zeros(2, np.float32)
    summary = summarize_evidence(zeros, zeros - 3, zeros, np.zeros(2, np.bool_), 4)
    assert (summary.words, summary.captions, summary.coverage) == (0.0, 0.0, 0.0)
    assert summarize_evidence(zeros, zeros, zeros, np.zeros(2, np.bool_), 0).familiarity == 0.0


def _dense(tasks: int = 6, vocabulary: int = 30) -> np.ndarray:
    rng = np.random.default_rng(4)
    dense = np.where(rng.random((tasks, vocabulary)) < 0.3, rng.random((tasks, vocabulary)), 0)
    dense[[0, 3]] = 0  # tasks without captions
    return dense.astype(np.float32)


def test_dense_matrix_round_trips() -> None:
    dense = _dense()
    profiles = RoutingProfiles.from_dense(dense)
    assert len(profiles) == 6
    assert len(profiles.values) == np.count_nonzero(dense)
    np.testing.assert_array_equal(profiles.to_dense(), dense)
    np.testing.assert_array_equal(profiles.to_dense([5, 0, 2]), dense[[5, 0, 2]])
    assert profiles.has_captions.tolist() == dense.any(axis=1).tolist()
    assert profiles.rows.tolist() == dense.nonzero()[0].tolist()


@pytest.mark.parametrize(
    "damage",
    [
        {"tokens": np.array([1, 1, 2])},  # a repeated token
        {"tokens": np.array([2, 1, 1])},
        {"tokens": np.array([0, 1, 4])},  # out of range
        {"tokens": np.array([-1, 1, 2])},
        {"tokens": np.array([0, 1])},
        {"ends": np.array([2, 4])},
        {"ends": np.array([3, 2, 3])},
        {"ends": np.array([2])},
        {"values": np.ones((3, 1), np.float32)},
    ],
)
def test_invalid_arrays_are_refused(damage: dict[str, Any]) -> None:
    valid = {"tokens": np.array([0, 3, 1]), "values": np.ones(3, np.float32), "ends": np.array([2, 3])}
    RoutingProfiles(**valid, vocabulary=4)
    with pytest.raises(ValueError, match="over 4 tokens"):
        RoutingProfiles(**{**valid, **damage}, vocabulary=4)


DIM = 4
SIZES = (6, 1, 9)  # captions per task


def _background() -> TextBackground:
    rng = np.random.default_rng(10)
    root = rng.normal(size=(DIM, DIM)) * 0.3
    precision = np.linalg.inv(root @ root.T + 0.05 * np.eye(DIM))
    mean = rng.normal(size=DIM) * 0.1
    return TextBackground(mean.astype(np.float32), ((precision + precision.T) / 2).astype(np.float32))


def _captions() -> list[Floats]:
    rng = np.random.default_rng(11)
    return [(rng.normal(size=(n, DIM)) + rng.normal(size=DIM)).astype(np.float32) for n in SIZES]


def _scatter() -> CaptionScatter:
    scatter = CaptionScatter.empty(DIM)
    for captions in _captions():
        scatter = scatter.add(captions)
    return scatter


def _reference(texts: Floats, means: list[Floats | None], factor: float) -> np.ndarray:
    """Compute log-likelihood ratios of normal distributions with a common covariance one by one."""
    background, captions = _background(), _captions()
    total = 200 * np.linalg.inv(background.precision.astype(np.float64))
    freedom = 200
    for group in captions:
        mean = group.astype(np.float64).mean(axis=0)
        for caption in group.astype(np.float64):
            total += np.outer(caption - mean, caption - mean)
        freedom += len(group) - 1
    precision = np.linalg.inv(total / freedom)
    generic = background.mean.astype(np.float64)

    def log_likelihood(text: np.ndarray, mean: np.ndarray) -> float:
        return float(-(text - mean) @ precision @ (text - mean) / 2)

    ratios = np.zeros((len(texts), len(means)))
    for row, text in zip(ratios, texts.astype(np.float64), strict=True):
        for task, mean in enumerate(means):
            if mean is not None:
                row[task] = factor * (log_likelihood(text, mean) - log_likelihood(text, generic))
    return ratios


def test_evidence_is_the_log_likelihood_ratio_to_generic_texts() -> None:
    means: list[Floats | None] = [group.mean(axis=0) for group in _captions()]
    means.insert(1, None)
    texts = np.random.default_rng(12).normal(size=(5, DIM + 3)).astype(np.float32)
    stored = np.stack([np.zeros(DIM, np.float32) if mean is None else mean for mean in means])
    has_mean = np.array([mean is not None for mean in means])
    evidence = CaptionEvidence(_scatter(), _background(), stored, has_mean, 0.5)
    expected = _reference(texts[:, :DIM], means, 0.5)
    np.testing.assert_allclose(evidence(texts, np.arange(4)), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(evidence(texts, np.array([3, 0])), expected[:, [3, 0]], rtol=1e-4, atol=1e-5)


def test_precision_without_captions_is_that_of_the_background() -> None:
    precision = CaptionScatter.empty(DIM).precision(_background())
    np.testing.assert_allclose(precision, _background().precision, rtol=1e-4, atol=1e-4)


def test_scatter_is_that_within_tasks_and_independent_of_their_order() -> None:
    forward, backward = _scatter(), CaptionScatter.empty(DIM)
    for captions in reversed(_captions()):
        backward = backward.add(captions)
    np.testing.assert_allclose(forward.scatter, backward.scatter, rtol=1e-5)
    assert float(forward.freedom) == float(backward.freedom) == sum(SIZES) - len(SIZES)
    # A shift of all captions of a task does not change the scatter.
    shifted = CaptionScatter.empty(DIM)
    for number, captions in enumerate(_captions()):
        shifted = shifted.add(captions + 3 * number)
    np.testing.assert_allclose(shifted.scatter, forward.scatter, rtol=1e-4, atol=1e-4)
    loaded = CaptionScatter.from_tensors(forward.tensors())
    assert np.array_equal(loaded.precision(_background()), forward.precision(_background()))


TEXTS = ["A Heron by the heron's lake", "", "quokkas"]


def test_pieces_are_those_of_the_tokenizer_without_special_tokens() -> None:
    heron, *_ = split_pieces(["heron"])[0].tolist()
    in_order, empty, parts = (pieces.tolist() for pieces in split_pieces(TEXTS))
    assert in_order.count(heron) == 2
    assert empty == []
    assert len(parts) > 1
    assert all(0 <= piece < VOCABULARY for piece in in_order + parts)
    assert [pieces.tolist() for pieces in distinct_pieces(TEXTS)] == [
        sorted(set(pieces)) for pieces in (in_order, empty, parts)
    ]
    assert [set(np.flatnonzero(row).tolist()) for row in piece_presence(TEXTS)] == [
        set(in_order),
        set(),
        set(parts),
    ]
    assert count_pieces(TEXTS).tolist() == piece_presence(TEXTS).sum(axis=0).tolist()
