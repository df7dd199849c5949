"""Text-conditioned pooling of frame vectors: X-Pool without its learned projections.

X-Pool (Gorti et al., "X-Pool: Cross-Modal Language-Video Attention for Text-Video Retrieval", CVPR 2022) pools the
frames of a video by the attention of the text, and scores the pooled vector. Its query, key, value and output
projections are learned. Here they are the identity, so that the score needs no training, and any stored frame vectors
can be scored by the query vectors of their shard.
"""

from __future__ import annotations

import numpy as np

from index.arrays import Frames, Scores, Vectors

__all__ = ["TEMPERATURE", "pooled_cosines"]

TEMPERATURE = 0.5  # τ, selected on validation videos; see benchmarks/RESULTS.md


def pooled_cosines(query: Vectors, frames: Frames, temperature: float = TEMPERATURE) -> Scores:
    """Cosine of a query with the pooled vector Σ aₘ fₘ of each video, where a = softmax(⟨q, fₘ⟩ / τ).

    The score of a video does not depend on the other videos.

    Args:
        query: Unit vector ``[dim]``.
        frames: Frame vectors ``[n, M, dim]``.
        temperature: τ > 0; a high one pools by the mean, a low one selects the nearest frame.

    Returns:
        ``float32 [n]``.
    """
    cosines = np.einsum("nmd,d->nm", frames, query)
    weights = np.exp((cosines - cosines.max(axis=1, keepdims=True)) / temperature)
    pooled = np.einsum("nm,nmd->nd", weights, frames)
    lengths = np.sqrt(np.einsum("nd,nd->n", pooled, pooled))
    scores: Scores = (weights * cosines).sum(axis=1) / np.maximum(lengths, np.float32(1e-8))
    return scores
