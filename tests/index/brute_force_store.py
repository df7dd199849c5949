"""A vector store in plain numpy, the reference for the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from index.arrays import Hits
from index.errors import ShardCorrupt, ShardMissing
from index.files.manifest_format import SegmentEntry
from index.shards.vector_store import CheckLevel, SearchableShard, VectorBatches, VectorStore


class BruteForceVectorStore(VectorStore):
    """A vector store in memory: every row in a dict, every score by one product."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[int, np.ndarray]] = {}

    def place(self, task: str, dim: int) -> str:
        return f"brute:{task}"

    def stage(
        self, folder: Path, entry: SegmentEntry, rows: VectorBatches, queries: object, heartbeat: object
    ) -> None:
        (folder / "vectors.json").write_text(f"{sum(float(chunk.sum()) for chunk in rows()):.6f}")

    def insert(self, entry: SegmentEntry, ids: np.ndarray, rows: VectorBatches) -> None:
        rounded = np.concatenate(list(rows())).astype(np.float16).astype(np.float32)
        self.rows[entry.id] = dict(zip(ids.tolist(), rounded, strict=True))

    def check(self, folder: Path, entry: SegmentEntry, level: CheckLevel) -> None:
        if entry.id not in self.rows:
            raise ShardMissing(entry.id)
        if level != "exists" and len(self.rows[entry.id]) != entry.count:
            raise ShardCorrupt(entry.id)

    def open(self, segments: Sequence[tuple[Path, SegmentEntry]], deleted: np.ndarray) -> SearchableShard:
        return BruteForceShard(self, segments, deleted)

    def drop(self, shard: str, place: str) -> None:
        self.rows.pop(shard, None)


class BruteForceShard(SearchableShard):
    """A shard in that store."""

    def __init__(
        self, store: BruteForceVectorStore, segments: Sequence[tuple[Path, SegmentEntry]], deleted: np.ndarray
    ) -> None:
        super().__init__(segments, deleted)
        self._store = store
        self._rows = {
            id: vector
            for entry in self.segments
            for id, vector in sorted(store.rows[entry.id].items())
            if id not in deleted
        }

    @property
    def state(self) -> str:
        return "+".join(part.id for part in self.segments) + f"-{self.count}"

    @property
    def ids(self) -> np.ndarray:
        return np.array(sorted(self._rows), np.int64)

    def search(
        self, query: np.ndarray, k: int, exclude: Iterable[int] = (), include: np.ndarray | None = None
    ) -> Hits:
        self._valid_queries(query[None], k)
        candidates = set(self._rows) - {int(id) for id in exclude}
        if include is not None:
            candidates &= {int(id) for id in include}
        scored = [(float(np.dot(self._rows[id], query)), id) for id in candidates]
        best = sorted(scored, key=lambda pair: (-round(pair[0], 5), pair[1]))[:k]
        return Hits(np.array([id for _, id in best], np.int64), np.array([s for s, _ in best], np.float32))

    def search_many(
        self, queries: np.ndarray, k: int, exclude: Iterable[int] = (), include: np.ndarray | None = None
    ) -> list[Hits]:
        return [self.search(query, k, exclude, include) for query in queries]

    def vectors(self, ids: np.ndarray) -> np.ndarray:
        for id in ids:
            if int(id) not in self._rows:
                raise ShardMissing(f"no vector {id}")
        return np.array([self._rows[int(id)] for id in ids], np.float32).reshape(len(ids), self.dim)

    def _segment_ids(self, folder: Path, entry: SegmentEntry) -> np.ndarray:
        return np.array(sorted(self._store.rows[entry.id]), np.int64)

    def _fetch(self, ids: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        raise NotImplementedError
