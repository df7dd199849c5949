"""Conditions on texts: adapters that a text tower applies while it encodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class TextCondition(Protocol):
    """Adapters of C candidates under which texts are encoded.

    :mod:`models.adapters.tame` and :mod:`models.adapters.low_rank_text_update` implement it. Candidates are the first
    dimension of hidden states.
    """

    @property
    def candidates(self) -> int:
        """Number of candidates C."""
        ...

    def embedding_delta(self, ids: Tensor) -> Tensor | None:
        """Compute the change of the token embeddings.

        Args:
            ids: Token IDs ``[n, L]``, or ``[C, n, L]`` with separate texts for each candidate.

        Returns:
            ``[C, n, L, d]``; None if token embeddings do not change.
        """
        ...

    def input_deltas(self, layer: int, hidden: Tensor, end: Tensor) -> Sequence[Tensor]:
        """Compute the changes of query, key and value in a block, each ``[C, n, L, d]``.

        Args:
            layer: Index of the block.
            hidden: Input of the projections, ``[C, n, L, d]``.
            end: Position where each text ends, ``[n]`` or ``[C, n]``.
        """
        ...

    def output_delta(self, layer: int, hidden: Tensor, end: Tensor) -> Tensor:
        """Compute the change of the out-projection in a block, ``[C, n, L, d]``.

        Args:
            layer: Index of the block.
            hidden: Concatenated heads, ``[C, n, L, d]``.
            end: Position where each text ends, ``[n]`` or ``[C, n]``.
        """
        ...


class PerTextCondition:
    """A separate candidate for each of n texts. It counts as one candidate, since texts share no weights.

    Args:
        each: Condition with one candidate per text, C = n.
    """

    def __init__(self, each: TextCondition) -> None:
        self._each = each

    @property
    def candidates(self) -> int:
        """Always 1."""
        return 1

    def embedding_delta(self, ids: Tensor) -> Tensor | None:
        """Compute the change ``[1, n, L, d]`` of the token embeddings for IDs ``[n, L]``."""
        delta = self._each.embedding_delta(ids.unsqueeze(1))
        return None if delta is None else delta.transpose(0, 1)

    def input_deltas(self, layer: int, hidden: Tensor, end: Tensor) -> Sequence[Tensor]:
        """Compute the changes of query, key and value, each ``[1, n, L, d]``, for ``hidden [1, n, L, d]``."""
        deltas = self._each.input_deltas(layer, hidden.transpose(0, 1), end.unsqueeze(1))
        return [delta.transpose(0, 1) for delta in deltas]

    def output_delta(self, layer: int, hidden: Tensor, end: Tensor) -> Tensor:
        """Compute the change of the out-projection, ``[1, n, L, d]``, for ``hidden [1, n, L, d]``."""
        return self._each.output_delta(layer, hidden.transpose(0, 1), end.unsqueeze(1)).transpose(0, 1)


class WordCondition:
    """Adapters from one condition, with changed token embeddings from another.

    Args:
        adapters: Condition that changes the projections, with C candidates.
        words: Condition that changes the token embeddings, with C candidates.
    """

    def __init__(self, adapters: TextCondition, words: TextCondition) -> None:
        self._adapters, self._words = adapters, words

    @property
    def candidates(self) -> int:
        """Number of candidates C."""
        return self._adapters.candidates

    def embedding_delta(self, ids: Tensor) -> Tensor | None:
        """Compute the change ``[C, n, L, d]`` of the token embeddings for IDs ``[n, L]`` or ``[C, n, L]``."""
        return self._words.embedding_delta(ids)

    def input_deltas(self, layer: int, hidden: Tensor, end: Tensor) -> Sequence[Tensor]:
        """Compute the adapters' changes of query, key and value, each ``[C, n, L, d]``."""
        return self._adapters.input_deltas(layer, hidden, end)

    def output_delta(self, layer: int, hidden: Tensor, end: Tensor) -> Tensor:
        """Compute the adapters' change of the out-projection, ``[C, n, L, d]``."""
        return self._adapters.output_delta(layer, hidden, end)
