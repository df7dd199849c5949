"""Word pieces, and routing profiles: statistics of the pieces in captions, a few hundred per task out of 30,522.

Routing, lexicons and spelling split texts into word pieces, whatever tokens the text towers read. For every backbone,
they are those of the sentence encoder all-MiniLM-L6-v2 (WordPiece), so that the routing profiles of all encoders have
one vocabulary. In routing profiles, a token is a word piece. This module imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Pieces = npt.NDArray[np.int64]

VOCABULARY = 30_522  # V, number of piece IDs


def split_pieces(texts: Sequence[str]) -> list[Pieces]:
    """List the piece IDs of each text in the order of the text, without special tokens."""
    from models.backbones.small.small_files import load_tokenizer

    return [tokens[1:-1] for tokens in load_tokenizer().tokens(texts)]


def distinct_pieces(texts: Sequence[str]) -> list[Pieces]:
    """List the distinct piece IDs of each text, ascending."""
    # For few pieces, this is faster than np.unique.
    return [np.array(sorted(set(pieces.tolist())), np.int64) for pieces in split_pieces(texts)]


def piece_presence(texts: Sequence[str]) -> npt.NDArray[np.float32]:
    """Mark the pieces that each text contains, as a matrix ``[n, V]`` of zeros and ones."""
    presence = np.zeros((len(texts), VOCABULARY), np.float32)
    for row, pieces in zip(presence, split_pieces(texts), strict=True):
        row[pieces] = 1
    return presence


def count_pieces(texts: Iterable[str]) -> npt.NDArray[np.float32]:
    """Count the texts that contain each piece, ``[V]``."""
    counts = np.zeros(VOCABULARY, np.float32)
    for text in texts:
        counts[distinct_pieces([text])[0]] += 1
    return counts


def token_profile(counts: npt.NDArray[np.floating], factor: float = 1.0) -> Floats:
    """Compute a task's routing profile, ``[V]``: log(1 + V·p), where p is each token's share of the task's captions.

    A token that the task never used contributes nothing, however large the task; a token used as often as chance would
    have it contributes log 2. The profile of a task without captions is all zero. The values, from the numbers of
    captions that contain each token ``[V]``, survive the half precision in which releases store them.
    """
    return profile_values(counts, counts.sum(), len(counts), factor)


def profile_values(
    counts: npt.NDArray[np.floating], total: float | np.floating, vocabulary: int, factor: float
) -> Floats:
    """Compute the profile values of some tokens from their counts, both ``[n]``, and the total of all V tokens; see
    :func:`token_profile`.
    """
    ratios = vocabulary * counts.astype(np.float32) / np.float32(max(float(total), 1.0))
    logarithms = _rounded(np.log1p(ratios))
    return _rounded(logarithms * np.float32(factor))


def profile_row(captions: Iterable[str], factor: float) -> tuple[npt.NDArray[np.int32], Floats]:
    """Compute the tokens, ascending, and the values of the routing profile for captions; see :func:`token_profile`."""
    counts = count_pieces(captions)
    (used,) = counts.nonzero()
    return used.astype(np.int32), profile_values(counts[used], counts.sum(), VOCABULARY, factor)


def _rounded(values: Floats) -> Floats:
    """Round to half precision."""
    return values.astype(np.float16).astype(np.float32)


Ints = npt.NDArray[np.integer]


@dataclass(frozen=True)
class RoutingProfiles:
    """Non-zero entries of a matrix ``[T, V]`` of routing profiles, row by row (compressed sparse rows).

    :mod:`models.routing.router` explains what a row means. Raises ValueError if the arrays do not form such a matrix.
    """

    tokens: Ints  # token ID of each entry [N], task after task, ascending within a task
    values: npt.NDArray[np.float32]  # value of each entry, [N]
    ends: Ints  # where each task ends in tokens and values, [T]
    vocabulary: int  # vocabulary size V

    def __post_init__(self) -> None:
        starts = np.concatenate([[0], self.ends])
        is_complete = (
            self.tokens.dtype.kind == self.ends.dtype.kind == "i"
            and self.tokens.ndim == self.values.ndim == 1
            and len(self.tokens) == len(self.values) == starts[-1]
        )
        is_ascending = np.diff(self.tokens, prepend=-1) > 0
        is_ascending[starts[:-1][starts[:-1] < len(is_ascending)]] = True  # the first token of each row
        is_inside = not len(self.tokens) or 0 <= self.tokens.min() <= self.tokens.max() < self.vocabulary
        if not (is_complete and (np.diff(starts) >= 0).all() and is_inside and is_ascending.all()):
            raise ValueError(f"the arrays are not routing profiles over {self.vocabulary} tokens")

    @classmethod
    def from_dense(cls, dense: npt.NDArray[np.floating]) -> RoutingProfiles:
        """Keep the non-zero entries of a dense matrix ``[T, V]``."""
        rows, tokens = dense.nonzero()
        ends = np.cumsum(np.bincount(rows, minlength=len(dense)))
        values = np.asarray(dense[rows, tokens], np.float32)
        return cls(tokens.astype(np.int32), values, ends.astype(np.int64), dense.shape[1])

    @classmethod
    def concatenate(cls, parts: Sequence[RoutingProfiles]) -> RoutingProfiles:
        """Join the tasks of all parts, in order; raise ValueError without parts, or if their vocabularies differ."""
        vocabularies = sorted({part.vocabulary for part in parts})
        if len(vocabularies) != 1:
            raise ValueError(f"routing profiles over {vocabularies} tokens cannot be concatenated")
        starts = np.cumsum([0, *(len(part.tokens) for part in parts[:-1])])
        return cls(
            np.concatenate([part.tokens for part in parts]),
            np.concatenate([part.values for part in parts]),
            np.concatenate([part.ends + start for part, start in zip(parts, starts, strict=True)]),
            vocabularies[0],
        )

    def __len__(self) -> int:
        """Count the tasks T."""
        return len(self.ends)

    @property
    def rows(self) -> Ints:
        """Task index of each entry, ``[N]``."""
        return np.repeat(np.arange(len(self)), np.diff(self.ends, prepend=0))

    @property
    def has_captions(self) -> npt.NDArray[np.bool_]:
        """Whether each task has entries, as every task with captions does, ``[T]``."""
        return np.asarray(np.diff(self.ends, prepend=0) > 0)

    def part(self, start: int, stop: int) -> RoutingProfiles:
        """Select the tasks ``start`` to ``stop - 1``."""
        low, high = (int(self.ends[count - 1]) if count else 0 for count in (start, stop))
        ends = self.ends[start:stop] - low
        return RoutingProfiles(self.tokens[low:high], self.values[low:high], ends, self.vocabulary)

    def select(self, tasks: Sequence[int]) -> RoutingProfiles:
        """Select the tasks at some indices."""
        starts = self.ends - np.diff(self.ends, prepend=0)
        entries = [np.arange(starts[task], self.ends[task]) for task in tasks]
        chosen = np.concatenate([*entries, np.empty(0, np.int64)])
        ends = np.cumsum([len(part) for part in entries], dtype=np.int64)
        return RoutingProfiles(self.tokens[chosen], self.values[chosen], ends, self.vocabulary)

    def replace_rows(self, rows: Mapping[int, tuple[Ints, npt.NDArray[np.float32]]]) -> RoutingProfiles:
        """Replace the tokens and values of the tasks at some indices."""
        starts = self.ends - np.diff(self.ends, prepend=0)
        parts = [
            rows.get(task, (self.tokens[start:end], self.values[start:end]))
            for task, (start, end) in enumerate(zip(starts, self.ends, strict=True))
        ]
        return RoutingProfiles(
            np.concatenate([tokens for tokens, _ in parts]),
            np.concatenate([values for _, values in parts]),
            np.cumsum([len(tokens) for tokens, _ in parts]),
            self.vocabulary,
        )

    def to_dense(self, tasks: Sequence[int] | None = None) -> npt.NDArray[np.float32]:
        """Expand all tasks, or those at some indices, to a dense matrix ``[T, V]``."""
        chosen = self if tasks is None else self.select(tasks)
        dense = np.zeros((len(chosen), self.vocabulary), np.float32)
        dense[chosen.rows, chosen.tokens] = chosen.values
        return dense
