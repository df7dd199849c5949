"""The seam between what a release consists of and where its vectors live.

The manifest, its generations, releases, ids and deletions stay with :class:`~index.shard_store.ShardStore`: a few files that
say what is true. A :class:`VectorStore` keeps the rows themselves and scans them. There are two:
:class:`~index.shards.faiss_vector_store.FaissVectorStore`, files beside the ids, and :class:`~index.milvus.milvus_vector_store.MilvusVectorStore`, a server; and
:class:`~index.shards.empty_vector_store.EmptyVectorStore`, for tasks of which no row is left.

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

from index.files.manifest_format import AnnStructure, SegmentEntry
from index.shards.searchable_shard import SearchableShard

__all__ = ["CheckLevel", "Rows", "VectorStore"]

Ids = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]

# The vectors of a shard, ``float32 [≤ 16,384, dim]`` at a time; it may be called again.
Rows = Callable[[], Iterable[Vectors]]
CheckLevel = Literal["there", "rows", "bytes"]


class VectorStore(Protocol):
    """Keeps the rows of shards, and scans them. Every method may be repeated.

    Raises:
        StoreUnavailable: from any method; the server does not answer, or refuses.
    """

    def place(self, task: str, dim: int) -> str:
        """Where the rows of a task would go, see :attr:`SegmentEntry.place`. Nothing is made yet."""

    def stage(
        self,
        folder: Path,
        entry: SegmentEntry,
        rows: Rows,
        queries: Vectors | None,
        heartbeat: Callable[[], object],
    ) -> AnnStructure | None:
        """Put into a shard's folder, before it is sealed, the rows or the digest by which they are known.

        Args:
            entry: the shard, still without id and files.
            queries: ``float32 [m, dim]``, by which a search structure in the folder is measured; None: without one.
            heartbeat: called again and again while that is built.

        Returns:
            The structure, see :mod:`index.scanning.ann_index`; None: there is none in the folder.
        """

    def insert(self, entry: SegmentEntry, ids: Ids, rows: Rows) -> None:
        """Make the rows of a sealed shard durable. Where all are there already, nothing is written.

        Args:
            ids: ``int64 [count]``, ascending; of the rows in their order.

        Raises:
            ShardCorrupt: not every row arrived.
        """

    def check(self, folder: Path, entry: SegmentEntry, depth: CheckLevel) -> None:
        """Compare what is there with the entry. Files of the folder were compared with their checksums before.

        Args:
            depth: ``there``: it can be opened; ``rows``: every row has arrived; ``bytes``: each is what was written.

        Raises:
            ShardMissing, ShardCorrupt: it is not, and how.
        """

    def open(self, parts: Sequence[tuple[Path, SegmentEntry]], deleted: Ids) -> SearchableShard:
        """The segments of a task, without the deleted ids. Costs nothing until something is asked of it."""

    def drop(self, shard: str, place: str) -> None:
        """Forget the rows of a shard that no generation names, whether all, some or none of them are there. With the
        last shard of a task its place goes too.
        """
