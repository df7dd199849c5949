"""Read and write segments, and check the rules that a release or segment must satisfy before it is published."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from index.arrays import Ids, Vectors, batches, video_ids_of
from index.errors import ShardCorrupt, ShardInvalid, ShardMissing
from index.files.durable_files import find_damage, hash_files
from index.files.manifest_format import Manifest, ReleaseEntry, SegmentEntry
from index.files.segment_files import DESCRIPTION, IDS, QUERIES, describe, load_ids, read_tombstones
from index.files.store_folder import StoreFolder
from index.shards.vector_store import (
    CheckLevel,
    EmptyVectorStore,
    SearchableShard,
    VectorBatches,
    VectorStore,
)

BATCH_ROWS = 16_384
_UNIT_TOLERANCE = 1e-3  # maximum deviation of a vector's length from 1
_NO_IDS = np.empty(0, np.int64)


class ShardReader(StoreFolder):
    """Reads the shards of a store. Any number of processes may read while at most one writes.

    A shard's rows are in its segment folders, or in a remote store that its entries name
    (:mod:`index.shards.vector_store`). Methods raise ManifestError, ShardCorrupt or ShardInvalid if the manifest or a
    file that they read cannot be trusted.
    """

    def __init__(self, root: Path, local: VectorStore, remote: VectorStore | None) -> None:
        """Create a reader of the store in ``root``, with the stores for rows in segment folders and outside them."""
        super().__init__(root)
        self.remote = remote
        self._local = local
        self._empty = EmptyVectorStore()

    def open(self, segments: Sequence[SegmentEntry], deleted: Ids = _NO_IDS) -> SearchableShard:
        """Open the shard that consists of these segments, without the deleted IDs.

        Raises ShardMissing if a remote store has the rows and none is configured.
        """
        folders = [(self.shard_folder(entry.id), entry) for entry in segments]
        return self._vector_store_of(segments[0]).open(folders, deleted)

    def check(self, entry: SegmentEntry, level: CheckLevel) -> None:
        """Compare a segment's stored rows with its entry, see :meth:`VectorStore.check`.

        File checksums are not compared.
        """
        self._vector_store_of(entry).check(self.shard_folder(entry.id), entry, level)

    def tombstones(self, manifest: Manifest, task: str) -> Ids:
        """Read a task's deleted IDs, ascending."""
        entry = manifest.tombstones.get(task)
        return read_tombstones(self.tombstone_folder(entry.id), entry) if entry else _NO_IDS

    def segment_ids(self, entry: SegmentEntry) -> Ids:
        """Read a segment's IDs, including deleted ones."""
        try:
            return load_ids(self.shard_folder(entry.id), entry)
        except ShardCorrupt as error:
            raise ShardInvalid(
                f"the IDs of the shard of task {entry.task} cannot be compared with new ones: {error}"
            ) from error

    def stored_ids(self, task: str, ids: Ids) -> Ids:
        """Select the IDs that a task's segments store, including deleted ones; empty if it has no shard."""
        manifest = self.manifest()
        if not len(ids):
            return _NO_IDS
        segments = [
            entry
            for key in manifest.keys_of(task)
            for entry in manifest.segments(key)
            if entry.count and entry.first_id <= ids.max() and ids.min() <= entry.last_id
        ]
        stored = [self.segment_ids(entry) for entry in segments]
        return np.intersect1d(np.concatenate(stored), ids) if stored else _NO_IDS

    def last_video_id(self) -> int:
        """Find the highest video ID with a stored vector, deleted or not; 0 without vectors."""
        stored = [self.segment_ids(entry) for entry in self.manifest().kept_segments()]
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


class ShardWriter:
    """Writes segments durably into a store; they stay invisible until they are published."""

    def __init__(self, store_folder: StoreFolder, read_queries: Callable[[Path], Vectors | None]) -> None:
        self._store_folder = store_folder
        self._read_queries = read_queries

    def write(
        self,
        vector_store: VectorStore,
        entry: SegmentEntry,
        *,
        ids: Ids,
        rows: VectorBatches,
        queries: Vectors | None = None,
        heartbeat: Callable[[], object] = lambda: None,
    ) -> SegmentEntry:
        """Write a segment's rows to ``vector_store``; ``entry`` lacks what is known once it is written."""
        place = vector_store.place(entry.task, entry.dim)
        first, last = (int(ids[0]), int(ids[-1])) if len(ids) else (0, -1)
        entry = replace(entry, count=len(ids), first_id=first, last_id=last, place=place)
        with self._store_folder.staging() as staged:
            structure = vector_store.stage(staged, entry, rows, queries, heartbeat)
            np.save(staged / IDS, ids, allow_pickle=False)
            entry = replace(entry, structure=structure, files=hash_files(staged))
            (staged / DESCRIPTION).write_text(json.dumps(describe(entry), indent=1) + "\n", encoding="utf-8")
            sealed = self._store_folder.seal(staged, self._store_folder.shards_path)
        entry = replace(entry, id=sealed.id, bytes=sealed.bytes, files=sealed.files)
        vector_store.insert(entry, ids, rows)
        return entry

    def copy(self, shard: SearchableShard, vector_store: VectorStore) -> SegmentEntry:
        """Copy a shard's undeleted vectors into one new segment, with its rows in ``vector_store``."""
        ids = shard.ids

        def rows() -> Iterator[Vectors]:
            for batch in batches(ids, BATCH_ROWS):
                yield shard.vectors(batch)

        return self.write(
            vector_store,
            _without_rows(shard.entry),
            ids=ids,
            rows=rows,
            queries=self._stored_queries(shard.segments),
        )

    def write_empty(self, pinned: SegmentEntry, vector_store: VectorStore) -> SegmentEntry:
        """Write a segment without vectors, for the same task, release and encoder as an entry."""
        return self.write(vector_store, _without_rows(pinned), ids=np.empty(0, np.int64), rows=lambda: ())

    def _stored_queries(self, segments: Sequence[SegmentEntry]) -> Vectors | None:
        """Load the queries that measured these segments' ANN structures or, without any, those of their release."""
        # By content: segments that were published together were measured with the same queries.
        folders = {
            entry.files[QUERIES]: self._store_folder.shard_folder(entry.id)
            for entry in segments
            if QUERIES in entry.files
        }
        queries = [np.load(folder / QUERIES, allow_pickle=False) for folder in folders.values()]
        if queries:
            return np.concatenate(queries)
        return self._read_queries(self._store_folder.release_folder(segments[0].release))


def new_entry(task: str, release: str, fingerprint: str, dim: int) -> SegmentEntry:
    """Describe a segment that has no vectors and no folder yet."""
    return SegmentEntry("", task, release, fingerprint, 0, dim, first_id=0, last_id=0, bytes=0, files={})


def _without_rows(pinned: SegmentEntry) -> SegmentEntry:
    return new_entry(pinned.task, pinned.release, pinned.fingerprint, pinned.dim)


def sorted_rows(task: str, ids: Ids, vectors: Vectors) -> tuple[Ids, Vectors]:
    """Check IDs and vectors, and sort both by ID; raises ShardInvalid."""
    ids, vectors = np.asarray(ids), np.asarray(vectors)
    problem = None
    if not np.issubdtype(ids.dtype, np.integer) or not np.issubdtype(vectors.dtype, np.floating):
        problem = f"IDs are {ids.dtype} and vectors {vectors.dtype} instead of int64 and float32"
    elif vectors.ndim != 2 or ids.shape != (len(vectors),):
        problem = f"vectors {list(vectors.shape)} and IDs {list(ids.shape)} do not fit together"
    elif not vectors.size:
        problem = "it is empty"
    elif ids.min() < 0:
        problem = f"ID {int(ids.min())} is negative"
    if problem:
        raise ShardInvalid(f"shard of task {task}: {problem}")
    order = np.argsort(ids)
    ids, vectors = ids[order].astype(np.int64), np.ascontiguousarray(vectors[order], np.float32)
    repeated = ids[1:][ids[1:] == ids[:-1]]
    infinite = ids[~np.isfinite(vectors).all(axis=1)]
    not_unit = ids[~(np.abs(np.linalg.norm(vectors, axis=1) - 1) <= _UNIT_TOLERANCE)]
    if len(repeated):
        problem = f"ID {int(repeated[0])} occurs twice"
    elif len(infinite):
        problem = f"the vector of ID {int(infinite[0])} is not finite"
    elif len(not_unit):
        problem = f"the vector of ID {int(not_unit[0])} does not have unit length"
    if problem:
        raise ShardInvalid(f"shard of task {task}: {problem}")
    return ids, vectors


class PublishValidator:
    """Checks entries against the files on disk and the manifest. Every method raises ShardInvalid."""

    def __init__(self, reader: ShardReader) -> None:
        self._reader = reader

    def require_release(self, release: ReleaseEntry) -> None:
        """Require that a release's files are the ones that were written."""
        folder = self._reader.release_folder(release.id)
        if problem := find_damage(folder, release.files, release.bytes, verify=True):
            raise _unwritten(f"release {release.id[:12]}", problem)

    def require_new_shard(self, shard: SegmentEntry, manifest: Manifest) -> None:
        """Require that a segment can be the first of a new shard."""
        name = f"shard {shard.id[:12]} of task {shard.task}"
        if shard.release not in manifest.releases:
            raise ShardInvalid(
                f"{name}: its release {shard.release[:12]} is neither published nor being published"
            )
        other = manifest.shards.get(shard.task)
        if other is not None:
            raise ShardInvalid(
                f"{name}: the task already has shard {other.id[:12]}; a published shard is never replaced"
            )
        self._require_compatible(shard, manifest)

    def require_appendable(self, segment: SegmentEntry, manifest: Manifest) -> None:
        """Require that a segment can be appended to its task's shard."""
        name = f"segment {segment.id[:12]} of task {segment.task}"
        if segment.task not in manifest.shards:
            raise ShardInvalid(f"{name}: the task is not published")
        pinned = manifest.shards[segment.task]
        if (segment.release, segment.fingerprint) != (pinned.release, pinned.fingerprint):
            raise ShardInvalid(
                f"{name}: it was made by release {segment.release[:12]}, but the task's vectors by release "
                f"{pinned.release[:12]}; embed with that one"
            )
        self._require_compatible(segment, manifest)

    def require_intact(self, name: str, segment: SegmentEntry) -> None:
        """Require that a segment's files and rows are the ones that were written."""
        folder = self._reader.shard_folder(segment.id)
        if problem := find_damage(folder, segment.files, segment.bytes, verify=True):
            raise _unwritten(name, problem)
        try:
            self._reader.check(segment, "rows")
        except (ShardMissing, ShardCorrupt) as error:
            raise _unwritten(name, error) from error

    def _require_compatible(self, segment: SegmentEntry, manifest: Manifest) -> None:
        """Require that a segment is intact, has the dimension of its task, and shares no ID with published segments."""
        name = f"shard {segment.id[:12]} of task {segment.task}"
        self.require_intact(name, segment)
        for other in manifest.all_segments():
            if (other.task, other.release) == (segment.task, segment.release) and other.dim != segment.dim:
                raise ShardInvalid(
                    f"{name}: its vectors have {segment.dim} dimensions, those of the task have {other.dim}"
                )
            # Ranges of IDs seldom overlap, so the cost does not grow with the number of shards.
            if segment.first_id <= other.last_id and other.first_id <= segment.last_id:
                shared = np.intersect1d(
                    self._reader.segment_ids(segment), self._reader.segment_ids(other), assume_unique=True
                )
                if len(shared):
                    raise ShardInvalid(f"{name}: ID {int(shared[0])} already belongs to task {other.task}")


def _unwritten(name: str, problem: object) -> ShardInvalid:
    return ShardInvalid(f"{name} is not in the store as it was written: {problem}; write it again")
