"""The words of many tasks, kept as what they are: a few hundred tokens each, out of tens of thousands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Profiles"]

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.integer]


@dataclass(frozen=True)
class Profiles:
    """Rows of a ``[T, V]`` matrix without their zeros; what a row means is in :mod:`models.routing.router`.

    Attributes:
        tokens: ids of the tokens of all tasks, one task after the other, ``[N]``, ascending in each.
        values: their numbers, ``[N]``.
        ends: where each task ends in them, ``[T]``.
        vocabulary: V.
    """

    tokens: Ints
    values: Floats
    ends: Ints
    vocabulary: int

    def __post_init__(self) -> None:
        """
        Raises:
            ValueError: what is given are no such rows.
        """
        starts = np.concatenate([[0], self.ends])
        whole = (
            self.tokens.dtype.kind == self.ends.dtype.kind == "i"
            and self.tokens.ndim == self.values.ndim == 1
            and len(self.tokens) == len(self.values) == starts[-1]
        )
        rising = np.diff(self.tokens, prepend=-1) > 0
        rising[starts[:-1][starts[:-1] < len(rising)]] = True  # a row begins anew
        inside = not len(self.tokens) or 0 <= self.tokens.min() <= self.tokens.max() < self.vocabulary
        if not (whole and (np.diff(starts) >= 0).all() and inside and rising.all()):
            raise ValueError(f"these are no rows of words out of {self.vocabulary}")

    @classmethod
    def of(cls, dense: npt.NDArray[np.floating]) -> Profiles:
        """The rows of a dense matrix ``[T, V]``."""
        rows, tokens = dense.nonzero()
        ends = np.cumsum(np.bincount(rows, minlength=len(dense)))
        values = np.asarray(dense[rows, tokens], np.float32)
        return cls(tokens.astype(np.int32), values, ends.astype(np.int64), dense.shape[1])

    def __len__(self) -> int:
        """T."""
        return len(self.ends)

    @property
    def rows(self) -> Ints:
        """The task of each token, ``[N]``."""
        return np.repeat(np.arange(len(self)), np.diff(self.ends, prepend=0))

    @property
    def silent(self) -> npt.NDArray[np.bool_]:
        """Which tasks have no words, ``[T]``."""
        return np.asarray(np.diff(self.ends, prepend=0) == 0)

    @classmethod
    def joined(cls, parts: Sequence[Profiles]) -> Profiles:
        """The tasks of all parts, in order.

        Raises:
            ValueError: there is no part, or they are of different vocabularies.
        """
        vocabularies = sorted({part.vocabulary for part in parts})
        if len(vocabularies) != 1:
            raise ValueError(f"rows of words out of {vocabularies} do not go together")
        starts = np.cumsum([0, *(len(part.tokens) for part in parts[:-1])])
        return cls(
            np.concatenate([part.tokens for part in parts]),
            np.concatenate([part.values for part in parts]),
            np.concatenate([part.ends + start for part, start in zip(parts, starts, strict=True)]),
            vocabularies[0],
        )

    def followed_by(self, other: Profiles) -> Profiles:
        """The tasks of both, those of the other one last."""
        return Profiles.joined([self, other])

    def after(self, count: int) -> Profiles:
        """Without those of the first tasks."""
        start = int(self.ends[count - 1]) if count else 0
        return Profiles(self.tokens[start:], self.values[start:], self.ends[count:] - start, self.vocabulary)

    def dense(self, tasks: Sequence[int] | None = None) -> Floats:
        """``[T, V]``, or some of its rows: ``[len(tasks), V]``."""
        chosen = range(len(self)) if tasks is None else tasks
        starts = self.ends - np.diff(self.ends, prepend=0)
        rows = np.zeros((len(chosen), self.vocabulary), np.float32)
        for row, task in zip(rows, chosen, strict=True):
            own = slice(starts[task], self.ends[task])
            row[self.tokens[own]] = self.values[own]
        return rows
