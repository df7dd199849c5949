"""Measure whether a domain's encoder finds appended videos as well as the domain's own.

The captions of appended videos, and the domain's captions that were not learned, are searched in the domain's shard
with its pinned encoder. It has learned from none of these captions, and both kinds are ranked in the same gallery, so
their recalls are comparable.

A small domain holds out too few captions for this. Its learned captions take their place; since the encoder finds them
more often than others, the whole interval of the difference must then lie above the margin.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from cinestrata_schemas.tasks import Drift
from index.arrays import Floats, Vectors, batches
from models.encoders.query_encoder import QueryEncoder
from models.releases.release_state import MeasuredFold
from trainer.evaluation.gallery import FoldShard, Query, RankCount, ShardVectors, WholeVideoShard, recall_at

DRIFT_MARGIN = 0.1  # loss of recall at which a new domain is recommended
_DEPTHS = (1, 5, 10)
_ROWS = 16_384  # videos per chunk of the gallery
_Z = 2.5758  # 99 %: appends are measured often, and a recommendation must not be chance
_MAX_CHANCE = 0.005  # one-sided


def compare_hits(
    domain: tuple[int, int], appended: tuple[int, int], *, k: int = 1, is_learned: bool = False
) -> Drift:
    """Compare the recalls of a domain's captions and of appended ones.

    A new domain is recommended if the recall falls by the margin, and neither the interval nor Fisher's exact test
    explains it by chance: with few captions, the interval alone is too narrow.

    Args:
        domain: Number of the domain's captions whose video is among the first ``k``, and of all, at least 1.
        appended: The same for appended videos.
        is_learned: Whether the encoder has learned from the domain's captions.
    """
    difference = domain[0] / domain[1] - appended[0] / appended[1]
    low, high = difference_interval(*domain, *appended)
    is_clear = low > (DRIFT_MARGIN if is_learned else 0.0) and _chance(*domain, *appended) <= _MAX_CHANCE
    return Drift(
        k=k,
        domain=round(domain[0] / domain[1], 4),
        appended=round(appended[0] / appended[1], 4),
        domain_captions=domain[1],
        appended_captions=appended[1],
        learned=is_learned,
        low=round(low, 4),
        high=round(high, 4),
        relearn=difference >= DRIFT_MARGIN and is_clear,
    )


def measure_drift(
    encoder: QueryEncoder,
    task: str,
    shard: ShardVectors,
    domain: Sequence[Query],
    appended: Sequence[Query],
    *,
    is_learned: bool = False,
    fold: MeasuredFold | None = None,
    report_alive: Callable[[], object] = lambda: None,
) -> Drift | None:
    """Compare the recalls of appended videos and the domain's own; None unless both have captions.

    The depth k is the smallest of 1, 5 and 10 at which the domain finds half of its own videos, otherwise 10: recalls
    far from 0 and 1 show differences best. With a fold, its captions are ranked as if they had not been learned.
    """
    if not domain or not appended:
        return None
    queries = [*domain, *appended]
    whole = WholeVideoShard(FoldShard(shard, fold) if fold else shard)
    texts = encoder.encode([query.text for query in queries], [task], encoder.modes[-1])[:, 0].copy()
    if fold is not None:
        texts[: len(domain)] = fold.query_vectors(np.array([query.vector_id for query in domain], np.int64))
    truth = whole.vectors(np.array([query.vector_id for query in queries], np.int64))
    ranks = _ranks(texts, truth, whole, report_alive)
    k = next((depth for depth in _DEPTHS if recall_at(ranks[: len(domain)], depth) >= 0.5), _DEPTHS[-1])
    is_hit = ranks <= k
    of_domain = int(is_hit[: len(domain)].sum()), len(domain)
    of_appended = int(is_hit[len(domain) :].sum()), len(appended)
    return compare_hits(of_domain, of_appended, k=k, is_learned=is_learned)


def difference_interval(
    first: int, first_total: int, second: int, second_total: int, z: float = _Z
) -> tuple[float, float]:
    """Compute the confidence interval of a difference between two shares, from the score intervals of both; the default
    quantile ``z`` of the normal distribution gives 99 %.

    Newcombe, "Interval estimation for the difference between independent proportions: comparison of eleven methods",
    Statistics in Medicine, 1998, method 10.
    """
    p, q = first / first_total, second / second_total
    low, high = _score_interval(p, first_total, z)
    other_low, other_high = _score_interval(q, second_total, z)
    below, above = np.hypot(p - low, other_high - q), np.hypot(high - p, q - other_low)
    return p - q - float(below), p - q + float(above)


def _chance(first: int, first_total: int, second: int, second_total: int) -> float:
    """Compute the probability of this few or fewer hits in the second sample, given the hits of both together."""
    hits = first + second
    ways = sum(
        math.comb(second_total, n) * math.comb(first_total, hits - n)
        for n in range(max(0, hits - first_total), second + 1)
    )
    return ways / math.comb(first_total + second_total, hits)


def _score_interval(share: float, total: int, z: float) -> tuple[float, float]:
    """Compute Wilson's score interval of a share."""
    weight = z**2 / total
    center = share + weight / 2
    half = z * float(np.sqrt(share * (1 - share) / total + weight / (4 * total)))
    return (center - half) / (1 + weight), (center + half) / (1 + weight)


def _ranks(
    texts: Vectors, truth: Vectors, shard: WholeVideoShard, report_alive: Callable[[], object]
) -> Floats:
    """Rank each text's video among all videos of a shard, ``[n]``, with memory that does not grow with the shard."""
    count = RankCount(np.einsum("nd,nd->n", texts, truth, dtype=np.float64))
    for ids in batches(shard.ids, _ROWS):
        count.add(texts @ shard.vectors(ids).T)
        report_alive()
    return count.ranks()
