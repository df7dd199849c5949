"""Frame Fusion Adapter (FFA): time enters a frozen image tower (ctvr-ffa-tame, section 3.3).

Inside a visual block, a cross-attention stands in parallel to the frozen self-attention, and both read the
same normalised tokens. Queries come from a neighbouring frame, keys and values from the current one
(eq. 1), and a trainable gate α, 0 at the start, mixes the result into the self-attention's (eq. 3): at
step 0 the tower computes exactly what the backbone does.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from models.backbones.attention import attend, merge_heads, split_heads

__all__ = ["FrameFusion", "FrameFusionAdapter", "Mix", "Neighbour"]

Mix = Literal["convex", "additive"]
Neighbour = Literal["alternate", "previous"]


class FrameFusionAdapter(nn.Module):
    """The adapter of one block.

    Args:
        width: token width; must divide by ``heads``.
        heads: attention heads, those of the block.
        forward_in_time: take queries from the next frame instead of the previous one.
        mix: ``additive`` is eq. 3, SA + α·CA; ``convex`` is the published code's (1−α)·SA + α·CA, which keeps
            the scale of the residual stream whatever α becomes.
    """

    def __init__(self, width: int, heads: int, *, forward_in_time: bool = False, mix: Mix = "convex") -> None:
        super().__init__()
        self.heads = heads
        self.forward_in_time = forward_in_time
        self.mix = mix
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        for projection in (self.query, self.key, self.value, self.out):
            nn.init.eye_(projection.weight)
            nn.init.zeros_(projection.bias)
        self.alpha = nn.Parameter(torch.zeros(()))

    def neighbours(self, tokens: Tensor) -> Tensor:
        """Each frame's neighbour in time, ``[n, M, P, width]``; the frame at the border is its own."""
        if self.forward_in_time:
            return torch.cat([tokens[:, 1:], tokens[:, -1:]], dim=1)
        return torch.cat([tokens[:, :1], tokens[:, :-1]], dim=1)

    def cross_attention(self, tokens: Tensor, wanted: int | None = None) -> Tensor:
        """CA(F_{m−1}, F_m) of eq. 1 for every frame m: ``[n, M, P, width]`` to the same shape, or to that of the
        first ``wanted`` tokens of every frame."""
        query = self.query(self.neighbours(tokens)[:, :, :wanted])
        heads = (split_heads(t, self.heads) for t in (query, self.key(tokens), self.value(tokens)))
        fused: Tensor = self.out(merge_heads(attend(*heads)))
        return fused

    def forward(self, tokens: Tensor, self_attended: Tensor) -> Tensor:
        """Fuse SA(F_m, F_m) with CA(F_{m−1}, F_m) by the gate (eq. 3).

        Args:
            tokens: ``[n, M, P, width]``.
            self_attended: ``[n, M, P, width]``, or of the first tokens of every frame; the result has its shape.
        """
        fused = self.alpha * self.cross_attention(tokens, self_attended.shape[2])
        if self.mix == "additive":
            return self_attended + fused
        return (1 - self.alpha) * self_attended + fused


class FrameFusion(nn.Module):
    """The adapters of an image tower: one in each of its deepest ``layers`` blocks.

    Args:
        width, heads, depth: of the image tower.
        layers: how many blocks get an adapter, counted from the deepest (the published code's choice;
            0 leaves the tower as it is).
        neighbour: ``previous`` is the paper's; ``alternate`` is the published code's: blocks of even index
            look back, blocks of odd index look ahead, so that information can flow both ways.
        mix: see :class:`FrameFusionAdapter`.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        depth: int,
        *,
        layers: int,
        neighbour: Neighbour = "alternate",
        mix: Mix = "convex",
    ) -> None:
        super().__init__()
        self._by_block = {
            index: FrameFusionAdapter(
                width, heads, forward_in_time=neighbour == "alternate" and index % 2 == 1, mix=mix
            )
            for index in range(max(0, depth - layers), depth)
        }
        self.adapters = nn.ModuleDict({str(index): adapter for index, adapter in self._by_block.items()})

    def at(self, index: int) -> FrameFusionAdapter | None:
        """The adapter of block ``index``, if it has one."""
        return self._by_block.get(index)

    def gates(self) -> list[nn.Parameter]:
        """The α of every adapter."""
        return [parameter for name, parameter in self.named_parameters() if name.endswith("alpha")]
