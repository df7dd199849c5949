"""Updates of a text tower that are small enough for every shard to keep its own: low-rank matrices, and words.

Two things change when a tower learns a domain. How it reads: W + λ·BA on the four projections (query, key, value, out)
of every block's self-attention, W frozen (Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR
2022). And what words mean: a domain brings names of its own, of which the frozen tower knows little, and no update of
its blocks can tell apart what its table of token embeddings does not. So the rows of the tokens that a domain's
captions hold are learned with it. Those are few: as many as the captions have different tokens.

As in :mod:`models.adapters.tame`, hidden states have a leading *candidate* dimension C: one forward answers a text under the
updates of many tasks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["TextUpdate", "TextUpdateSelection", "TextUpdateSet", "compact_text_update"]

_INPUT = slice(0, 3)  # query, key and value: they read the same input
_OUTPUT = slice(3, 4)  # the out-projection


@dataclass(frozen=True)
class TextUpdateSet:
    """The updates that C candidates ask under.

    Attributes:
        a: ``[C, layers, 4, r, d]``.
        b: ``[C, layers, 4, d, r]``.
        words: ``[R, d]``, changes of token embeddings, those of all candidates one after the other. Tokens that do not
            change share the first row, where there are such.
        keys: ``[R]`` int64, ascending: V × candidate + token of each row, and −1 of the first one.
        vocabulary: V.
        scale: λ.
    """

    a: Tensor
    b: Tensor
    words: Tensor
    keys: Tensor
    vocabulary: int
    scale: float

    @property
    def candidates(self) -> int:
        return len(self.a)

    @cached_property
    def _layers(self) -> list[tuple[Tensor, Tensor]]:
        """A and B of each block, taken apart at once: cut out one by one, each would hand back a gradient as large as
        all layers together."""
        return list(zip(self.a.unbind(1), self.b.unbind(1), strict=True))

    @classmethod
    def stack(cls, parts: Sequence[TextUpdateSet]) -> TextUpdateSet:
        """The candidates of all parts, in order; vocabularies and scales must agree. One part is itself."""
        first = parts[0]
        if len(parts) == 1:
            return first
        words, keys, candidates = [first.words], [first.keys], first.candidates
        for part in parts[1:]:
            changed = part.keys >= 0  # tokens that do not change share one row
            words.append(part.words[changed])
            keys.append(part.keys[changed] + candidates * part.vocabulary)
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
        """Neighbouring candidates, by position. Of those from the first on, nothing is copied."""
        bounds = torch.tensor([0, start, stop], device=self.keys.device) * self.vocabulary
        shared, low, high = torch.searchsorted(self.keys, bounds).tolist()
        words, keys = self.words[low:high], self.keys[low:high] - start * self.vocabulary
        if start == 0:
            words, keys = self.words[:high], self.keys[:high]
        elif shared:
            words, keys = torch.cat([self.words[:1], words]), torch.cat([self.keys[:1], keys])
        return TextUpdateSet(self.a[start:stop], self.b[start:stop], words, keys, self.vocabulary, self.scale)

    def choose(self, candidates: Tensor) -> TextUpdateSelection:
        """Some of the candidates, by position; one may be chosen several times."""
        return TextUpdateSelection(self, candidates)

    def unchanged(self) -> TextUpdateSet:
        """As many candidates that ask with the tower as it came."""
        words, keys = torch.zeros_like(self.words[:1]), self.keys.new_full((1,), -1)
        return TextUpdateSet(self.a, torch.zeros_like(self.b), words, keys, self.vocabulary, self.scale)

    def to(self, device: torch.device) -> TextUpdateSet:
        """On a device."""
        a, b, words, keys = (tensor.to(device) for tensor in (self.a, self.b, self.words, self.keys))
        return TextUpdateSet(a, b, words, keys, self.vocabulary, self.scale)

    def embedding_delta(self, ids: Tensor) -> Tensor:
        """What the words of texts ``[n, L]`` change in their token embeddings, ``[C, n, L, d]``."""
        candidates = torch.arange(self.candidates, device=ids.device)
        return F.embedding(self._rows(candidates, ids.expand(self.candidates, *ids.shape)), self.words)

    def _rows(self, candidates: Tensor, ids: Tensor) -> Tensor:
        """The row of ``words`` for each token ``[C, n, L]`` under its candidate ``[C]``.

        Looked up, since a table of all tokens would take a thousand times the room of those that change.
        """
        wanted = ids + (candidates * self.vocabulary)[:, None, None]
        place = torch.searchsorted(self.keys, wanted).clamp_(max=len(self.keys) - 1)
        return torch.where(self.keys[place] == wanted, place, 0)

    def input_deltas(self, layer: int, hidden: Tensor, end: Tensor) -> list[Tensor]:
        """λ·BAX for query, key and value, each ``[C, n, L, d]``, of the block's input ``[C, n, L, d]``."""
        a, b = self._layers[layer]
        return _deltas(a[:, _INPUT], b[:, _INPUT], self.scale, hidden)

    def output_delta(self, layer: int, hidden: Tensor, end: Tensor) -> Tensor:
        """λ·BAX for the out-projection: ``[C, n, L, d]`` of the concatenated heads ``[C, n, L, d]``."""
        a, b = self._layers[layer]
        return _deltas(a[:, _OUTPUT], b[:, _OUTPUT], self.scale, hidden)[0]


@dataclass(frozen=True)
class TextUpdateSelection:
    """Some of the candidates of ``updates``, gathered layer by layer, so that no copy of them all is ever made.

    Attributes:
        which: ``[C]`` int64, their positions.
    """

    updates: TextUpdateSet
    which: Tensor

    @property
    def candidates(self) -> int:
        return len(self.which)

    def embedding_delta(self, ids: Tensor) -> Tensor:
        """As :meth:`TextUpdateSet.embedding_delta`; ids ``[n, L]``, or ``[C, n, L]``: other texts for each candidate."""
        ids = ids.expand(self.candidates, *ids.shape[-2:])
        return F.embedding(self.updates._rows(self.which, ids), self.updates.words)

    @cached_property
    def _neighbours(self) -> slice | None:
        """Where the candidates lie, if one after the other: then nothing has to be gathered."""
        if self.which.device.type != "cpu":
            return None  # to look would mean to wait for the device
        number = len(self.which)
        first = int(self.which[0]) if number else 0
        if number > 1 and not torch.equal(self.which, torch.arange(first, first + number)):
            return None
        return slice(first, first + number)

    def input_deltas(self, layer: int, hidden: Tensor, end: Tensor) -> list[Tensor]:
        """As :meth:`TextUpdateSet.input_deltas`."""
        return _deltas(*self._gathered(layer, _INPUT), self.updates.scale, hidden)

    def output_delta(self, layer: int, hidden: Tensor, end: Tensor) -> Tensor:
        """As :meth:`TextUpdateSet.output_delta`."""
        return _deltas(*self._gathered(layer, _OUTPUT), self.updates.scale, hidden)[0]

    def _gathered(self, layer: int, projections: slice) -> tuple[Tensor, Tensor]:
        """A and B of some projections of a block."""
        a, b = self.updates._layers[layer]
        if self._neighbours is not None:
            return a[self._neighbours, projections], b[self._neighbours, projections]
        # Four times as fast as indexing, since every candidate's matrices lie together.
        return a[:, projections].index_select(0, self.which), b[:, projections].index_select(0, self.which)


def _deltas(a: Tensor, b: Tensor, scale: float, hidden: Tensor) -> list[Tensor]:
    """λ·BAX of each of P projections, ``[C, n, L, d]``, by A ``[C, P, r, d]`` and B ``[C, P, d, r]``."""
    low = hidden.flatten(1, 2) @ a.flatten(1, 2).transpose(-1, -2)  # [C, n·L, P·r]
    each = torch.mul(low, scale).chunk(a.shape[1], dim=-1)
    return [(x @ b[:, p].transpose(-1, -2)).view(hidden.shape) for p, x in enumerate(each)]


class TextUpdate(nn.Module):
    """The update of one task, trainable; the identity at the start.

    Args:
        width, layers: of the text tower.
        vocabulary: V.
        rank: r of A and B.
        scale: λ.
    """

    def __init__(self, width: int, layers: int, vocabulary: int, *, rank: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        bound = 1 / math.sqrt(width)  # Kaiming uniform with a = √5, of fan-in `width`
        self.a = nn.Parameter(torch.empty(layers, 4, rank, width).uniform_(-bound, bound))
        self.b = nn.Parameter(torch.zeros(layers, 4, width, rank))
        # Of every token while it is trained, of those that changed when it is kept.
        self.words = nn.Parameter(torch.zeros(vocabulary, width))
        self.register_buffer("keys", torch.arange(vocabulary), persistent=False)

    def updates(self) -> TextUpdateSet:
        """As the only candidate."""
        return TextUpdateSet(
            self.a.unsqueeze(0),
            self.b.unsqueeze(0),
            self.words,
            self.get_buffer("keys"),
            len(self.words),
            self.scale,
        )

    @torch.no_grad()
    def forget_words(self, kept: Tensor) -> None:
        """Set back what all tokens mean but these ids."""
        words = torch.zeros_like(self.words)
        words[kept] = self.words[kept]
        self.words.copy_(words)

    def tensors(self) -> dict[str, Tensor]:
        """All that a release keeps, by name."""
        changed = self.words.detach().any(dim=1).nonzero()[:, 0]
        words = self.words.detach()[changed]
        return {"a": self.a.detach(), "b": self.b.detach(), "tokens": changed, "words": words}

    @torch.no_grad()
    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what :meth:`tensors` gave; shapes must agree."""
        for name in ("a", "b"):
            if tensors[name].shape != getattr(self, name).shape:
                raise RuntimeError(
                    f"{name} is {tuple(tensors[name].shape)}, not {tuple(getattr(self, name).shape)}"
                )
            getattr(self, name).copy_(tensors[name])
        self.words.zero_()
        self.words[tensors["tokens"]] = tensors["words"].to(self.words.device)


def compact_text_update(tensors: Mapping[str, Tensor], vocabulary: int, scale: float) -> TextUpdateSet:
    """What :meth:`TextUpdate.tensors` gave as the only candidate, with rows for the changed tokens alone.

    Raises:
        ValueError: tensors that are no update of a tower with this vocabulary.
    """
    a, b, tokens, words = (tensors[name] for name in ("a", "b", "tokens", "words"))
    width = a.shape[-1]
    fits = a.ndim == b.ndim == 4 and b.shape == (*a.shape[:2], width, a.shape[2])
    if not fits or words.shape != (len(tokens), width):
        raise ValueError(
            f"a {tuple(a.shape)}, b {tuple(b.shape)} and words {tuple(words.shape)} are no update"
        )
    if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocabulary:
        raise ValueError(f"a token is not among the {vocabulary} of the backbone")
    order = tokens.argsort()
    return TextUpdateSet(
        a=a.unsqueeze(0),
        b=b.unsqueeze(0),
        words=torch.cat([words.new_zeros(1, width), words[order]]),
        keys=torch.cat([tokens.new_full((1,), -1), tokens[order]]),
        vocabulary=vocabulary,
        scale=scale,
    )
