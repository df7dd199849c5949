"""Scaled dot-product attention for towers whose blocks run one by one."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False
) -> Tensor:
    """softmax(Q Kᵀ / √d) V.

    For bfloat16 on a CPU, torch has two kernels: a fused one with a slow backward pass, and one that computes in
    float32 throughout. Here the products stay in bfloat16 and only the softmax between them is float32, which is as
    exact as the rounding of the queries and keys allows.

    Args:
        query: ``[..., heads, Q, d]``; there may be fewer queries than keys.
        key: ``[..., heads, K, d]``.
        value: ``[..., heads, K, d]``.
        causal: Whether a query attends only to keys at or before its own position; the queries are those of the last Q
            positions.

    Returns:
        ``[..., heads, Q, d]``.
    """
    is_explicit = query.device.type == "cpu" and query.dtype == torch.bfloat16
    queries, keys = query.shape[-2], key.shape[-2]
    mask = None
    # With is_causal, torch would align fewer queries with the first positions instead of the last ones.
    if causal and (is_explicit or queries < keys):
        mask = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril(keys - queries)
    if not is_explicit:
        is_causal = causal and mask is None
        if query.dim() > 4 and not torch.is_grad_enabled():
            # torch fuses attention of four dimensions only, which halves the time of inference.
            q, k, v = (tokens.flatten(0, -4) for tokens in (query, key, value))
            attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=is_causal)
            return attended.view(*query.shape[:-1], value.shape[-1])
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=is_causal)
    scores = (query @ key.transpose(-1, -2)).float() * query.shape[-1] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return torch.matmul(scores.softmax(dim=-1).to(value.dtype), value)


def split_heads(tokens: Tensor, heads: int) -> Tensor:
    """Reshape ``[..., L, heads · d]`` to ``[..., heads, L, d]``."""
    return tokens.view(*tokens.shape[:-1], heads, -1).transpose(-2, -3)


def merge_heads(tokens: Tensor) -> Tensor:
    """Reshape ``[..., heads, L, d]`` to ``[..., L, heads · d]``."""
    return tokens.transpose(-2, -3).flatten(-2)
