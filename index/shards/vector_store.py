"""The interface between the manifest and vector stores.

:class:`~index.shard_store.ShardStore` owns the manifest, its generations, releases, IDs and deletions: a few files, the
source of truth. A :class:`VectorStore` stores rows and scans them:

- :class:`~index.shards.faiss_vector_store.FaissVectorStore`: files next to the IDs;
- :class:`~index.milvus.milvus_vector_store.MilvusVectorStore`: a server;
- :class:`EmptyVectorStore`: for tasks without vectors.

A segment is written in three steps, and becomes visible with the last one::

    stage     writes files into the segment folder, which determine its content ID
    insert    stores the rows under that ID; incomplete rows are invisible, and may be written again or dropped
    publish   replaces the manifest (ShardStore)

Deletions are part of the manifest too: deleted IDs are passed when a shard is opened, and stay visible in older
generations. So no store ever changes a row, and no search mixes two generations.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from index.arrays import Ids, Vectors
from index.files.manifest_format import AnnStructure, SegmentEntry
from index.hits import NO_HITS, Hits
from index.shards.searchable_shard import SearchableShard

# Yields a segment's vectors in batches ``float32 [≤ 16,384, dim]``; may be called repeatedly.
VectorBatches = Callable[[], Iterable[Vectors]]
CheckLevel = Literal["exists", "rows", "bytes"]


class VectorStore(ABC):
    """Stores the rows of segments, and scans them. Every method is idempotent.

    The default methods suit a store whose rows, if any, are files in the segment folders.

    Raises:
        StoreUnavailable: From any method: the server does not respond, or refuses.
    """

    def place(self, task: str, dim: int) -> str:
        """Decide where a task's rows go, see :attr:`SegmentEntry.place`. Nothing is created."""
        return ""

    def stage(
        self,
        folder: Path,
        entry: SegmentEntry,
        rows: VectorBatches,
        queries: Vectors | None,
        heartbeat: Callable[[], object],
    ) -> AnnStructure | None:
        """Write the rows, or a digest of them, into a segment folder before it is sealed.

        Args:
            entry: The segment's entry, without ID and files.
            queries: ``float32 [m, dim]``, to measure an ANN structure with; None means no structure.
            heartbeat: Called repeatedly while a structure is built.

        Returns:
            The structure in the folder (:mod:`index.scanning.ann_index`); None if there is none.
        """
        return None

    def insert(self, entry: SegmentEntry, ids: Ids, rows: VectorBatches) -> None:
        """Store a sealed segment's rows durably. If all are stored already, nothing is written.

        Args:
            ids: ``int64 [count]``, ascending; IDs of the rows in their order.

        Raises:
            ShardCorrupt: Some rows did not arrive.
        """
        return

    def check(self, folder: Path, entry: SegmentEntry, level: CheckLevel) -> None:
        """Compare the stored rows with the entry. The folder's checksums were compared before.

        Args:
            level: ``exists``: the segment can be opened; ``rows``: every row is stored; ``bytes``: every row has the
                content that was written.

        Raises:
            ShardMissing, ShardCorrupt: The rows differ.
        """
        return

    @abstractmethod
    def open(self, segments: Sequence[tuple[Path, SegmentEntry]], deleted: Ids) -> SearchableShard:
        """Open the shard that consists of these segments (folder and entry), without the deleted IDs.

        Rows are read only when needed.
        """

    def drop(self, segment_id: str, place: str) -> None:
        """Remove the rows of a segment that no generation names, whether all, some or none are stored.

        The task's place is removed with its last segment.
        """
        return


class EmptyVectorStore(VectorStore):
    """Vector store for segments without vectors; it stores nothing.

    A task has such a segment after all its vectors were deleted and its shard was compacted. The manifest still names
    the task, its release and its encoder, so the task stays published, pinned and counted. The segment's folder has a
    description and an empty list of IDs, wherever its vectors were before.
    """

    def open(self, segments: Sequence[tuple[Path, SegmentEntry]], deleted: Ids) -> SearchableShard:
        return _EmptyShard(segments, deleted)


class _EmptyShard(SearchableShard):
    """The shard of a task without vectors."""

    def search_many(
        self, queries: Vectors, k: int, exclude: Iterable[int] | Ids = (), include: Ids | None = None
    ) -> list[Hits]:
        return [NO_HITS] * len(self._valid_queries(queries, k))

    def _segment_ids(self, folder: Path, entry: SegmentEntry) -> Ids:
        return np.empty(0, np.int64)

    def _fetch(self, ids: Ids) -> Iterator[tuple[npt.NDArray[np.bool_], Vectors]]:
        return iter(())
