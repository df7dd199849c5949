"""Low-rank updates to a text tower, small enough to keep one per shard, with changed token embeddings.

An update has two parts. Low-rank matrices change how the tower reads: W + λ·BA for the four projections (query, key,
value, out) in every block's self-attention, with W frozen (Hu et al., "LoRA: Low-Rank Adaptation of Large Language
Models", ICLR 2022). Changed token embeddings add a domain's vocabulary: it uses words that the frozen tower hardly
knows, and updated blocks cannot separate tokens whose embeddings are alike. Every token in the domain's captions
therefore has its embedding learned.

As in :mod:`models.adapters.tame`, hidden states have a leading *candidate* dimension C: one forward pass encodes a text
under the updates of many tasks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.backbones.backbone import Backbone

_INPUT = slice(0, 3)  # query, key and value projections, which have the same input
_OUTPUT = slice(3, 4)  # the out-projection


@dataclass(frozen=True)
class TextUpdateSet:
    """Updates of C candidates, or of those that were chosen."""

    a: Tensor  # [C, layers, 4, r, d]
    b: Tensor  # [C, layers, 4, d, r]
    # token embedding changes, candidate after candidate, [R, d]. Unchanged tokens share the first row, if there are any
    words: Tensor
    # V × candidate + token of each row, ascending, and −1 for the row of unchanged tokens, [R] int64
    keys: Tensor
    vocabulary: int
    scale: float
    # positions of the chosen candidates, int64, which are gathered layer by layer, so that they are never all copied at
    # once; None: all
    chosen: Tensor | None = None

    @property
    def candidates(self) -> int:
        """Number of candidates under which texts are encoded."""
        return len(self.a if self.chosen is None else self.chosen)

    @cached_property
    def layers(self) -> list[tuple[Tensor, Tensor]]:
        """Each block's A and B. They are split at once: the gradient of a single slice has the size of all layers."""
        return list(zip(self.a.unbind(1), self.b.unbind(1), strict=True))

    @classmethod
    def stack(cls, parts: Sequence[TextUpdateSet]) -> TextUpdateSet:
        """Join the candidates of all parts, in order.

        Vocabularies and scales must agree. A single part is returned unchanged.
        """
        first = parts[0]
        if len(parts) == 1:
            return first
        words, keys, candidates = [first.words], [first.keys], first.candidates
        for part in parts[1:]:
            is_changed = part.keys >= 0  # the row of unchanged tokens is kept once
            words.append(part.words[is_changed])
            keys.append(part.keys[is_changed] + candidates * part.vocabulary)
            candidates += part.candidates
        return cls(
            a=torch.cat([part.a for part in parts]),
            b=torch.cat([part.b for part in parts]),
            words=torch.cat(words),
            keys=torch.cat(keys),
            vocabulary=first.vocabulary,
            scale=first.scale,
        )

    def part(self, start: int, stop: int) -> TextUpdateSet:
        """Select the candidates ``start`` to ``stop - 1``. If ``start`` is 0, nothing is copied."""
        bounds = torch.tensor([0, start, stop]).to(self.keys.device) * self.vocabulary
        shared, low, high = torch.searchsorted(self.keys, bounds).cpu().tolist()
        words, keys = self.words[low:high], self.keys[low:high] - start * self.vocabulary
        if start == 0:
            words, keys = self.words[:high], self.keys[:high]
        elif shared:
            words, keys = torch.cat([self.words[:1], words]), torch.cat([self.keys[:1], keys])
        return TextUpdateSet(self.a[start:stop], self.b[start:stop], words, keys, self.vocabulary, self.scale)

    def choose(self, candidates: Tensor) -> TextUpdateSet:
        """Select the candidates at some positions, which may repeat."""
        return replace(self, chosen=candidates)

    def unchanged(self) -> TextUpdateSet:
        """Replace each candidate by one that leaves the tower unchanged."""
        words, keys = torch.zeros_like(self.words[:1]), self.keys.new_full((1,), -1)
        return TextUpdateSet(self.a, torch.zeros_like(self.b), words, keys, self.vocabulary, self.scale)

    def to(self, device: torch.device) -> TextUpdateSet:
        """Move the updates to a device."""
        a, b, words, keys = (tensor.to(device) for tensor in (self.a, self.b, self.words, self.keys))
        return TextUpdateSet(a, b, words, keys, self.vocabulary, self.scale)

    def embedding_delta(self, ids: Tensor) -> Tensor:
        """Compute the token embedding changes of texts ``[n, L]`` or ``[C, n, L]``, ``[C, n, L, d]``.

        Rows are found by binary search, since a table of all tokens would take a thousand times the memory.
        """
        candidates = torch.arange(len(self.a), device=ids.device) if self.chosen is None else self.chosen
        keys = ids.expand(self.candidates, *ids.shape[-2:]) + (candidates * self.vocabulary)[:, None, None]
        index = torch.searchsorted(self.keys, keys).clamp_(max=len(self.keys) - 1)
        return F.embedding(torch.where(self.keys[index] == keys, index, 0), self.words)

    def input_deltas(self, layer: int, hidden: Tensor, end: Tensor) -> list[Tensor]:
        """See :class:`~models.encoders.tower_forward.TextCondition`: λ·BAX for query, key and value."""
        return self._low_rank_deltas(layer, _INPUT, hidden)

    def output_delta(self, layer: int, hidden: Tensor, end: Tensor) -> Tensor:
        """Compute λ·BAX for the out-projection, ``[C, n, L, d]``, from the concatenated heads ``[C, n, L, d]``."""
        return self._low_rank_deltas(layer, _OUTPUT, hidden)[0]

    def _low_rank_deltas(self, layer: int, projections: slice, hidden: Tensor) -> list[Tensor]:
        """Compute λ·BAX for each of P projections, ``[C, n, L, d]``."""
        a, b = (matrices[:, projections] for matrices in self.layers[layer])  # [C, P, r, d], [C, P, d, r]
        if self.chosen is not None:
            # Four times as fast as indexing, since each candidate's matrices are contiguous.
            a, b = a.index_select(0, self.chosen), b.index_select(0, self.chosen)
        low = hidden.flatten(1, 2) @ a.flatten(1, 2).transpose(-1, -2)  # [C, n·L, P·r]
        each = torch.mul(low, self.scale).chunk(a.shape[1], dim=-1)
        return [(x @ b[:, p].transpose(-1, -2)).view(hidden.shape) for p, x in enumerate(each)]


class TextUpdate(nn.Module):
    """Trainable update for one task; initially the identity."""

    def __init__(self, width: int, layers: int, vocabulary: int, *, rank: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        bound = 1 / math.sqrt(width)  # Kaiming uniform with a = √5 and fan-in `width`
        self.a = nn.Parameter(torch.empty(layers, 4, rank, width).uniform_(-bound, bound))
        self.b = nn.Parameter(torch.zeros(layers, 4, width, rank))
        # During training all tokens have a row; a release stores the rows that changed.
        self.words = nn.Parameter(torch.zeros(vocabulary, width))
        self.register_buffer("keys", torch.arange(vocabulary), persistent=False)

    @classmethod
    def for_backbone(cls, backbone: Backbone, *, rank: int, scale: float) -> TextUpdate:
        """Create a new update for a backbone's text tower, on the CPU; raise BackboneUnsupported for closed blocks."""
        return cls(
            backbone.text_width, len(backbone.text_blocks), backbone.vocabulary, rank=rank, scale=scale
        )

    def as_update_set(self) -> TextUpdateSet:
        """View the update as a set with one candidate."""
        return TextUpdateSet(
            self.a.unsqueeze(0),
            self.b.unsqueeze(0),
            self.words,
            self.get_buffer("keys"),
            len(self.words),
            self.scale,
        )

    @torch.no_grad()
    def reset_other_words(self, tokens: Tensor) -> None:
        """Reset the embedding changes of all tokens except ``tokens``."""
        words = torch.zeros_like(self.words)
        words[tokens] = self.words[tokens]
        self.words.copy_(words)

    def tensors(self) -> dict[str, Tensor]:
        """Collect the tensors by name, as a release stores them."""
        changed = self.words.detach().any(dim=1).nonzero()[:, 0]
        words = self.words.detach()[changed]
        return {"a": self.a.detach(), "b": self.b.detach(), "tokens": changed, "words": words}

    @torch.no_grad()
    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Load tensors from :meth:`tensors`; raise RuntimeError if a shape differs."""
        for name in ("a", "b"):
            if tensors[name].shape != getattr(self, name).shape:
                raise RuntimeError(
                    f"{name} has shape {tuple(tensors[name].shape)}, not {tuple(getattr(self, name).shape)}"
                )
            getattr(self, name).copy_(tensors[name])
        self.words.zero_()
        self.words[tensors["tokens"]] = tensors["words"].to(self.words.device)


def compact_text_update(tensors: Mapping[str, Tensor], vocabulary: int, scale: float) -> TextUpdateSet:
    """Convert stored tensors to one candidate with rows for the changed tokens; raise ValueError if they do not fit."""
    a, b, tokens, words = (tensors[name] for name in ("a", "b", "tokens", "words"))
    width = a.shape[-1]
    is_valid = a.ndim == b.ndim == 4 and b.shape == (*a.shape[:2], width, a.shape[2])
    if not is_valid or words.shape != (len(tokens), width):
        raise ValueError(
            f"the shapes a {tuple(a.shape)}, b {tuple(b.shape)} and words {tuple(words.shape)} do not fit together"
        )
    if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocabulary:
        raise ValueError(f"a token ID is not in the backbone's vocabulary of {vocabulary}")
    order = tokens.argsort()
    return TextUpdateSet(
        a=a.unsqueeze(0),
        b=b.unsqueeze(0),
        words=torch.cat([words.new_zeros(1, width), words[order]]),
        keys=torch.cat([tokens.new_full((1,), -1), tokens[order]]),
        vocabulary=vocabulary,
        scale=scale,
    )
