"""Frame Fusion Adapters (FFA): temporal information in a frozen image tower (ctvr-ffa-tame, section 3.3).

Inside a visual block, cross-attention runs in parallel to the frozen self-attention on the same normalized tokens.
Queries come from a neighboring frame, keys and values from the current one (eq. 1). A trainable gate α, initially 0,
mixes the result into that of the self-attention (eq. 3), so at step 0 the tower computes what the backbone does.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from models.backbones.backbone import Backbone
from models.backbones.open_blocks import open_block
from models.backbones.tower_computation import merge_heads, scaled_dot_product_attention, split_heads

FusionMix = Literal["convex", "additive"]
FusionNeighbor = Literal["alternate", "previous"]


class FrameFusionAdapter(nn.Module):
    """Frame Fusion Adapter for one block.

    Args:
        width: Token width, a multiple of ``heads``.
        forward_in_time: Whether queries come from the next frame instead of the previous one.
        mix: ``additive`` is eq. 3, SA + α·CA; ``convex`` is the published code's (1−α)·SA + α·CA, which keeps the scale
            of the residual stream for every α.
    """

    def __init__(
        self, width: int, heads: int, *, forward_in_time: bool = False, mix: FusionMix = "convex"
    ) -> None:
        super().__init__()
        self.heads = heads
        self.forward_in_time = forward_in_time
        self.mix = mix
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        for projection in (self.query, self.key, self.value, self.out):
            nn.init.eye_(projection.weight)
            nn.init.zeros_(projection.bias)
        self.alpha = nn.Parameter(torch.zeros(()))

    def neighbors(self, tokens: Tensor) -> Tensor:
        """Take each frame's neighbor in time, ``[n, M, P, width]``; a frame at the border is its own neighbor."""
        if self.forward_in_time:
            return torch.cat([tokens[:, 1:], tokens[:, -1:]], dim=1)
        return torch.cat([tokens[:, :1], tokens[:, :-1]], dim=1)

    def cross_attention(self, tokens: Tensor, count: int | None = None) -> Tensor:
        """Compute CA(F_{m−1}, F_m) of eq. 1 for every frame m.

        Args:
            tokens: ``[n, M, P, width]``.
            count: How many tokens of each frame to compute, from the first; None computes all.

        Returns:
            ``[n, M, count or P, width]``.
        """
        query = self.query(self.neighbors(tokens)[:, :, :count])
        heads = (split_heads(t, self.heads) for t in (query, self.key(tokens), self.value(tokens)))
        fused: Tensor = self.out(merge_heads(scaled_dot_product_attention(*heads)))
        return fused

    def forward(self, tokens: Tensor, self_attended: Tensor) -> Tensor:
        """Mix SA(F_m, F_m) with CA(F_{m−1}, F_m), weighted by the gate (eq. 3).

        Args:
            tokens: ``[n, M, P, width]``.
            self_attended: Self-attention of every frame's tokens, or of its first ones, ``[n, M, ≤ P, width]``; the
                result has the same shape.
        """
        fused = self.alpha * self.cross_attention(tokens, self_attended.shape[2])
        if self.mix == "additive":
            return self_attended + fused
        return (1 - self.alpha) * self_attended + fused


class FrameFusion(nn.Module):
    """Frame Fusion Adapters for an image tower: one in each of its deepest ``layers`` blocks.

    Args:
        layers: Number of blocks with an adapter, counted from the deepest (the published code's choice); 0 leaves the
            tower unchanged.
        neighbor: ``previous`` is the paper's; ``alternate`` is the published code's: blocks with an even index use the
            previous frame, others the next one, so that information flows in both directions.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        depth: int,
        *,
        layers: int,
        neighbor: FusionNeighbor = "alternate",
        mix: FusionMix = "convex",
    ) -> None:
        super().__init__()
        self._by_block = {
            index: FrameFusionAdapter(
                width, heads, forward_in_time=neighbor == "alternate" and index % 2 == 1, mix=mix
            )
            for index in range(max(0, depth - layers), depth)
        }
        self.adapters = nn.ModuleDict({str(index): adapter for index, adapter in self._by_block.items()})

    @classmethod
    def for_backbone(
        cls, backbone: Backbone, *, layers: int, neighbor: FusionNeighbor, mix: FusionMix
    ) -> FrameFusion:
        """Create new adapters that fit a backbone's image tower, on the CPU.

        Raises:
            BackboneUnsupported: The backbone's blocks are not open.
        """
        width, blocks = backbone.visual_width, backbone.visual_blocks
        heads = open_block(blocks[0]).heads
        return cls(width, heads, len(blocks), layers=layers, neighbor=neighbor, mix=mix)

    def at(self, index: int) -> FrameFusionAdapter | None:
        """Look up the adapter for the block at ``index``; None if it has none."""
        return self._by_block.get(index)

    def gates(self) -> list[nn.Parameter]:
        """List every adapter's gate α."""
        return [parameter for name, parameter in self.named_parameters() if name.endswith("alpha")]
