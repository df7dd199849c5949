"""What a task has in the store, as its readers see it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from index.format import ShardEntry
from index.opened import OpenSegments
from index.segment import Hits

__all__ = ["Shard"]

Ids = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]


class Shard:
    """The vectors of one task. Its file is opened when something is asked of it, and may be closed in between.

    Whatever is asked therefore raises ShardMissing or ShardCorrupt when the file was lost since the snapshot was made.

    Attributes:
        entry: what the manifest says about it.
    """

    def __init__(self, entry: ShardEntry, folder: Path, opened: OpenSegments) -> None:
        self.entry = entry
        self._folder = folder
        self._opened = opened

    @property
    def count(self) -> int:
        return self.entry.count

    @property
    def dim(self) -> int:
        return self.entry.dim

    @property
    def ids(self) -> Ids:
        """``int64 [count]``, ascending."""
        with self._opened.use(self._folder, self.entry) as segment:
            return segment.ids

    def search(self, query: Vectors, k: int, exclude: Iterable[int] | Ids = ()) -> Hits:
        """The k nearest by inner product, see :meth:`index.segment.Segment.search`."""
        with self._opened.use(self._folder, self.entry) as segment:
            return segment.search(query, k, exclude)

    def vectors(self, ids: Ids) -> Vectors:
        """Stored vectors ``float32 [len(ids), dim]``; raises ShardMissing for an unknown id."""
        with self._opened.use(self._folder, self.entry) as segment:
            return segment.vectors(ids)
