"""Query vectors from a single map, step by step: a slow reference for sets of maps."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from models.adapters.analytic_maps import MIN_LENGTH, AnalyticQueryMap, Floats, VectorLayout


def reference_vectors(
    query_map: AnalyticQueryMap, frozen: Floats, tokens: npt.NDArray[np.int64], layout: VectorLayout
) -> Floats:
    """Return unit query vectors ``[n, dim]`` of frozen vectors ``[n, ≥ semantic]`` and tokens ``[n, L]``, padded with
    −1.
    """
    semantic = frozen[:, : layout.semantic] - query_map.center
    semantic /= np.linalg.norm(semantic, axis=1, keepdims=True)
    lexical = np.zeros((len(frozen), layout.lexical), np.float32)
    weights = dict(zip(query_map.tokens.tolist(), query_map.token_weights.tolist(), strict=True))
    vectors = dict(zip(query_map.tokens.tolist(), query_map.lexicon.astype(np.float32), strict=True))
    unknown = float(query_map.unknown_token_weight) if weights else 0.0
    for row, ids in enumerate(tokens.tolist()):
        words = [token for token in ids if token >= 0]
        length = sum(weights.get(token, unknown) ** 2 for token in words) ** 0.5
        for token in words:
            if token in weights:
                lexical[row] += weights[token] / max(length, MIN_LENGTH) * vectors[token]
    return layout.join(semantic, lexical, is_video=False)
