"""Task-Aware Mixture-of-Experts (TAME): queries conditioned on their task (ctvr-ffa-tame, section 3.4).

Each of the four projections (query, key, value, out) in every text block's self-attention is frozen and extended by
low-rank experts: one matrix A that all experts share, one matrix B per expert, and a router that reads the sum of the
end-of-text token and the task's prototype (equations 4 to 6).

A text is usually encoded for several tasks at once. All functions therefore have a leading *candidate* dimension C:
hidden states are ``[C, n, L, d]``, where a candidate is one task's prototype and, with weights from several releases,
also one release's weights. One forward pass encodes for all candidates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.backbones.tower_computation import batch_noise

_INPUT = slice(0, 3)  # query, key and value projections, which have the same input
_OUTPUT = slice(3, 4)  # the out-projection
_NOISE_FLOOR = 0.01
# Special values of a task's expert.
ROUTED = -1  # the router chooses the experts
NO_EXPERT = -2  # the task's shard was made by the backbone alone


class _Layer(NamedTuple):
    """Adapters in one block: :class:`TameWeights` without the layer dimension."""

    a: Tensor
    b: Tensor
    router: Tensor
    noise: Tensor


@dataclass(frozen=True)
class TameWeights:
    """Adapters in all text blocks, in W sets."""

    a: Tensor  # matrices A, which all experts share, [W, layers, 4, r, d]
    b: Tensor  # matrices B of E experts, [W, layers, 4, E, d, r]
    router: Tensor  # weights of the routers, [W, layers, 4, E, d]
    noise: Tensor  # scale of the exploration noise in training, [W, layers, 4, E, d]

    @cached_property
    def layers(self) -> list[_Layer]:
        """Each block's adapters. They are split at once: the gradient of a single slice has the size of all layers."""
        tensors = (self.a, self.b, self.router, self.noise)
        return [_Layer(*parts) for parts in zip(*(tensor.unbind(1) for tensor in tensors), strict=True)]

    @classmethod
    def stack(cls, parts: Sequence[TameWeights]) -> TameWeights:
        """Join the sets of all parts, in order."""
        return cls(
            *(torch.cat([getattr(part, name) for part in parts]) for name in ("a", "b", "router", "noise"))
        )

    def select_set(self, index: int) -> TameWeights:
        """Select one set, W = 1."""
        one = slice(index, index + 1)
        return TameWeights(self.a[one], self.b[one], self.router[one], self.noise[one])


@dataclass(frozen=True)
class TameCondition:
    """Adapters and prototypes of C candidates under which texts are encoded."""

    weights: TameWeights  # adapters of W releases
    prototypes: Tensor  # each candidate's prototype, [C, d]
    experts: Tensor  # the expert that each candidate always uses, or ROUTED, or NO_EXPERT, [C] int64
    top_k: int
    scale: float  # λ in eq. 6
    dropout: float = 0.0  # dropout on the input of A, in training only
    explore: bool = False  # whether to add the router's noise, in training only
    # index of each candidate's adapters among the W sets, [C] int64. None if all candidates share the only set (W = 1),
    # or candidate c has set c (W = C)
    sets: Tensor | None = None

    def choose(self, candidates: Tensor) -> TameCondition:
        """Select the candidates at some positions ``[C']``, which may repeat, without copying adapters."""
        has_one_set = len(self.weights.a) == 1
        return replace(
            self,
            prototypes=self.prototypes[candidates],
            experts=self.experts[candidates],
            sets=None if has_one_set else candidates if self.sets is None else self.sets[candidates],
        )

    @property
    def candidates(self) -> int:
        """Number of candidates C."""
        return len(self.prototypes)

    def embedding_delta(self, ids: Tensor) -> None:
        """Leave token embeddings unchanged."""

    def input_deltas(self, layer: int, hidden: Tensor, end: Tensor) -> Sequence[Tensor]:
        """Compute λ·E(X) for query, key and value, each ``[C, n, L, d]``, from the block's input ``[C, n, L, d]``."""
        return self._deltas(layer, _INPUT, hidden, end).unbind()

    def output_delta(self, layer: int, hidden: Tensor, end: Tensor) -> Tensor:
        """Compute λ·E(X) for the out-projection, ``[C, n, L, d]``, from the concatenated heads ``[C, n, L, d]``."""
        return self._deltas(layer, _OUTPUT, hidden, end)[0]

    def gates(self, layer: int, projections: slice, end_tokens: Tensor) -> Tensor:
        """Compute the gates w^MoE of eq. 4 for P projections, ``[P, C, n, E]``, from end-of-text tokens' states
        ``[C, n, d]``.

        Each row sums to one, or is zero for ``NO_EXPERT``.
        """
        routed = (end_tokens + self.prototypes[:, None]).unsqueeze(0)  # [1, C, n, d]
        router = self._select(self.weights.layers[layer].router, projections)  # [P, W, E, d]
        logits = routed @ router.transpose(-1, -2)
        if self.explore:
            noise = self.weights.layers[layer].noise[:, projections].transpose(0, 1)
            deviation = F.softplus(routed @ noise.transpose(-1, -2)) + _NOISE_FLOOR
            logits = logits + batch_noise(torch.randn_like, logits, dim=2) * deviation
        best, experts = logits.topk(min(self.top_k, logits.shape[-1]), dim=-1)
        routed_gates = torch.zeros_like(logits).scatter(-1, experts, best.softmax(dim=-1))
        expert = self.experts
        fixed = F.one_hot(expert.clamp(min=0), logits.shape[-1]) * (expert != NO_EXPERT).unsqueeze(-1)
        is_routed = (expert == ROUTED)[None, :, None, None]
        return torch.where(is_routed, routed_gates, fixed.to(logits.dtype)[None, :, None, :])

    def _deltas(self, layer: int, projections: slice, hidden: Tensor, end: Tensor) -> Tensor:
        candidates, texts = (torch.arange(size, device=hidden.device) for size in hidden.shape[:2])
        gates = self.gates(layer, projections, hidden[candidates[:, None], texts, end])  # [P, C, n, E]
        a = self._select(self.weights.layers[layer].a, projections)  # [P, W, r, d]
        b = self._select(self.weights.layers[layer].b, projections)  # [P, W, E, d, r]
        if self.dropout:
            hidden = hidden * batch_noise(partial(F.dropout, p=self.dropout), hidden, dim=1)
        low = hidden.unsqueeze(0) @ a.transpose(-1, -2).unsqueeze(2)  # [P, C, n, L, r]
        # eq. 5: Σ w_i B_i A X. All tokens of a text share one gate vector, so the matrices B are mixed first.
        mixed = (gates @ b.flatten(3)).reshape(*gates.shape[:-1], *b.shape[-2:])  # [P, C, n, d, r]
        return torch.mul(low @ mixed.transpose(-1, -2), self.scale)

    def _select(self, adapters: Tensor, projections: slice) -> Tensor:
        """Select projections and sets from one block's adapters ``[W, 4, …]``: ``[P, W or C, …]``."""
        selected = adapters[:, projections] if self.sets is None else adapters[self.sets, projections]
        return selected.transpose(0, 1)


class Tame(nn.Module):
    """Trainable adapters in a text tower, and the prototypes of the tasks learned so far; ``scale`` is λ in eq. 6
    (lora_alpha / r in the published code).
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
        bound = 1 / math.sqrt(width)  # Kaiming uniform with a = √5 and fan-in `width`
        self.a = nn.Parameter(torch.empty(layers, 4, rank, width).uniform_(-bound, bound))
        self.b = nn.Parameter(torch.zeros(layers, 4, experts, width, rank))
        self.router = nn.Parameter(torch.empty(layers, 4, experts, width).uniform_(-bound, bound))
        self.noise = nn.Parameter(torch.zeros(layers, 4, experts, width))
        self.prototypes = nn.ParameterList()
        self.task_experts: list[int] = []

    def add_task(self, *, expert: int = ROUTED) -> nn.Parameter:
        """Add a trainable prototype ~ N(0, 1/d) for an expert, ``ROUTED`` or ``NO_EXPERT``, and freeze the others."""
        for prototype in self.prototypes:
            prototype.requires_grad_(False)
        prototype = nn.Parameter((torch.randn(self.width) / math.sqrt(self.width)).to(self.a.device))
        self.prototypes.append(prototype)
        self.task_experts.append(expert)
        return prototype

    def spread_expert(self, source: int = 0) -> None:
        """Copy one expert's matrix B to all, so that every expert starts with the knowledge of the first task."""
        with torch.no_grad():
            self.b.copy_(self.b[:, :, source : source + 1].expand_as(self.b).clone())

    def weights(self) -> TameWeights:
        """View the current adapters as one set, W = 1."""
        return TameWeights(*(p.unsqueeze(0) for p in (self.a, self.b, self.router, self.noise)))

    def condition(self, tasks: Sequence[int]) -> TameCondition:
        """Build the condition for the tasks at some positions."""
        device = self.a.device
        return TameCondition(
            weights=self.weights(),
            prototypes=torch.stack([self.prototypes[t] for t in tasks]),
            experts=torch.tensor([self.task_experts[t] for t in tasks]).to(device, non_blocking=True),
            top_k=self.top_k,
            scale=self.scale,
            dropout=self.dropout if self.training else 0.0,
            explore=self.training,
        )

    def tensors(self) -> dict[str, Tensor]:
        """Collect the tensors by name, as a release stores them."""
        tensors = {name: getattr(self, name).detach() for name in ("a", "b", "router", "noise")}
        tensors["task_experts"] = torch.tensor(self.task_experts, dtype=torch.int64)
        tensors["prototypes"] = (
            torch.stack([p.detach() for p in self.prototypes])
            if len(self.prototypes)
            else torch.empty(0, self.width)
        )
        return tensors

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Load tensors from :meth:`tensors`; raise RuntimeError if a shape differs."""
        for name in ("a", "b", "router", "noise"):
            if tensors[name].shape != getattr(self, name).shape:
                raise RuntimeError(
                    f"{name} has shape {tuple(tensors[name].shape)}, not {tuple(getattr(self, name).shape)}"
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
