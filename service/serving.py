"""What one generation of the index needs to answer queries, loaded, tried and warmed as a whole."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock

import numpy as np
import numpy.typing as npt

from index import Hits, ShardStoreError, Snapshot, TaskVectors
from models.backbone import Backbone
from models.errors import ModelError, ReleaseError
from models.query_encoder import QueryEncoder
from models.release import ReleaseState, read_release
from models.routing import Router

__all__ = ["EncodedQuery", "Reader", "Serving"]

Ids = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]

_REMEMBERED = 64 * 1024**2  # bytes of query vectors
_FIRST_QUERY = "a first query, so that no user waits for what is done only once"


@dataclass(frozen=True)
class EncodedQuery:
    """A text under some tasks.

    Attributes:
        vectors: ``[T, dim]``, one for each task, unit length.
        tokens: ids of the tokens that it holds.
    """

    vectors: Vectors
    tokens: npt.NDArray[np.int64]


class Reader:
    """Encodes texts, those that it does not remember in one batch. Safe to be shared by threads."""

    def __init__(self, encoder: QueryEncoder) -> None:
        self._encoder = encoder
        self._lock = Lock()
        self._known: OrderedDict[tuple[str, str, tuple[str, ...]], EncodedQuery] = OrderedDict()
        self._bytes = 0

    def __call__(self, texts: Sequence[str], mode: str, tasks: tuple[str, ...]) -> list[EncodedQuery]:
        """One for each text, in their order."""
        found: dict[str, EncodedQuery] = {}
        with self._lock:
            for text in texts:
                key = text, mode, tasks
                if key in self._known:
                    self._known.move_to_end(key)
                    found[text] = self._known[key]
        new = [text for text in dict.fromkeys(texts) if text not in found]
        if new:
            presence = self._encoder.words(new)
            vectors = self._encoder.encode(new, tasks, mode)
            for text, words, under in zip(new, presence, vectors, strict=True):
                # A copy: a part would keep the whole batch in memory.
                found[text] = EncodedQuery(under.copy(), np.flatnonzero(words))
            self._remember({(text, mode, tasks): found[text] for text in new})
        return [found[text] for text in texts]

    def _remember(self, encoded: Mapping[tuple[str, str, tuple[str, ...]], EncodedQuery]) -> None:
        with self._lock:
            for key, query in encoded.items():
                if key not in self._known:
                    self._known[key] = query
                    self._bytes += query.vectors.nbytes
            while self._bytes > _REMEMBERED:
                self._bytes -= self._known.popitem(last=False)[1].vectors.nbytes


@dataclass(frozen=True)
class Serving:
    """One generation: its shards, and the encoder that reads texts for them. A new generation is a new object.

    Attributes:
        snapshot: the generation.
        release: id of the release that encodes queries: the snapshot's current one, or an earlier one.
        shards: what can be searched, by task id, in learned order.
        names: task id → name.
        degraded: task id → why it cannot be searched. Grows when a shard breaks while it serves.
        modes: those that the release's method offers.
        positions: task id → its place among the tasks that the router knows.
        router: tells which tasks a text sounds like.
        encoder: reads texts; the latest are remembered.
    """

    snapshot: Snapshot
    release: str
    shards: Mapping[str, TaskVectors]
    names: Mapping[str, str]
    degraded: dict[str, str]
    modes: tuple[str, ...]
    positions: Mapping[str, int]
    router: Router
    encoder: Reader

    @classmethod
    def load(cls, snapshot: Snapshot, backbone: Backbone, release_id: str | None = None) -> Serving:
        """Read the releases that the snapshot needs, and answer one query with them.

        Shards never change, so a snapshot can also be searched as it was under an earlier release: the tasks that it
        had learned, and no other. A shard that is broken, that another encoder made, or whose own release is broken, is
        left out by name.

        Args:
            release_id: of the snapshot's manifest; the current one by default.

        Raises:
            ModelError, ShardStoreError: the release cannot be read, does not fit the backbone, or has no
                shard that can be searched.
        """
        current = release_id is None or release_id == snapshot.release_id
        release_id = release_id or snapshot.release_id
        if release_id is None:
            raise AssertionError("an empty index has nothing to serve")
        release = read_release(snapshot.release_folder(release_id), for_queries=True)
        names = {task.task_id: task.name for task in release.tasks}
        unknown = [task for task in snapshot.tasks if task not in names] if current else []
        degraded = dict.fromkeys(unknown, "the current release does not know it")
        shards: dict[str, TaskVectors] = {}
        for task in release.tasks:
            try:
                shards[task.task_id] = snapshot.shard(task.task_id, fingerprint=task.fingerprint)
            except ShardStoreError as error:
                degraded[task.task_id] = str(error)
        pinned = _Pinned(snapshot, release_id, release)
        encoder = QueryEncoder.open(backbone, release, pinned)
        degraded.update(pinned.broken)
        shards = {task: shard for task, shard in shards.items() if task not in degraded}
        if not shards:
            raise ReleaseError(f"no shard can be searched: {'; '.join(degraded.values()) or 'there is none'}")
        reader = Reader(encoder)
        for mode in encoder.modes:
            (first,) = reader([_FIRST_QUERY], mode, tuple(shards))
            if not np.isfinite(first.vectors).all():
                raise ReleaseError(
                    f"release {release_id[:12]} gives queries that are not numbers in mode {mode}"
                )
        return cls(
            snapshot=snapshot,
            release=release_id,
            shards=shards,
            names=names,
            degraded=degraded,
            modes=encoder.modes,
            positions={task: position for position, task in enumerate(names)},
            router=Router(release.profiles.numpy()),
            encoder=reader,
        )

    def search(
        self, task: str, query: Vectors, k: int, *, exclude: Sequence[int] = (), among: Ids | None = None
    ) -> Hits:
        """The k nearest in a task's shard; nothing in one that cannot be opened any more, which is set aside."""
        if task not in self.degraded:
            try:
                return self.shards[task].search(query, k, exclude, among)
            except ShardStoreError as error:
                self.set_aside(task, error)
        return Hits(np.empty(0, np.int64), np.empty(0, np.float32))

    def set_aside(self, task: str, error: ShardStoreError) -> None:
        """Search without a shard that broke while it served."""
        self.snapshot.set_aside(task, str(error))
        self.degraded[task] = str(error)

    @property
    def named_degraded(self) -> dict[str, str]:
        """Task name → why it cannot be searched."""
        return {self.names.get(task, task): why for task, why in self.degraded.items()}

    def encode(self, texts: Sequence[str], mode: str, tasks: tuple[str, ...]) -> list[EncodedQuery]:
        """Texts under tasks."""
        return self.encoder(texts, mode, tasks)

    def route(self, encoded: EncodedQuery, tasks: Sequence[str]) -> list[tuple[str, float]]:
        """Log of how much the text sounds like each task, best first; the weights sum to one."""
        chosen = np.array([self.positions[task] for task in tasks], np.int64)
        weights = self.router.log_weights(encoded.tokens, chosen)
        return [(tasks[i], float(weights[i])) for i in np.argsort(-weights, kind="stable")]


class _Pinned(Mapping[str, ReleaseState]):
    """For each task of a release, the release that made its shard; read when asked for, and not kept.

    A release may be large, and an encoder keeps little of it, so they are never all in memory. For one that is
    broken the release itself stands in, so that the other tasks can be served; its own is left out.

    Attributes:
        broken: task id → what is wrong with its release, of those that were asked for.
    """

    def __init__(self, snapshot: Snapshot, release_id: str, release: ReleaseState) -> None:
        self.broken: dict[str, str] = {}
        self._snapshot = snapshot
        self._release_id = release_id
        self._release = release

    def __getitem__(self, task: str) -> ReleaseState:
        shard = self._snapshot.manifest.shards.get(task)
        if shard is None or shard.release == self._release_id:
            return self._release
        try:
            return read_release(self._snapshot.release_folder(shard.release))
        except (ModelError, ShardStoreError, OSError) as error:
            self.broken[task] = f"the release that made its shard cannot be read: {error}"
            return self._release

    def __contains__(self, task: object) -> bool:
        return any(known.task_id == task for known in self._release.tasks)

    def __iter__(self) -> Iterator[str]:
        return (task.task_id for task in self._release.tasks)

    def __len__(self) -> int:
        return len(self._release.tasks)
