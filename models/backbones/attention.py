"""Attention for towers that are walked block by block."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["merge_heads", "scaled_dot_product_attention", "split_heads"]


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False
) -> Tensor:
    """softmax(Q Kᵀ / √d) V, all ``[..., heads, L, d]``; there may be fewer queries than keys; where it is causal, they
    are those of the last tokens.

    For bfloat16 on a CPU torch has two kernels: a fused one with a slow backward pass, and one that computes in
    float32 throughout. Written out, the products stay in bfloat16 and only the softmax between them is float32,
    which is as exact as the rounding of the queries and keys allows.
    """
    written_out = query.device.type == "cpu" and query.dtype == torch.bfloat16
    queries, keys = query.shape[-2], key.shape[-2]
    seen = None
    if causal and (
        written_out or queries < keys
    ):  # torch would take fewer queries for those of the first tokens
        seen = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril(keys - queries)
    if not written_out:
        causal = causal and seen is None
        if query.dim() > 4 and not torch.is_grad_enabled():
            # torch fuses attention of four dimensions only; where nothing is trained that takes half the time.
            q, k, v = (tokens.flatten(0, -4) for tokens in (query, key, value))
            attended = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, is_causal=causal)
            return attended.view(*query.shape[:-1], value.shape[-1])
        return F.scaled_dot_product_attention(query, key, value, attn_mask=seen, is_causal=causal)
    scores = (query @ key.transpose(-1, -2)).float() * query.shape[-1] ** -0.5
    if seen is not None:
        scores = scores.masked_fill(~seen, -math.inf)
    return torch.matmul(scores.softmax(dim=-1).to(value.dtype), value)


def split_heads(tokens: Tensor, heads: int) -> Tensor:
    """``[..., L, heads · d]`` to ``[..., heads, L, d]``."""
    return tokens.view(*tokens.shape[:-1], heads, -1).transpose(-2, -3)


def merge_heads(tokens: Tensor) -> Tensor:
    """``[..., heads, L, d]`` to ``[..., L, heads · d]``."""
    return tokens.transpose(-2, -3).flatten(-2)
