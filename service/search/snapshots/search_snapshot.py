"""What one generation of the index needs to answer queries, loaded, tried and warmed as a whole."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain
from threading import Lock
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from index.errors import ShardStoreError
from index.hits import Hits
from index.index_snapshot import IndexSnapshot
from index.scanning.search_threads import search_in_parallel
from index.shards.searchable_shard import SearchableShard
from models.backbones.backbone import Backbone
from models.encoders.encoder_registry import open_query_encoder, read_query_release
from models.encoders.query_encoder import QueryEncoder, TokenIds
from models.errors import ModelError, ReleaseError
from models.releases.release_files import read_lineage
from models.releases.release_lineage import TaskLineage
from models.releases.release_state import ReleaseState
from models.routing.confidence_model import ConfidenceModel
from models.routing.router import Router, distinct_tokens
from service.search.batch_scheduler import CallCombiner
from service.search.snapshots.release_validation import check_probes
from service.search.snapshots.snapshot_lineage import Lineage
from service.search.snapshots.video_grouping import best_per_video, has_moments, nearest

__all__ = ["QueryVectorCache", "SearchSnapshot", "ShardScan"]

Ids = npt.NDArray[np.int64]
Vector = npt.NDArray[np.float32]
Vectors = npt.NDArray[np.float32]

_REMEMBERED = 64 * 1024**2  # bytes of texts and query vectors
_ENTRY = 200  # bytes of Python's own for a text or a vector
_TOGETHER = 256  # vectors of one batch of several callers
_FIRST_QUERY = "a first query, so that no user waits for what is done only once"


class ShardScan(NamedTuple):
    """The k nearest videos to a query in a task's shard, or among some of its ids, those of moments too."""

    task: str
    query: Vector
    k: int
    among: Ids | None
    reduced: Callable[[Hits], Hits] = best_per_video


@dataclass
class _Read:
    """What is known of a text: its tokens, and its vectors by mode and task, one for all tasks where they share it."""

    tokens: TokenIds
    vectors: dict[tuple[str, str], Vector] = field(default_factory=dict)


@dataclass(frozen=True)
class _Wanted:
    """A text under a task. Where all tasks share its vector, ``key`` names none of them."""

    text: str
    tokens: TokenIds
    mode: str
    task: str
    key: str


class QueryVectorCache:
    """Encodes texts under tasks, and remembers what it encoded last. Safe to be shared by threads.

    What several threads want at the same time goes through one batch (:class:`~service.search.batch_scheduler.CallCombiner`).
    """

    def __init__(self, encoder: QueryEncoder) -> None:
        self._encoder = encoder
        self._lock = Lock()
        self._known: OrderedDict[str, _Read] = OrderedDict()
        self._bytes = 0
        self._anchors: dict[tuple[str, str], str | None] = {}
        # Of the encoder and not of this reader: a circle would keep the weights of a generation that is over for long.
        self._gathered: CallCombiner[_Wanted, Vector] = CallCombiner(partial(_encoded, encoder), _TOGETHER)

    def tokens(self, texts: Sequence[str]) -> list[TokenIds]:
        """Those of each text, from the mark of its start to that of its end."""
        return [read.tokens for read in self._read(texts)]

    def __call__(self, pairs: Sequence[tuple[str, str, str]]) -> list[Vector]:
        """The unit vector ``[dim]`` of each (text, mode, task)."""
        texts = list(dict.fromkeys(text for text, _, _ in pairs))
        reads = dict(zip(texts, self._read(texts), strict=True))
        wanted = [
            _Wanted(
                text, reads[text].tokens, mode, task, "" if self._encoder.is_task_independent(mode) else task
            )
            for text, mode, task in pairs
        ]
        with self._lock:
            found = {
                (one.text, one.mode, one.key): reads[one.text].vectors[one.mode, one.key]
                for one in wanted
                if (one.mode, one.key) in reads[one.text].vectors
            }
        new = {(one.text, one.mode, one.key): one for one in wanted}
        missing = [one for key, one in new.items() if key not in found]
        if missing:
            vectors = self._gathered(missing)
            with self._lock:
                for one, vector in zip(missing, vectors, strict=True):
                    found[one.text, one.mode, one.key] = vector
                    self._remember(one.text, reads[one.text], (one.mode, one.key), vector)
                self._forget()
        return [found[one.text, one.mode, one.key] for one in wanted]

    def _read(self, texts: Sequence[str]) -> list[_Read]:
        with self._lock:
            found = {text: self._known[text] for text in texts if text in self._known}
            for text in found:
                self._known.move_to_end(text)
        new = [text for text in dict.fromkeys(texts) if text not in found]
        if new:
            read = {text: _Read(t) for text, t in zip(new, self._encoder.tokenize(new), strict=True)}
            with self._lock:
                for text, one in read.items():
                    found[text] = self._known.setdefault(text, one)
                    if found[text] is one:
                        self._bytes += _size(text, one)
                self._forget()
        return [found[text] for text in texts]

    def fresh(self, texts: Sequence[str], mode: str, task: str) -> Vectors:
        """Texts under one task, ``[n, dim]``, none of them remembered."""
        return self._encoder.encode_pairs(self._encoder.tokenize(texts), [task] * len(texts), mode)

    @property
    def encoder(self) -> QueryEncoder:
        """What it reads them with."""
        return self._encoder

    def encoding_identity(self, task: str, mode: str) -> str | None:
        """What encodes a text under a task, where no later release can change it."""
        key = task, mode
        if key not in self._anchors:  # it hashes weights, and may read them first
            self._anchors[key] = self._encoder.encoding_identity(task, mode)
        return self._anchors[key]

    def _remember(self, text: str, read: _Read, key: tuple[str, str], vector: Vector) -> None:
        if key not in read.vectors:
            read.vectors[key] = vector
            if self._known.get(text) is read:
                self._bytes += _vector_size(vector)

    def _forget(self) -> None:
        while self._bytes > _REMEMBERED and self._known:
            text, read = self._known.popitem(last=False)
            self._bytes -= _size(text, read)


def _encoded(encoder: QueryEncoder, wanted: list[_Wanted]) -> list[Vector]:
    """Vectors of what several callers want, some of whom may want the same."""
    once = {(one.text, one.mode, one.key): one for one in wanted}
    found: dict[tuple[str, str, str], Vector] = {}
    for mode in dict.fromkeys(one.mode for one in wanted):
        asked = [one for one in once.values() if one.mode == mode]
        vectors = encoder.encode_pairs([one.tokens for one in asked], [one.task for one in asked], mode)
        for one, vector in zip(asked, vectors, strict=True):
            # A copy: a part would keep the whole batch in memory.
            found[one.text, mode, one.key] = vector.copy()
    return [found[one.text, one.mode, one.key] for one in wanted]


def _size(text: str, read: _Read) -> int:
    """Bytes that a text takes, about."""
    return _ENTRY + 4 * len(text) + read.tokens.nbytes + sum(map(_vector_size, read.vectors.values()))


def _vector_size(vector: Vector) -> int:
    return _ENTRY + vector.nbytes


@dataclass(frozen=True, eq=False)
class SearchSnapshot:
    """One generation: its shards, and the encoder that reads texts for them. A new generation is a new object, and is
    equal to no other.

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
        makers: task id → id of the release whose text side its texts are read with in mode ``pinned``.
        learned: release id → what it has learned itself, of all that were read.
        confidence: how sure the release's searches are; None where it was not calibrated.
    """

    snapshot: IndexSnapshot
    release: str
    shards: Mapping[str, SearchableShard]
    names: Mapping[str, str]
    degraded: dict[str, str]
    modes: tuple[str, ...]
    positions: Mapping[str, int]
    router: Router
    encoder: QueryVectorCache
    makers: Mapping[str, str]
    learned: Mapping[str, TaskLineage]
    confidence: ConfidenceModel | None = None

    @classmethod
    def load(
        cls,
        snapshot: IndexSnapshot,
        backbone: Backbone,
        release_id: str | None = None,
        *,
        other: SearchSnapshot | None = None,
    ) -> SearchSnapshot:
        """Read the releases that the snapshot needs, answer one query with them, and the probes of the release.

        Shards never change, so a snapshot can also be searched as it was under an earlier release: the tasks that it
        had learned, and no other. A shard that is broken, that another encoder made, or whose own release is broken, is
        left out by name.

        Args:
            release_id: of the snapshot's manifest; the current one by default.
            other: one that serves the same library, with the same backbone. Releases never change, so what it holds of
                earlier ones is taken over, and neither read nor tried again. It stays as it is.

        Raises:
            ModelError, ShardStoreError: the release cannot be read, does not fit the backbone, or has no
                shard that can be searched.
        """
        current = release_id is None or release_id == snapshot.release_id
        release_id = release_id or snapshot.release_id
        if release_id is None:
            raise AssertionError("an empty index has nothing to serve")
        folder = snapshot.release_folder(release_id)
        lineage = Lineage(snapshot, backbone.vocabulary, other.learned if other else {})
        release = read_query_release(folder, read_parent=lineage)
        names = {task.task_id: task.name for task in release.tasks}
        unknown = [task for task in snapshot.tasks if task not in names] if current else []
        degraded = dict.fromkeys(unknown, "the current release does not know it")
        shards: dict[str, SearchableShard] = {}
        for task in release.tasks:
            try:
                shards[task.task_id] = snapshot.shard(task.task_id, fingerprint=task.fingerprint)
            except ShardStoreError as error:
                degraded[task.task_id] = str(error)
        entries = snapshot.manifest.shards
        makers = {task: entries[task].release for task in names if task in entries}
        tried = {task for task, maker in makers.items() if other and other.makers.get(task) == maker}
        pinned = _Pinned(snapshot, release_id, release)
        encoder = open_query_encoder(
            backbone, release, pinned, other.encoder.encoder if other else None, tried
        )
        degraded.update(lineage.broken | pinned.broken)
        shards = {task: shard for task, shard in shards.items() if task not in degraded}
        if not shards:
            raise ReleaseError(f"no shard can be searched: {'; '.join(degraded.values()) or 'there is none'}")
        reader = QueryVectorCache(encoder)
        for mode in encoder.modes:
            new = [task for task in shards if mode != "pinned" or task not in tried]
            first = reader([(_FIRST_QUERY, mode, task) for task in new or shards])
            if not np.isfinite(first).all():
                raise ReleaseError(
                    f"release {release_id[:12]} gives queries that are not numbers in mode {mode}"
                )
        check_probes(folder, release_id, reader, shards, encoder.modes)
        return cls(
            snapshot=snapshot,
            release=release_id,
            shards=shards,
            names=names,
            degraded=degraded,
            modes=encoder.modes,
            positions={task: position for position, task in enumerate(names)},
            router=Router(release.profiles),
            encoder=reader,
            makers={task: maker for task, maker in makers.items() if task in shards},
            learned={**lineage.read, release_id: read_lineage(folder)},
            confidence=release.confidence,
        )

    def search(
        self,
        task: str,
        query: Vector,
        k: int,
        *,
        exclude: Sequence[int] = (),
        reduced: Callable[[Hits], Hits] = best_per_video,
    ) -> Hits:
        """The k nearest videos of a task's shard; none of one that cannot be opened any more, which is set aside.

        Args:
            exclude: ids to leave out.
            reduced: how hits become videos, where the shard holds moments.
        """
        return self._search(task, query[None], k, exclude, reduced=reduced)[0]

    def search_moments(self, task: str, query: Vector, ids: Ids) -> Hits:
        """Some moments of a task's videos by their scores, best first; equal ones by id."""
        return self._nearest(task, query[None], len(ids), among=ids)[0]

    def _search(
        self,
        task: str,
        queries: Vector,
        k: int,
        exclude: Sequence[int] = (),
        among: Ids | None = None,
        reduced: Callable[[Hits], Hits] = best_per_video,
    ) -> list[Hits]:
        if not has_moments(self.shards[task]):
            return self._nearest(task, queries, k, exclude, among)
        return nearest(
            lambda rows, depth: self._nearest(task, queries[rows], depth, exclude, among),
            len(queries),
            k,
            reduced,
        )

    def _nearest(
        self, task: str, queries: Vector, k: int, exclude: Sequence[int] = (), among: Ids | None = None
    ) -> list[Hits]:
        """Vectors, and not videos."""
        if task not in self.degraded:
            try:
                return self.shards[task].search_many(queries, k, exclude, among)
            except ShardStoreError as error:
                self.set_aside(task, error)
        return [Hits(np.empty(0, np.int64), np.empty(0, np.float32))] * len(queries)

    def scan(self, scans: Sequence[ShardScan]) -> list[Hits]:
        """What each of several finds, in their order.

        A shard is read once for all who search it alike, and several shards at the same time where that is faster.
        """
        alike: dict[tuple[str, int, int, Callable[[Hits], Hits]], list[int]] = {}
        for number, scan in enumerate(scans):
            alike.setdefault((scan.task, scan.k, id(scan.among), scan.reduced), []).append(number)
        groups = list(alike.values())

        def one(numbers: list[int]) -> list[Hits]:
            first = scans[numbers[0]]
            queries = np.stack([scans[number].query for number in numbers])
            return self._search(first.task, queries, first.k, among=first.among, reduced=first.reduced)

        shards = [self.shards[task] for task, *_ in alike]
        total = sum(part.bytes for shard in shards for part in shard.segments)
        remote = any(shard.remote for shard in shards)
        found = search_in_parallel(one, groups, total // max(1, len(groups)), remote=remote)
        hits = dict(zip(chain(*groups), chain(*found), strict=True))
        return [hits[number] for number in range(len(scans))]

    def set_aside(self, task: str, error: ShardStoreError) -> None:
        """Search without a shard that broke while it served."""
        self.snapshot.mark_degraded(task, str(error))
        self.degraded[task] = str(error)

    @cached_property
    def held(self) -> tuple[str, ...]:
        """Tasks whose videos are not all deleted, in learned order."""
        return tuple(task for task, shard in self.shards.items() if shard.count)

    @property
    def named_degraded(self) -> dict[str, str]:
        """Task name → why it cannot be searched."""
        return {self.names.get(task, task): why for task, why in self.degraded.items()}

    def encode(self, pairs: Sequence[tuple[str, str, str]]) -> list[Vector]:
        """The unit vector of each (text, mode, task)."""
        return self.encoder(pairs)

    def route(self, texts: Sequence[str], tasks: Sequence[Sequence[str]]) -> list[list[tuple[str, float]]]:
        """Log of how much each text sounds like each of its tasks, best first; the weights of a text sum to one."""
        return [self._route(*one) for one in zip(self.encoder.tokens(texts), tasks, strict=True)]

    def _route(self, tokens: TokenIds, tasks: Sequence[str]) -> list[tuple[str, float]]:
        chosen = np.array([self.positions[task] for task in tasks], np.int64)
        weights = self.router.log_weights(distinct_tokens(tokens), chosen)
        order = np.argsort(-weights, kind="stable")
        return list(zip([tasks[place] for place in order.tolist()], weights[order].tolist(), strict=True))


class _Pinned(Mapping[str, ReleaseState]):
    """For each task of a release, the release that made its shard; read when asked for, and not kept.

    A release may be large, and an encoder keeps little of it, so they are never all in memory. For one that is
    broken the release itself stands in, so that the other tasks can be served; its own is left out.

    Attributes:
        broken: task id → what is wrong with its release, of those that were asked for.
    """

    def __init__(self, snapshot: IndexSnapshot, release_id: str, release: ReleaseState) -> None:
        self.broken: dict[str, str] = {}
        self._snapshot = snapshot
        self._release_id = release_id
        self._release = release

    def __getitem__(self, task: str) -> ReleaseState:
        shard = self._snapshot.manifest.shards.get(task)
        if shard is None or shard.release == self._release_id:
            return self._release
        try:
            folder = self._snapshot.release_folder(shard.release)
            return read_query_release(folder, profiles=False)
        except (ModelError, ShardStoreError, OSError) as error:
            self.broken[task] = f"the release that made its shard cannot be read: {error}"
            return self._release

    def __contains__(self, task: object) -> bool:
        return any(known.task_id == task for known in self._release.tasks)

    def __iter__(self) -> Iterator[str]:
        return (task.task_id for task in self._release.tasks)

    def __len__(self) -> int:
        return len(self._release.tasks)
