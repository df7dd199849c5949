"""Selection of exemplars: herding against a slow loop, and k-means on clusters."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.rivals.replay_memory import herding_order, pair_features


def random_features(count: int, dim: int = 6) -> Tensor:
    return F.normalize(torch.rand(count, dim) + 0.2 * torch.randn(count, dim), dim=-1)


def slow_herding(features: Tensor, count: int) -> list[int]:
    """iCaRL's algorithm 4, with plain lists."""
    rows = features.tolist()
    mean = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
    order: list[int] = []
    for k in range(1, count + 1):

        def distance(candidate: int, k: int = k) -> float:
            chosen = [rows[i] for i in (*order, candidate)]
            running = [sum(column) / k for column in zip(*chosen, strict=True)]
            return sum((m - r) ** 2 for m, r in zip(mean, running, strict=True))

        order.append(min((i for i in range(len(rows)) if i not in order), key=distance))
    return order


@pytest.mark.parametrize("seed", range(4))
def test_herding_equals_a_slow_loop(seed: int) -> None:
    torch.manual_seed(seed)
    features = random_features(17)
    assert herding_order(features, 9) == slow_herding(features, 9)


def test_product_of_pair_features_is_the_mean_cosine_of_both_modalities() -> None:
    torch.manual_seed(9)
    queries, videos = random_features(5), random_features(5)
    features = pair_features(queries, videos)
    torch.testing.assert_close(features.norm(dim=-1), torch.ones(5))
    torch.testing.assert_close(features @ features.T, (queries @ queries.T + videos @ videos.T) / 2)
