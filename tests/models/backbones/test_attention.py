"""Scaled dot-product attention against a reference that computes softmax(Q Kᵀ / √d) V query by query."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from models.backbones.tower_computation import merge_heads, scaled_dot_product_attention, split_heads

HEADS, SIZE, LENGTH = 2, 4, 6


def _reference(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
    """Compute the attention of ``[heads, L, d]`` in float64."""
    query, key, value = query.double(), key.double(), value.double()
    result = torch.zeros_like(query)
    for head in range(HEADS):
        for i in range(query.shape[1]):
            keys = i + 1 if causal else LENGTH
            scores = torch.stack([query[head, i] @ key[head, j] / math.sqrt(SIZE) for j in range(keys)])
            weights = torch.exp(scores - scores.max())
            for j, weight in enumerate(weights / weights.sum()):
                result[head, i] = result[head, i] + weight * value[head, j]
    return result


def _random_leaves(dtype: torch.dtype) -> list[Tensor]:
    """Query, key and value that require gradients."""
    torch.manual_seed(0)
    return [torch.randn(HEADS, LENGTH, SIZE).to(dtype).requires_grad_() for _ in range(3)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
def test_attention_and_gradients_equal_the_reference(
    dtype: torch.dtype, tolerance: float, causal: bool
) -> None:
    leaves = _random_leaves(dtype)
    found = scaled_dot_product_attention(*leaves, causal=causal)
    assert found.dtype == dtype
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    expected = _reference(*exact, causal)
    weights = torch.randn(found.shape)
    gradients = torch.autograd.grad((found.float() * weights).sum(), leaves)
    expected_gradients = torch.autograd.grad((expected * weights).sum(), exact)
    torch.testing.assert_close(found.double(), expected, atol=tolerance, rtol=2 * tolerance)
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(
            gradient.double(), expected_gradient, atol=3 * tolerance, rtol=3 * tolerance
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_causal_attention_of_candidates_equals_that_of_each(dtype: torch.dtype) -> None:
    leaves = [torch.randn(3, 2, HEADS, LENGTH, SIZE).to(dtype) for _ in range(3)]
    with torch.no_grad():
        found = scaled_dot_product_attention(*leaves, causal=True)
        for each, *parts in zip(found, *leaves, strict=True):
            torch.testing.assert_close(each, scaled_dot_product_attention(*parts, causal=True))


def test_merge_heads_inverts_split_heads() -> None:
    tokens = torch.arange(2 * 3 * 8.0).view(2, 3, 8)
    heads = split_heads(tokens, HEADS)
    assert heads.shape == (2, HEADS, 3, 4)
    assert heads[1, 1, 2].equal(tokens[1, 2, 4:])
    assert merge_heads(heads).equal(tokens)
