"""Transformer blocks over a frame's tokens, on top of the frozen convolutions of ``small``.

The published network ends with its feature map, so no pre-trained weights exist for these blocks. A frozen block has no
weights and returns its input; adapters inside it see the normalized tokens. A trained block starts as the same
function: its projections are identities, and those back to the tokens are zero.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.backbones.open_blocks import OpenBlock

_HEAD_WIDTH = 64


class FrameBlock(nn.Module, OpenBlock):
    """A pre-norm block, a function on tokens ``[..., P+1, width]``.

    Args:
        width: Token width.

    Attributes:
        attention: Self-attention among a frame's tokens; None in a frozen block.
        perceptron: Perceptron with one hidden layer of the same width; None in a frozen block.
    """

    attention: nn.MultiheadAttention | None
    perceptron: nn.Sequential | None

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // _HEAD_WIDTH
        self._width = width
        self.attention = self.perceptron = None

    def add_weights(self, device: torch.device) -> None:
        """Add weights that leave the block's function unchanged."""
        if self.attention is not None:
            return
        width = self._width
        with torch.device(device):
            self.attention = nn.MultiheadAttention(width, self.heads)
            hidden = nn.Linear(width, width)
            self.perceptron = nn.Sequential(hidden, nn.GELU(), nn.Linear(width, width))
            with torch.no_grad():
                for parameter in self.parameters():
                    parameter.zero_()
                self.attention.in_proj_weight.copy_(torch.eye(width).repeat(3, 1))
                hidden.weight.copy_(torch.eye(width))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.complete(tokens, self.attend(self.normalize(tokens)))

    def normalize(self, states: Tensor) -> Tensor:
        return F.layer_norm(states, (self._width,))

    def project(self, normalized: Tensor) -> Tensor:
        attention = cast(nn.MultiheadAttention, self.attention)
        return F.linear(normalized, attention.in_proj_weight, attention.in_proj_bias)

    def output(self, joined: Tensor) -> Tensor:
        return cast(Tensor, cast(nn.MultiheadAttention, self.attention).out_proj(joined))

    def attend(self, normalized: Tensor, count: int | None = None) -> Tensor:
        if self.attention is None:
            return torch.zeros_like(normalized[..., :count, :])
        return super().attend(normalized, count)

    def complete(self, states: Tensor, attended: Tensor) -> Tensor:
        states = states + attended
        if self.perceptron is None:
            return states
        return states + cast(Tensor, self.perceptron(self.normalize(states)))
