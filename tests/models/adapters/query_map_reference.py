"""Query vectors of a single map, step by step: the slow reference of the set of maps."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from models.adapters.analytic_maps import MIN_LENGTH, AnalyticQueryMap, VectorLayout


def reference_vectors(
    query_map: AnalyticQueryMap, frozen: Tensor, tokens: Tensor, layout: VectorLayout
) -> Tensor:
    """Unit query vectors ``[n, dim]`` of frozen vectors ``[n, ≥ semantic]`` and tokens ``[n, L]``, padded with −1."""
    semantic = F.normalize(frozen[:, : layout.semantic] - query_map.center, dim=-1)
    lexical = torch.zeros(len(frozen), layout.lexical)
    weights = dict(zip(query_map.tokens.tolist(), query_map.token_weights.tolist(), strict=True))
    vectors = dict(zip(query_map.tokens.tolist(), query_map.lexicon.float(), strict=True))
    unknown = float(query_map.unknown_token_weight) if weights else 0.0
    for row, ids in enumerate(tokens.tolist()):
        words = [token for token in ids if token >= 0]
        length = sum(weights.get(token, unknown) ** 2 for token in words) ** 0.5
        for token in words:
            if token in weights:
                lexical[row] += weights[token] / max(length, MIN_LENGTH) * vectors[token]
    return layout.join(semantic, lexical, is_video=False)
