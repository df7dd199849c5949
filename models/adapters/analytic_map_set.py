"""Query maps of many tasks, applied to many pairs of text and task in one batch of tensor operations.

A pair's semantic part is the frozen vector minus the center of the task. Its lexical part is the sum of the lexicon's
rows of the known tokens, weighted by TF-IDF over known and unknown tokens.

A set stores the maps of T tasks in a few *blocks* of concatenated tensors, so that the number of operations does not
grow with the number of tasks. Sets are immutable and share blocks: a set with a further task gets a new block, and
blocks of similar size are joined. T tasks, added one by one, occupy at most 1 + log₂ T blocks, and each map is copied
at most log₂ T times.

The vector of a pair is the same bit for bit in any batch and in any block: all steps are elementwise, sums over a row
of fixed length, or sums over the tokens of a text in their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import functional as F

from models.adapters.analytic_maps import MIN_LENGTH, AnalyticQueryMap, VectorLayout

_BATCH_PAIRS = 1024  # pairs whose token rows are gathered at once, some megabytes


@dataclass(frozen=True)
class _Block:
    """Maps of T consecutive tasks.

    Attributes:
        centers: ``[T, semantic]``.
        unknown_weights: ``[T]``.
        is_frozen: Whether each task is queried with the frozen vector itself, ``[T]``.
        keys: V × (``first`` + place of the task in the block) + token, ascending, of all known tokens, ``[R]`` int64.
        weights: Inverse document frequency of each known token, ``[R]``.
        lexicon: Lexical vector of each known token, ``[R, lexical]``.
        first: Number of the block's first task in its keys.
    """

    centers: Tensor
    unknown_weights: Tensor
    is_frozen: Tensor
    keys: Tensor
    weights: Tensor
    lexicon: Tensor
    first: int = 0

    def __len__(self) -> int:
        return len(self.centers)

    def span(self, start: int, stop: int, vocabulary: int) -> slice:
        """Rows of the tokens of the tasks at ``start`` to ``stop - 1``."""
        bounds = torch.tensor([start, stop], device=self.keys.device)
        return slice(*torch.searchsorted(self.keys, (bounds + self.first) * vocabulary).tolist())

    def part(self, start: int, stop: int, vocabulary: int) -> _Block:
        """The tasks at ``start`` to ``stop - 1``, without copying them."""
        rows, tasks = self.span(start, stop, vocabulary), slice(start, stop)
        return _Block(
            self.centers[tasks],
            self.unknown_weights[tasks],
            self.is_frozen[tasks],
            self.keys[rows],
            self.weights[rows],
            self.lexicon[rows],
            self.first + start,
        )


class AnalyticMapSet:
    """Query maps of T tasks.

    Args:
        layout: Sizes of the parts of a vector.
        vocabulary: Vocabulary size V.
        blocks: Blocks of the tasks, in order; see :meth:`of`.
    """

    def __init__(self, layout: VectorLayout, vocabulary: int, blocks: Sequence[_Block] = ()) -> None:
        self.layout = layout
        self._vocabulary = vocabulary
        self._blocks = tuple(blocks)
        self._ends = list(accumulate(len(block) for block in self._blocks))

    @classmethod
    def of(
        cls,
        maps: Sequence[AnalyticQueryMap | None],
        layout: VectorLayout,
        vocabulary: int,
        device: torch.device | None = None,
    ) -> AnalyticMapSet:
        """Set of the given maps; None is a task that is queried with the frozen vector itself."""
        neutral = AnalyticQueryMap.neutral(layout)
        blocks = [_block(query_map or neutral, query_map is None, device) for query_map in maps]
        return cls(layout, vocabulary, [_join(blocks, vocabulary)] if blocks else [])

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @property
    def bytes(self) -> int:
        """Memory of the tensors."""
        return sum(
            tensor.numel() * tensor.element_size()
            for block in self._blocks
            for tensor in (block.centers, block.unknown_weights, block.keys, block.weights, block.lexicon)
        )

    def __add__(self, other: AnalyticMapSet) -> AnalyticMapSet:
        """Tasks of this set, followed by those of another one with the same layout and vocabulary."""
        blocks = list(self._blocks)
        for block in other._blocks:
            blocks.append(block)
            while len(blocks) > 1 and len(blocks[-2]) <= len(blocks[-1]):
                blocks[-2:] = [_join(blocks[-2:], self._vocabulary)]
        return AnalyticMapSet(self.layout, self._vocabulary, blocks)

    def part(self, start: int, stop: int) -> AnalyticMapSet:
        """The tasks at ``start`` to ``stop - 1``, without copying them."""
        blocks = []
        for end, block in zip(self._ends, self._blocks, strict=True):
            begin = end - len(block)
            low, high = max(start, begin), min(stop, end)
            if (low, high) == (begin, end):
                blocks.append(block)
            elif low < high:
                blocks.append(block.part(low - begin, high - begin, self._vocabulary))
        return AnalyticMapSet(self.layout, self._vocabulary, blocks)

    def tensors(self, position: int) -> dict[str, Tensor] | None:
        """Tensors that the vectors of a task depend on, by name; None for a task without a map."""
        (block,) = self.part(position, position + 1)._blocks
        if block.is_frozen.any():
            return None
        return {
            "center": block.centers[0],
            "tokens": block.keys - block.first * self._vocabulary,
            "token_weights": block.weights,
            "unknown_token_weight": block.unknown_weights[0],
            "lexicon": block.lexicon.float(),
        }

    def __call__(self, frozen: Tensor, tokens: Tensor, rows: Tensor, positions: Tensor) -> Tensor:
        """Unit query vectors of P pairs of a text and a task, ``[P, dim]``.

        Args:
            frozen: Unit vectors of n texts in the space of the backbone, ``[n, dim]``.
            tokens: Distinct tokens of each text, ascending, padded with −1, ``[n, L]``.
            rows: Text of each pair, ``[P]``.
            positions: Task of each pair, ``[P]``.
        """
        vectors = frozen.new_empty(len(rows), self.layout.dim)
        for end, block in zip(self._ends, self._blocks, strict=True):
            begin = end - len(block)
            inside = ((positions >= begin) & (positions < end)).nonzero()[:, 0]
            for chosen in torch.split(inside, _BATCH_PAIRS):
                texts = rows[chosen]
                vectors[chosen] = self._apply(block, frozen[texts], tokens[texts], positions[chosen] - begin)
        return vectors

    def _apply(self, block: _Block, frozen: Tensor, tokens: Tensor, tasks: Tensor) -> Tensor:
        """Vectors of pairs of one block, ``[P, dim]``, of texts ``[P, dim]`` with tokens ``[P, L]``."""
        semantic = F.normalize(frozen[:, : self.layout.semantic] - block.centers[tasks], dim=-1)
        lexical = self._lexical(block, tokens, tasks) if self.layout.lexical else semantic[:, :0]
        vectors = self.layout.join(semantic, lexical, is_video=False)
        is_frozen = block.is_frozen[tasks]
        return torch.where(is_frozen.unsqueeze(1), frozen, vectors) if is_frozen.any() else vectors

    def _lexical(self, block: _Block, tokens: Tensor, tasks: Tensor) -> Tensor:
        """Lexical vectors ``[P, lexical]``."""
        if not len(block.keys) or not tokens.shape[1]:
            return torch.zeros(len(tokens), self.layout.lexical, device=tokens.device)
        keys = tokens + ((tasks + block.first) * self._vocabulary).unsqueeze(1)
        # Padding precedes the tokens of a task and would otherwise be the last token of the previous one.
        is_word = tokens >= 0
        place = torch.searchsorted(block.keys, keys).clamp_(max=len(block.keys) - 1)
        is_known = (block.keys[place] == keys) & is_word
        unknown = block.unknown_weights[tasks].unsqueeze(1)
        weights = torch.where(is_known, block.weights[place], unknown) * is_word
        length = _sum_in_order(weights.square()).sqrt().clamp(min=MIN_LENGTH)
        shares = weights * is_known / length.unsqueeze(1)
        gathered = block.lexicon[place.flatten()].float()
        bags = torch.arange(place.numel(), device=place.device).view(place.shape)
        return F.embedding_bag(bags, gathered, mode="sum", per_sample_weights=shares)


def _sum_in_order(values: Tensor) -> Tensor:
    """Sums of the rows of ``[P, L]``, added from left to right: padding does not change a bit of them."""
    return values.cumsum(dim=1)[:, -1]


def _block(query_map: AnalyticQueryMap, is_frozen: bool, device: torch.device | None) -> _Block:
    """Block of one task."""
    return _Block(
        centers=query_map.center.unsqueeze(0).to(device),
        unknown_weights=query_map.unknown_token_weight.unsqueeze(0).to(device),
        is_frozen=torch.tensor([is_frozen], device=device),
        keys=query_map.tokens.to(device),
        weights=query_map.token_weights.to(device),
        lexicon=query_map.lexicon.to(device),
    )


def _join(blocks: Sequence[_Block], vocabulary: int) -> _Block:
    """One block with the tasks of all blocks."""
    if len(blocks) == 1:
        return blocks[0]
    begins = accumulate((len(block) for block in blocks[:-1]), initial=0)
    # Empty lexicons would widen half precision to single precision.
    lexicons = [block.lexicon for block in blocks if len(block.keys)] or [blocks[0].lexicon]
    return _Block(
        centers=torch.cat([block.centers for block in blocks]),
        unknown_weights=torch.cat([block.unknown_weights for block in blocks]),
        is_frozen=torch.cat([block.is_frozen for block in blocks]),
        keys=torch.cat(
            [
                block.keys + (begin - block.first) * vocabulary
                for begin, block in zip(begins, blocks, strict=True)
            ]
        ),
        weights=torch.cat([block.weights for block in blocks]),
        lexicon=torch.cat(lexicons),
    )
