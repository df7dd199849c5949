"""Drift of appended videos: recall in one gallery, and the interval of its difference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from cinestrata_schemas.tasks import Drift
from index.arrays import moment_ids
from trainer.evaluation.append_drift import compare_hits, difference_interval, measure_drift
from trainer.evaluation.gallery import Query
from trainer.video_embedding import MemoryShard

DIM = 16


class NumberEncoder:
    """Encodes the text ``"<video>"`` as that video's vector, and ``"?<seed>"`` as a random one."""

    modes = ("pinned",)

    def __init__(self, vectors: np.ndarray) -> None:
        self.rows = vectors

    def encode(self, texts: Sequence[str], tasks: Sequence[str], mode: str) -> np.ndarray:
        assert (list(tasks), mode) == (["day"], "pinned")
        vectors = [
            _unit(np.random.default_rng(int(text[1:])).normal(size=(1, DIM)))[0]
            if text.startswith("?")
            else self.rows[int(text)]
            for text in texts
        ]
        return np.array(vectors, np.float32)[:, None]


def _unit(rows: np.ndarray) -> np.ndarray:
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)


def measure(
    appended: Sequence[Query], *, videos: int = 200, captions: int = 40, is_learned: bool = False
) -> Drift:
    """Measure drift in a gallery of random videos, of which the domain's ``captions`` find the first ones."""
    rows = _unit(np.random.default_rng(0).normal(size=(videos, DIM)))
    ids = np.arange(videos, dtype=np.int64)
    moments = moment_ids(0, 2)  # equal to a video: they must not compete
    every = np.concatenate([ids, moments])
    vectors = np.concatenate([rows, rows[[1, 2]]])
    shard = MemoryShard(every, vectors)
    domain = [Query(str(video), video) for video in range(captions)]
    encoder: Any = NumberEncoder(rows)
    drift = measure_drift(encoder, "day", shard, domain, appended, is_learned=is_learned)
    assert drift is not None
    return drift


def test_videos_drift_if_they_are_not_found() -> None:
    similar = measure([Query(str(video), video) for video in range(100, 160)])
    assert (similar.k, similar.domain, similar.appended) == (1, 1.0, 1.0)
    assert similar.low < 0 < similar.high
    assert not similar.relearn
    unrelated = measure([Query(f"?{video}", video) for video in range(100, 160)])
    assert unrelated.appended < 0.2
    assert (unrelated.domain_captions, unrelated.appended_captions) == (40, 60)
    assert unrelated.relearn


def test_few_captions_are_no_proof() -> None:
    """Two of three captions fail, which chance explains."""
    captions = [Query("100", 100), Query("?1", 101), Query("?2", 102)]
    drift = measure(captions, captions=3)
    assert drift.domain - drift.appended > 0.1
    assert not drift.relearn


def test_small_append_drifts_from_a_large_domain() -> None:
    assert measure([Query(f"?{video}", video) for video in range(100, 104)]).relearn
    assert not measure([Query("100", 100), Query("101", 101), Query("?102", 102)]).relearn


def test_small_domain_is_compared_by_its_learned_captions() -> None:
    """Sixteen videos appended to a domain of thirteen: unrelated ones drift, similar ones do not."""
    unrelated = [Query(f"?{video}", video) for video in range(13, 29)]
    drift = measure(unrelated, videos=29, captions=13, is_learned=True)
    assert (drift.learned, drift.domain_captions, drift.appended_captions) == (True, 13, 16)
    assert drift.relearn
    similar = [Query(str(video), video) for video in range(13, 29)]
    assert not measure(similar, videos=29, captions=13, is_learned=True).relearn
    # An encoder finds learned captions more often than others of the same kind.
    partly = [*similar[:10], *unrelated[10:]]
    assert not measure(partly, videos=29, captions=13, is_learned=True).relearn


@pytest.mark.parametrize(
    ("domain", "appended"), [(1, 16), (2, 16), (5, 3), (10, 10), (13, 16), (40, 3), (12, 40)]
)
def test_chance_is_seldom_taken_for_drift(domain: int, appended: int) -> None:
    """If both kinds of captions are found equally often, at most one measurement in 200 shows drift."""
    drifts = [
        (hits, others)
        for hits in range(domain + 1)
        for others in range(appended + 1)
        if compare_hits((hits, domain), (others, appended)).relearn
    ]
    for share in np.linspace(0.02, 0.98, 25):
        chance = sum(
            binomial(hits, domain, share) * binomial(others, appended, share) for hits, others in drifts
        )
        assert chance <= 0.005


def binomial(hits: int, total: int, share: float) -> float:
    return math.comb(total, hits) * share**hits * (1 - share) ** (total - hits)


def test_without_captions_nothing_is_measured() -> None:
    shard = MemoryShard(np.arange(2), np.eye(2, dtype=np.float32))
    encoder: Any = NumberEncoder(np.eye(2))
    assert measure_drift(encoder, "day", shard, [], [Query("1", 1)]) is None
    assert measure_drift(encoder, "day", shard, [Query("1", 1)], []) is None


@pytest.mark.parametrize(("first", "second"), [((0, 5), (5, 5)), ((30, 40), (20, 50)), ((1, 1), (1, 1))])
def test_interval_contains_the_difference_and_mirrors(first: Any, second: Any) -> None:
    low, high = difference_interval(*first, *second)
    difference = first[0] / first[1] - second[0] / second[1]
    assert -1 <= low <= difference <= high <= 1
    assert difference_interval(*second, *first) == pytest.approx((-high, -low))


def test_interval_matches_the_publication() -> None:
    """Newcombe 1998, table II, example (a), method 10 at 95 %: 56/70 - 48/80 has the interval 0.0524 to 0.3339."""
    low, high = difference_interval(56, 70, 48, 80, z=1.959964)
    assert (low, high) == (pytest.approx(0.0524, abs=1e-4), pytest.approx(0.3339, abs=1e-4))
