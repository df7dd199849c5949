"""Read shards: their rows, IDs and deletions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from index.arrays import Ids
from index.errors import ShardCorrupt, ShardInvalid, ShardMissing
from index.files.manifest_format import Manifest, SegmentEntry
from index.files.segment_files import load_ids, read_tombstones
from index.files.store_folder import StoreFolder
from index.shards.searchable_shard import SearchableShard
from index.shards.vector_store import CheckLevel, EmptyVectorStore, VectorStore
from index.vector_ids import video_ids_of

_NO_IDS = np.empty(0, np.int64)


class ShardReader(StoreFolder):
    """Reads the shards of a store. Any number of processes may read while at most one writes.

    A shard's rows are in its segment folders, or in a remote store that its entries name
    (:mod:`index.shards.vector_store`).

    Attributes:
        remote: Store for rows outside their segment's folder.
    """

    def __init__(self, root: Path, local: VectorStore, remote: VectorStore | None) -> None:
        """Create a reader of the store in ``root``, with the stores for rows in segment folders and outside them."""
        super().__init__(root)
        self.remote = remote
        self._local = local
        self._empty = EmptyVectorStore()

    def open(self, segments: Sequence[SegmentEntry], deleted: Ids = _NO_IDS) -> SearchableShard:
        """Open the shard that consists of these segments, without the deleted IDs.

        Raises:
            ShardMissing: A remote store has the rows, and none is configured.
        """
        folders = [(self.shard_folder(entry.id), entry) for entry in segments]
        return self._vector_store_of(segments[0]).open(folders, deleted)

    def check(self, entry: SegmentEntry, level: CheckLevel) -> None:
        """Compare a segment's stored rows with its entry, see :meth:`VectorStore.check`.

        File checksums are not compared.
        """
        self._vector_store_of(entry).check(self.shard_folder(entry.id), entry, level)

    def tombstones(self, manifest: Manifest, task: str) -> Ids:
        """Read a task's deleted IDs, ascending; raises ShardCorrupt."""
        entry = manifest.tombstones.get(task)
        return read_tombstones(self.tombstone_folder(entry.id), entry) if entry else _NO_IDS

    def segment_ids(self, entry: SegmentEntry) -> Ids:
        """Read a segment's IDs, including deleted ones; raises ShardInvalid."""
        try:
            return load_ids(self.shard_folder(entry.id), entry)
        except ShardCorrupt as error:
            raise ShardInvalid(
                f"the IDs of the shard of task {entry.task} cannot be compared with new ones: {error}"
            ) from error

    def stored_ids(self, task: str, ids: Ids) -> Ids:
        """Select the IDs that a task's segments store, including deleted ones; empty if it has no shard.

        Raises:
            ManifestError, ShardInvalid: The manifest or a segment's IDs cannot be trusted.
        """
        manifest = self.manifest()
        if task not in manifest.shards or not len(ids):
            return _NO_IDS
        segments = [
            entry
            for entry in manifest.segments(task)
            if entry.count and entry.first_id <= ids.max() and ids.min() <= entry.last_id
        ]
        stored = [self.segment_ids(entry) for entry in segments]
        return np.intersect1d(np.concatenate(stored), ids) if stored else _NO_IDS

    def last_video_id(self) -> int:
        """Find the highest video ID with a stored vector, deleted or not; 0 without vectors.

        Raises:
            ManifestError, ShardInvalid: The manifest or a segment's IDs cannot be trusted.
        """
        stored = [self.segment_ids(entry) for entry in self.manifest().all_segments()]
        return max((int(video_ids_of(ids).max()) for ids in stored if len(ids)), default=0)

    def _vector_store_of(self, entry: SegmentEntry) -> VectorStore:
        if not entry.count:
            return self._empty
        if not entry.place:
            return self._local
        if self.remote is None:
            raise ShardMissing(
                f"the vectors of task {entry.task} are in another store ({entry.place}), but none is configured: set "
                "CINESTRATA_MILVUS__URI"
            )
        return self.remote
