"""Transformer blocks that run step by step, so that adapters can change the attention in between.

A pre-norm block, as in CLIP, normalizes the inputs of its attention and its perceptron. A post-norm block, as in BERT,
adds each one's output to its input and normalizes the sum.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.backbones.tower_computation import merge_heads, scaled_dot_product_attention, split_heads


class OpenBlock(ABC):
    """A block that runs step by step.

    States are ``[..., L, width]``.
    """

    heads: int

    @abstractmethod
    def normalize(self, states: Tensor) -> Tensor:
        """Prepare the block's input for the projections."""

    @abstractmethod
    def project(self, normalized: Tensor) -> Tensor:
        """Compute query, key and value, concatenated, ``[..., L, 3 · width]``."""

    @abstractmethod
    def output(self, joined: Tensor) -> Tensor:
        """Apply the out-projection to concatenated heads."""

    @abstractmethod
    def complete(self, states: Tensor, attended: Tensor) -> Tensor:
        """Compute the block's output from its input and its attention."""

    def attend(self, normalized: Tensor, count: int | None = None) -> Tensor:
        """Compute self-attention for all tokens, or only for the first ``count`` tokens."""
        query, key, value = (split_heads(t, self.heads) for t in self.project(normalized).chunk(3, dim=-1))
        return self.output(merge_heads(scaled_dot_product_attention(query[..., :count, :], key, value)))


class PreNormBlock(OpenBlock):
    """Steps of a ``ResidualAttentionBlock`` from open_clip, or of a block with the same members."""

    def __init__(self, block: Any) -> None:
        self._block = block
        self.heads = block.attn.num_heads

    def normalize(self, states: Tensor) -> Tensor:
        return cast(Tensor, self._block.ln_1(states))

    def project(self, normalized: Tensor) -> Tensor:
        attention = self._block.attn
        if isinstance(attention, nn.MultiheadAttention):
            return F.linear(normalized, attention.in_proj_weight, attention.in_proj_bias)
        return cast(Tensor, attention.in_proj(normalized))

    def output(self, joined: Tensor) -> Tensor:
        return cast(Tensor, self._block.attn.out_proj(joined))

    def complete(self, states: Tensor, attended: Tensor) -> Tensor:
        block = self._block
        states = states + block.ls_1(attended)
        return torch.add(states, block.ls_2(block.mlp(block.ln_2(states))))


class BertBlock(OpenBlock):
    """Steps of a ``BertLayer`` from transformers."""

    def __init__(self, layer: Any) -> None:
        self._layer = layer
        self.heads = layer.attention.self.num_attention_heads

    def normalize(self, states: Tensor) -> Tensor:
        return states

    def project(self, normalized: Tensor) -> Tensor:
        attention = self._layer.attention.self
        projections = attention.query, attention.key, attention.value
        return torch.cat([projection(normalized) for projection in projections], dim=-1)

    def output(self, joined: Tensor) -> Tensor:
        return cast(Tensor, self._layer.attention.output.dense(joined))

    def complete(self, states: Tensor, attended: Tensor) -> Tensor:
        layer = self._layer
        states = layer.attention.output.LayerNorm(states + attended)
        return cast(Tensor, layer.output.LayerNorm(states + layer.output.dense(layer.intermediate(states))))


def open_block(block: Any) -> OpenBlock:
    """Open a block from :attr:`~models.backbones.backbone.Backbone.visual_blocks` or ``text_blocks``.

    Raises:
        BackboneUnsupported: The block is closed.
    """
    return block if isinstance(block, OpenBlock) else PreNormBlock(block)
