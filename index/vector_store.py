"""The seam between what a release consists of and where its vectors live.

The manifest, its generations, releases, ids and deletions stay with :class:`~index.writer.ShardStore`: a few files that
say what is true. A :class:`VectorStore` keeps the rows themselves and scans them. There are two:
:class:`~index.shards.faiss_shards.FaissShards`, files beside the ids, and :class:`~index.milvus.vectors.MilvusVectors`, a server; and
:class:`~index.shards.empty_shard.EmptyShards`, for tasks of which no row is left.

A shard is written in three steps, and visible after the last one only::

    stage     what the shard's folder must hold, so that its content, and with it its id, is settled
    insert    the rows, under that id: half of them are invisible, and may be written again or dropped
    publish   the manifest is replaced, by ShardStore

Deleting ids is a matter of the manifest too: they are named when a task is opened, and stay in older generations. So no
store ever changes a row, and no answer mixes two generations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from index.files.manifest_format import ShardEntry, Structure
from index.scanning.segment import Hits

__all__ = ["Depth", "Rows", "TaskVectors", "VectorStore"]

Ids = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]

# The vectors of a shard, ``float32 [≤ 16,384, dim]`` at a time; it may be called again.
Rows = Callable[[], Iterable[Vectors]]
Depth = Literal["there", "rows", "bytes"]


class TaskVectors(Protocol):
    """The vectors of one task as one generation has them: all its segments, without what was deleted.

    Everything raises :class:`~index.errors.ShardStoreError` when the rows were lost, or cannot be reached, since it was
    opened.
    """

    @property
    def parts(self) -> tuple[ShardEntry, ...]:
        """What the manifest says about its segments, the first one first."""

    @property
    def deleted(self) -> Ids:
        """Ids that are not found any more, ascending."""

    @property
    def entry(self) -> ShardEntry:
        """Of the first segment. Task, release, fingerprint and width are the same for all."""

    @property
    def state(self) -> str:
        """Names what it holds: another text stands for other vectors."""

    @property
    def remote(self) -> bool:
        """Whether a search waits for a server, instead of reading in this process."""

    @property
    def count(self) -> int: ...

    @property
    def dim(self) -> int: ...

    @property
    def ids(self) -> Ids:
        """``int64 [count]``, ascending."""

    def search(
        self, query: Vectors, k: int, exclude: Iterable[int] | Ids = (), among: Ids | None = None
    ) -> Hits:
        """The k nearest by inner product. Equal scores are ordered by id, also where k cuts between them.

        Args:
            query: ``float32 [dim]``, finite.
            exclude: further ids to leave out; unknown ones do not matter.
            among: ids that may be found, where not all may; unknown ones do not matter.

        Raises:
            ValueError: the query is not a finite vector of this width, or ``k`` is below one.
        """

    def search_many(
        self, queries: Vectors, k: int, exclude: Iterable[int] | Ids = (), among: Ids | None = None
    ) -> list[Hits]:
        """What :meth:`search` finds for each query ``float32 [n, dim]``."""

    def vectors(self, ids: Ids) -> Vectors:
        """Stored vectors ``float32 [len(ids), dim]``, as they were rounded.

        Raises:
            ShardMissing: an id is not there, or was deleted.
        """


class VectorStore(Protocol):
    """Keeps the rows of shards, and scans them. Every method may be repeated.

    Raises:
        StoreUnavailable: from any method; the server does not answer, or refuses.
    """

    def place(self, task: str, dim: int) -> str:
        """Where the rows of a task would go, see :attr:`ShardEntry.place`. Nothing is made yet."""

    def stage(
        self,
        folder: Path,
        entry: ShardEntry,
        rows: Rows,
        queries: Vectors | None,
        working: Callable[[], object],
    ) -> Structure | None:
        """Put into a shard's folder, before it is sealed, the rows or the digest by which they are known.

        Args:
            entry: the shard, still without id and files.
            queries: ``float32 [m, dim]``, by which a search structure in the folder is measured; None: without one.
            working: called again and again while that is built.

        Returns:
            The structure, see :mod:`index.scanning.ann`; None: there is none in the folder.
        """

    def insert(self, entry: ShardEntry, ids: Ids, rows: Rows) -> None:
        """Make the rows of a sealed shard durable. Where all are there already, nothing is written.

        Args:
            ids: ``int64 [count]``, ascending; of the rows in their order.

        Raises:
            ShardCorrupt: not every row arrived.
        """

    def check(self, folder: Path, entry: ShardEntry, depth: Depth) -> None:
        """Compare what is there with the entry. Files of the folder were compared with their checksums before.

        Args:
            depth: ``there``: it can be opened; ``rows``: every row has arrived; ``bytes``: each is what was written.

        Raises:
            ShardMissing, ShardCorrupt: it is not, and how.
        """

    def open(self, parts: Sequence[tuple[Path, ShardEntry]], deleted: Ids) -> TaskVectors:
        """The segments of a task, without the deleted ids. Costs nothing until something is asked of it."""

    def drop(self, shard: str, place: str) -> None:
        """Forget the rows of a shard that no generation names, whether all, some or none of them are there. With the
        last shard of a task its place goes too.
        """
