"""Adapters of image towers: across frames, and low-rank updates.

A Frame Fusion Adapter (FFA; ctvr-ffa-tame, section 3.3) adds temporal information. Inside a visual block,
cross-attention runs in parallel to the frozen self-attention on the same normalized tokens. Queries come from a
neighboring frame, keys and values from the current one (eq. 1). A trainable gate α, initially 0, mixes the result into
that of the self-attention (eq. 3), so at step 0 the tower computes what the backbone does.

Low-rank updates (LoRA) change every matrix in every block: W + s·BA, with W frozen. Unlike TAME on the text side, they
are not routed: a video is embedded once, by the release that learns its task, so its tower need not remember other
tasks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from models.backbones.backbone import Backbone
from models.backbones.tower_computation import (
    merge_heads,
    open_block,
    scaled_dot_product_attention,
    split_heads,
)

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
        """Compute CA(F_{m−1}, F_m) of eq. 1 for every frame m, from tokens ``[n, M, P, width]``, for the first
        ``count`` tokens of each frame or for all, ``[n, M, count or P, width]``.
        """
        query = self.query(self.neighbors(tokens)[:, :, :count])
        heads = (split_heads(t, self.heads) for t in (query, self.key(tokens), self.value(tokens)))
        fused: Tensor = self.out(merge_heads(scaled_dot_product_attention(*heads)))
        return fused

    def forward(self, tokens: Tensor, self_attended: Tensor) -> Tensor:
        """Mix SA(F_m, F_m) with CA(F_{m−1}, F_m), weighted by the gate (eq. 3), from tokens ``[n, M, P, width]`` and
        the self-attention of every frame's tokens, or of its first ones, ``[n, M, ≤ P, width]``, to the same shape.
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
        """Create new adapters for a backbone's image tower, on the CPU; raise BackboneUnsupported for closed blocks."""
        width, blocks = backbone.feature_dim, backbone.visual_blocks
        heads = open_block(blocks[0]).heads
        return cls(width, heads, len(blocks), layers=layers, neighbor=neighbor, mix=mix)

    def at(self, index: int) -> FrameFusionAdapter | None:
        """Look up the adapter for the block at ``index``; None if it has none."""
        return self._by_block.get(index)

    def gates(self) -> list[nn.Parameter]:
        """List every adapter's gate α."""
        return [parameter for name, parameter in self.named_parameters() if name.endswith("alpha")]


class LowRankUpdate(nn.Module):
    """Parametrization W → W + s·BA of a frozen matrix ``[out, in]``; initially the identity, since B is zero."""

    def __init__(self, weight: Tensor, rank: int, scale: float) -> None:
        super().__init__()
        out, inner = weight.shape
        self.scale = scale
        self.a = nn.Parameter(torch.empty(rank, inner, device=weight.device))
        self.b = nn.Parameter(torch.zeros(out, rank, device=weight.device))
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))

    def forward(self, weight: Tensor) -> Tensor:
        return torch.add(weight, self.b @ self.a, alpha=self.scale)


class LowRankImageTower(nn.Module):
    """An image tower with low-rank updates, in a copy of its ``backbone``, which is not modified."""

    def __init__(self, backbone: Backbone, *, rank: int, scale: float) -> None:
        super().__init__()
        self.backbone = backbone.clone_image_tower()
        self._updates: dict[str, LowRankUpdate] = {}
        for index, block in enumerate(self.backbone.visual_blocks):
            for name, module in list(block.named_modules()):
                for weight in ("weight", "in_proj_weight"):
                    matrix = getattr(module, weight, None)
                    if isinstance(matrix, nn.Parameter) and matrix.ndim == 2:
                        update = LowRankUpdate(matrix, rank, scale)
                        parametrize.register_parametrization(module, weight, update)
                        self._updates[f"{index}.{name}.{weight}"] = update

    def update_parameters(self) -> list[nn.Parameter]:
        """List the matrices A and B of all updates."""
        return [parameter for update in self._updates.values() for parameter in update.parameters()]

    def b_matrices(self) -> list[nn.Parameter]:
        """List every update's matrix B, which is zero at first and scales the whole update."""
        return [update.b for update in self._updates.values()]

    def tensors(self) -> dict[str, Tensor]:
        """Collect the matrices A and B by block, projection and letter, as a release stores them."""
        return {
            f"{name}.{letter}": tensor.detach()
            for name, update in self._updates.items()
            for letter, tensor in update.named_parameters()
        }

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Load matrices from :meth:`tensors`; raise KeyError or RuntimeError for a missing name or another shape."""
        for name, update in self._updates.items():
            update.load_state_dict({letter: tensors[f"{name}.{letter}"] for letter in ("a", "b")})
