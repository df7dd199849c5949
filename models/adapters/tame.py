"""Task-Aware Mixture-of-Experts (TAME): queries that know their task (ctvr-ffa-tame, section 3.4).

Each of the four projections (query, key, value, out) of every text block's self-attention is frozen and gets
low-rank experts beside it: one matrix A shared by all experts, one matrix B per expert, and a router that
reads the end-of-text token plus the prototype of the task (equations 4 to 6).

The same text is usually wanted under several tasks at once. All functions therefore carry a leading
*candidate* dimension C: hidden states are ``[C, n, L, d]``, where candidate c means one task's prototype and,
with snapshots of several releases, that release's weights. One forward answers all candidates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["NO_EXPERT", "ROUTED", "Tame", "TameCondition", "TameWeights"]

_INPUT = slice(0, 3)  # query, key and value: they read the same input
_OUTPUT = slice(3, 4)  # the out-projection
_NOISE_FLOOR = 0.01
# Special values of a task's expert.
ROUTED = -1  # the router decides
NO_EXPERT = -2  # no expert at all: the task's shard was made by the backbone as it came


class _Layer(NamedTuple):
    """The adapters of one block: :class:`TameWeights` without the layers."""

    a: Tensor
    b: Tensor
    router: Tensor
    noise: Tensor


@dataclass(frozen=True)
class TameWeights:
    """The adapters of all text blocks, for W sets of weights (1, or one per candidate).

    Attributes:
        a: ``[W, layers, 4, r, d]``, shared by the experts.
        b: ``[W, layers, 4, E, d, r]``, one per expert.
        router: ``[W, layers, 4, E, d]``.
        noise: ``[W, layers, 4, E, d]``, scale of the exploration noise; used in training only.
    """

    a: Tensor
    b: Tensor
    router: Tensor
    noise: Tensor

    @cached_property
    def layers(self) -> list[_Layer]:
        """Taken apart at once: cut out one by one, each would hand back a gradient as large as all layers together."""
        tensors = (self.a, self.b, self.router, self.noise)
        return [_Layer(*parts) for parts in zip(*(tensor.unbind(1) for tensor in tensors), strict=True)]

    @classmethod
    def stack(cls, parts: Sequence[TameWeights]) -> TameWeights:
        """One set of weights per candidate, in order."""
        return cls(
            *(torch.cat([getattr(part, name) for part in parts]) for name in ("a", "b", "router", "noise"))
        )

    def only(self, place: int) -> TameWeights:
        """One of the sets."""
        one = slice(place, place + 1)
        return TameWeights(self.a[one], self.b[one], self.router[one], self.noise[one])


@dataclass(frozen=True)
class TameCondition:
    """What a text is asked under.

    Attributes:
        weights: adapters of W releases.
        prototypes: ``[C, d]``.
        experts: ``[C]`` int64; the one expert that a task always uses, or ``ROUTED``, or ``NO_EXPERT``.
        top_k: experts kept by the router.
        scale: λ of eq. 6.
        dropout: on the input of A, training only.
        explore: add the router's noise, training only.
        sets: ``[C]`` int64, which of the W adapters each candidate has; None: all the only one, W = 1, or each its own,
            W = C.
    """

    weights: TameWeights
    prototypes: Tensor
    experts: Tensor
    top_k: int
    scale: float
    dropout: float = 0.0
    explore: bool = False
    sets: Tensor | None = None

    def choose(self, candidates: Tensor) -> TameCondition:
        """Some of the candidates, by position ``[C']``; one may be chosen several times. No adapters are copied."""
        one = len(self.weights.a) == 1
        return replace(
            self,
            prototypes=self.prototypes[candidates],
            experts=self.experts[candidates],
            sets=None if one else candidates if self.sets is None else self.sets[candidates],
        )

    @property
    def candidates(self) -> int:
        """C."""
        return len(self.prototypes)

    def embedding_delta(self, ids: Tensor) -> None:
        """Token embeddings stay."""

    def input_deltas(self, layer: int, hidden: Tensor, end: Tensor) -> Sequence[Tensor]:
        """λ·E(X) for query, key and value, each ``[C, n, L, d]``, of the block's input ``[C, n, L, d]``."""
        return self._deltas(layer, _INPUT, hidden, end).unbind()

    def output_delta(self, layer: int, hidden: Tensor, end: Tensor) -> Tensor:
        """λ·E(X) for the out-projection: ``[C, n, L, d]`` of the concatenated heads ``[C, n, L, d]``."""
        return self._deltas(layer, _OUTPUT, hidden, end)[0]

    def gates(self, layer: int, projections: slice, end_tokens: Tensor) -> Tensor:
        """w^MoE of eq. 4: ``[P, C, n, E]`` of end-of-text tokens ``[C, n, d]``; rows sum to one."""
        routed = (end_tokens + self.prototypes[:, None]).unsqueeze(0)  # [1, C, n, d]
        router = self._chosen(self.weights.layers[layer].router, projections)  # [P, W, E, d]
        logits = routed @ router.transpose(-1, -2)
        if self.explore:
            noise = self.weights.layers[layer].noise[:, projections].transpose(0, 1)
            deviation = F.softplus(routed @ noise.transpose(-1, -2)) + _NOISE_FLOOR
            logits = logits + torch.randn_like(logits) * deviation
        kept, experts = logits.topk(min(self.top_k, logits.shape[-1]), dim=-1)
        routed_gates = torch.zeros_like(logits).scatter(-1, experts, kept.softmax(dim=-1))
        expert = self.experts
        fixed = F.one_hot(expert.clamp(min=0), logits.shape[-1]) * (expert != NO_EXPERT).unsqueeze(-1)
        is_routed = (expert == ROUTED)[None, :, None, None]
        return torch.where(is_routed, routed_gates, fixed.to(logits.dtype)[None, :, None, :])

    def _deltas(self, layer: int, projections: slice, hidden: Tensor, end: Tensor) -> Tensor:
        candidates, texts = (torch.arange(size, device=hidden.device) for size in hidden.shape[:2])
        gates = self.gates(layer, projections, hidden[candidates[:, None], texts, end])  # [P, C, n, E]
        a = self._chosen(self.weights.layers[layer].a, projections)  # [P, W, r, d]
        b = self._chosen(self.weights.layers[layer].b, projections)  # [P, W, E, d, r]
        dropped = F.dropout(hidden, self.dropout, training=self.dropout > 0)
        low = dropped.unsqueeze(0) @ a.transpose(-1, -2).unsqueeze(2)  # [P, C, n, L, r]
        # eq. 5: Σ w_i B_i A X. One gate vector serves all tokens of a text, so the experts are mixed first.
        mixed = (gates @ b.flatten(3)).reshape(*gates.shape[:-1], *b.shape[-2:])  # [P, C, n, d, r]
        return torch.mul(low @ mixed.transpose(-1, -2), self.scale)

    def _chosen(self, adapters: Tensor, projections: slice) -> Tensor:
        """``[W, 4, …]`` of one layer to ``[P, W or C, …]``."""
        chosen = adapters[:, projections] if self.sets is None else adapters[self.sets, projections]
        return chosen.transpose(0, 1)


class Tame(nn.Module):
    """Trainable adapters of a text tower, and the prototypes of the tasks learned so far.

    Args:
        width, layers: of the text tower.
        experts: E of them per projection.
        rank: r of A and B.
        top_k: experts kept per text.
        scale: λ of eq. 6 (the published code's lora_alpha / r).
        dropout: on the input of A while training.
    """

    def __init__(
        self,
        width: int,
        layers: int,
        *,
        experts: int = 10,
        rank: int = 64,
        top_k: int = 2,
        scale: float = 4.0,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.width, self.top_k, self.scale, self.dropout = width, top_k, scale, dropout
        bound = 1 / math.sqrt(width)  # Kaiming uniform with a = √5, of fan-in `width`
        self.a = nn.Parameter(torch.empty(layers, 4, rank, width).uniform_(-bound, bound))
        self.b = nn.Parameter(torch.zeros(layers, 4, experts, width, rank))
        self.router = nn.Parameter(torch.empty(layers, 4, experts, width).uniform_(-bound, bound))
        self.noise = nn.Parameter(torch.zeros(layers, 4, experts, width))
        self.prototypes = nn.ParameterList()
        self.task_experts: list[int] = []

    def add_task(self, *, expert: int = ROUTED) -> nn.Parameter:
        """A new prototype ~ N(0, 1/d), trainable; the earlier ones are frozen from here on.

        Args:
            expert: the one expert that the task always uses, ``ROUTED`` or ``NO_EXPERT``.
        """
        for prototype in self.prototypes:
            prototype.requires_grad_(False)
        prototype = nn.Parameter((torch.randn(self.width) / math.sqrt(self.width)).to(self.a.device))
        self.prototypes.append(prototype)
        self.task_experts.append(expert)
        return prototype

    def spread_expert(self, source: int = 0) -> None:
        """Copy B of one expert into all: what the first task learned is where every expert starts."""
        with torch.no_grad():
            self.b.copy_(self.b[:, :, source : source + 1].expand_as(self.b).clone())

    def weights(self) -> TameWeights:
        """The current weights as a set of one (W = 1)."""
        return TameWeights(*(p.unsqueeze(0) for p in (self.a, self.b, self.router, self.noise)))

    def condition(self, tasks: Sequence[int], *, weights: TameWeights | None = None) -> TameCondition:
        """The condition under which the tasks of these positions (0-based) are asked."""
        device = self.a.device
        return TameCondition(
            weights=weights or self.weights(),
            prototypes=torch.stack([self.prototypes[t] for t in tasks]),
            experts=torch.tensor([self.task_experts[t] for t in tasks], device=device),
            top_k=self.top_k,
            scale=self.scale,
            dropout=self.dropout if self.training else 0.0,
            explore=self.training,
        )

    def tensors(self) -> dict[str, Tensor]:
        """All that a release keeps, by name."""
        tensors = {name: getattr(self, name).detach() for name in ("a", "b", "router", "noise")}
        tensors["task_experts"] = torch.tensor(self.task_experts, dtype=torch.int64)
        tensors["prototypes"] = (
            torch.stack([p.detach() for p in self.prototypes])
            if len(self.prototypes)
            else torch.empty(0, self.width)
        )
        return tensors

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what :meth:`tensors` gave; shapes must agree."""
        for name in ("a", "b", "router", "noise"):
            if tensors[name].shape != getattr(self, name).shape:
                raise RuntimeError(
                    f"{name} is {tuple(tensors[name].shape)}, not {tuple(getattr(self, name).shape)}"
                )
            getattr(self, name).data.copy_(tensors[name])
        self.task_experts = [int(e) for e in tensors["task_experts"]]
        if len(self.prototypes) != len(tensors["prototypes"]):
            self.prototypes = nn.ParameterList(
                nn.Parameter(torch.empty(self.width, device=self.a.device), requires_grad=False)
                for _ in tensors["prototypes"]
            )
        with torch.no_grad():
            for prototype, value in zip(self.prototypes, tensors["prototypes"], strict=True):
                prototype.copy_(value)
