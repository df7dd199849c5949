"""Selection of exemplars: the pairs of a finished task that the memory keeps.

Both rules of ctp (section 5.1) that use features. *Mean of features* (MoF) is the herding of iCaRL (Rebuffi et al.
2017, "iCaRL: Incremental classifier and representation learning", algorithm 4); *k-means* is the rule of that name in
Chaudhry et al. 2019, "On tiny episodic memories in continual learning".

Differences from the papers: the feature of a pair is the joined unit vector of its text and of its video, since a pair
has no class and no other common feature (the published code of ctp takes the output of its multi-modal encoder).
k-means runs once at the end of a task, as in that code; Chaudhry et al. update centroids during training. A pair is
selected at most once; two centroids with the same nearest pair give two pairs here and one in that code.
"""

from __future__ import annotations

import faiss
import torch
from torch import Tensor

_ITERATIONS = 50  # of k-means


def pair_features(queries: Tensor, videos: Tensor) -> Tensor:
    """Return unit features ``[n, 2 dim]`` of pairs, from unit query and video vectors ``[n, dim]``.

    The inner product of two features is the mean of the cosines of both modalities.
    """
    return torch.cat([queries, videos], dim=-1) / 2**0.5


def herding_order(features: Tensor, count: int) -> list[int]:
    """Return the pairs whose running mean stays nearest to the mean of all pairs (iCaRL, algorithm 4).

    Pair k minimizes ``|μ − (φ(p_k) + Σ_{j<k} φ(p_j)) / k|``; for unit features, this is the pair with the largest inner
    product with ``k μ − Σ_{j<k} φ(p_j)``. Every prefix of the result is the selection of fewer pairs.

    Args:
        features: φ, unit features ``[n, d]``.
        count: Number of pairs; all pairs if it is larger than n.
    """
    mean, chosen_sum = features.mean(dim=0), torch.zeros_like(features[0])
    free = torch.ones(len(features), dtype=torch.bool, device=features.device)
    order: list[int] = []
    for k in range(1, min(count, len(features)) + 1):
        scores = features @ (k * mean - chosen_sum)
        best = int(scores.masked_fill(~free, -torch.inf).argmax())
        free[best] = False
        chosen_sum += features[best]
        order.append(best)
    return order


def kmeans_order(features: Tensor, count: int, seed: int) -> list[int]:
    """Return the pair nearest to each of ``count`` centroids, in the order of the centroids.

    Args:
        features: Unit features ``[n, d]``.
        count: Number of centroids; all pairs are returned if it is not smaller than n.
        seed: Seed of the initial centroids, which are pairs.
    """
    points = features.float().cpu()
    if count >= len(points):
        return list(range(len(points)))
    kmeans = faiss.Kmeans(
        points.shape[1],
        count,
        niter=_ITERATIONS,
        seed=seed,
        min_points_per_centroid=1,
        max_points_per_centroid=len(points),
    )
    kmeans.train(points.numpy())
    distances = torch.cdist(torch.from_numpy(kmeans.centroids), points)
    order: list[int] = []
    for row in distances:
        best = int(row.argmin())
        distances[:, best] = torch.inf
        order.append(best)
    return order
