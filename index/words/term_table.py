"""Sorted table of distinct terms in a few arrays; Python strings would take ten times the memory.

Terms are compared by their UTF-8 bytes, which sort like their code points. Each term's first eight bytes also form a
number, its key: one binary search in the keys finds a term, or all terms with a short prefix.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

_KEY_BYTES = 8
Indices = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class TermTable:
    """Distinct terms in ascending order, each identified by its index."""

    content: bytes  # the terms in UTF-8, concatenated
    offsets: npt.NDArray[np.uint32]  # [terms + 1], where each term starts
    keys: npt.NDArray[np.uint64]  # [terms], each term's first eight bytes

    @classmethod
    def of(cls, terms: Sequence[bytes]) -> TermTable:
        """Build the table from distinct, sorted terms; none contains a NUL byte."""
        padded = np.array(terms, dtype=np.bytes_) if terms else np.empty(0, dtype="S8")
        return cls._of_padded(padded)

    @classmethod
    def _of_padded(cls, padded: npt.NDArray[np.bytes_]) -> TermTable:
        width = max(padded.dtype.itemsize, _KEY_BYTES)
        matrix = np.ascontiguousarray(padded.astype(f"S{width}")).view(np.uint8).reshape(len(padded), width)
        used = matrix != 0
        offsets = np.zeros(len(padded) + 1, dtype=np.uint32)
        np.cumsum(np.count_nonzero(used, axis=1), out=offsets[1:])
        keys = np.ascontiguousarray(matrix[:, :_KEY_BYTES]).view(">u8").reshape(-1).astype(np.uint64)
        return cls(matrix[used].tobytes(), offsets, keys)

    def __len__(self) -> int:
        return len(self.keys)

    def bytes_of(self, index: int) -> bytes:
        """Look up a term in UTF-8."""
        return self.content[self.offsets[index] : self.offsets[index + 1]]

    def term(self, index: int) -> str:
        """Look up a term."""
        return self.bytes_of(index).decode()

    def all_bytes(self) -> list[bytes]:
        """List all terms in UTF-8, in order."""
        return [self.content[start:end] for start, end in pairwise(self.offsets.tolist())]

    def find(self, term: bytes) -> int:
        """Find a term's index; −1 if the table does not contain it."""
        key = np.uint64(_key(term, b"\0"))
        index = int(self.keys.searchsorted(key))
        if len(term) > _KEY_BYTES:
            end = int(self.keys.searchsorted(key, side="right"))
            index = bisect_left(range(end), term, lo=index, key=self.bytes_of)
        return index if index < len(self.keys) and self.bytes_of(index) == term else -1

    def may_contain(self, terms: Sequence[bytes]) -> npt.NDArray[np.bool_]:
        """Check whether each term may be in the table, judging by its first eight bytes."""
        keys = _keys(terms)
        if not len(self.keys):
            return np.zeros(len(keys), dtype=np.bool_)
        places = np.minimum(self.keys.searchsorted(keys), len(self.keys) - 1)
        return np.asarray(self.keys[places] == keys)

    def with_prefix(self, prefix: bytes) -> range:
        """Find the indices of the terms that begin with ``prefix``."""
        start = int(self.keys.searchsorted(np.uint64(_key(prefix, b"\0"))))
        end = int(self.keys.searchsorted(np.uint64(_key(prefix, b"\xff")), side="right"))
        if len(prefix) > _KEY_BYTES:

            def beginning(index: int) -> bytes:
                return self.bytes_of(index)[: len(prefix)]

            start = bisect_left(range(end), prefix, lo=start, key=beginning)
            end = bisect_right(range(end), prefix, lo=start, key=beginning)
        return range(start, end)

    def padded(self) -> npt.NDArray[np.bytes_]:
        """Convert all terms to one array of byte strings."""
        lengths = np.diff(self.offsets)
        width = max(int(lengths.max(initial=0)), _KEY_BYTES)
        matrix = np.zeros((len(self), width), dtype=np.uint8)
        matrix[np.arange(width) < lengths[:, None]] = np.frombuffer(self.content, dtype=np.uint8)
        padded: npt.NDArray[np.bytes_] = matrix.view(f"S{width}").reshape(-1)
        return padded

    def select(self, kept: npt.NDArray[np.bool_]) -> TermTable:
        """Keep the terms for which ``kept`` is true."""
        return self if kept.all() else self._of_padded(self.padded()[kept])


def merge_tables(tables: Sequence[TermTable]) -> tuple[TermTable, list[Indices]]:
    """Unite tables; also return, for each table, the index of each of its terms in the union."""
    joined = np.concatenate([table.padded() for table in tables])
    order = np.argsort(joined, kind="stable")  # a merge of sorted runs
    ordered = joined[order]
    first = np.ones(len(ordered), dtype=np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    places = np.empty(len(joined), dtype=np.int32)
    places[order] = np.cumsum(first, dtype=np.int32) - 1
    ends = np.cumsum([len(table) for table in tables])
    return TermTable._of_padded(ordered[first]), np.split(places, ends[:-1])


def _keys(terms: Sequence[bytes]) -> npt.NDArray[np.uint64]:
    return np.array(terms, dtype=f"S{_KEY_BYTES}").view(f">u{_KEY_BYTES}").astype(np.uint64)


def _key(term: bytes, fill: bytes) -> int:
    return int.from_bytes(term[:_KEY_BYTES].ljust(_KEY_BYTES, fill), "big")
