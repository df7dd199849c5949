"""A searchable snapshot: one index generation with its shards, its router, and its query encoders and their caches.

A video and its moments are in one shard, so hits are grouped within each shard before shards are merged: a shard's
result is its k best videos, and neither merging nor the bound on the k-th best score needs to know about moments.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from threading import Lock
from typing import Any, NamedTuple, TypeVar, cast
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import structlog
from cachetools import LRUCache

from cinestrata_schemas.choice_types import QueryMode
from index.arrays import NO_HITS, Hits, Ids, Rows, Vectors, is_moment, video_ids_of
from index.errors import ShardStoreError
from index.files.manifest_format import task_of
from index.index_snapshot import IndexSnapshot
from index.shards.vector_store import SearchableShard
from models.backbones.tower_threads import core_count, map_in_threads
from models.encoders.query_encoder import QueryEncoder, TokenizedText
from models.errors import ModelError
from models.releases.release_state import TaskLineage
from models.routing.confidence_model import ConfidenceModel, VisualScore
from models.routing.router import Router, TextEvidence
from service.core.errors import Unavailable
from service.search.library_words import VideoTasks
from service.search.snapshots.appended_captions import AppendedProfile

Grouping = Callable[[Hits], Hits]
Job = TypeVar("Job")
Result = TypeVar("Result")

log = structlog.get_logger(__name__)

DEGRADED_RETRY_SECONDS = 30  # Retry-After when a shard or its encoder cannot be used
_CACHE_BYTES = 64 * 1024**2
_OBJECT_BYTES = 500  # overhead of the Python objects of an entry, roughly
_DEPTH_FACTOR = 4  # hits fetched per requested video; the depth grows by it if they were too few
_MIN_PARALLEL_BYTES = 2 * 1024**2  # smaller scans take less time than handing them to another thread
_REMOTE_SEARCHES = 32  # concurrent searches of a remote store, in one process


class EncoderMemory:
    """Keeps query encoders within a limit: the least recently used one leaves, and returns on demand. Thread-safe.

    Args:
        max_bytes: Limit on the weights of their backbones; one encoder always stays.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._used: WeakKeyDictionary[QueryVectorCache, float] = WeakKeyDictionary()  # time of the last use
        self._lock = Lock()

    def use(self, cache: QueryVectorCache, reopen: Callable[[], QueryEncoder]) -> QueryEncoder:
        """Get a cache's encoder, which is opened again if it has left; raise Unavailable."""
        with self._lock:
            self._used[cache] = time.monotonic()
            if (encoder := cache.opened) is None:
                self._make_room(cache)
                gc.collect()  # a backbone in torch refers to itself
                try:
                    encoder = cache.opened = reopen()
                # PyTorch raises either of the last two if a GPU is full.
                except (ModelError, ShardStoreError, OSError, MemoryError, RuntimeError) as error:
                    raise Unavailable(
                        f"An encoder can't be loaded: {error}", DEGRADED_RETRY_SECONDS
                    ) from error
                log.info("encoder_returned", backbone=encoder.backbone.name)
            self._make_room(cache)
            return encoder

    def _make_room(self, cache: QueryVectorCache) -> None:
        """Let encoders leave until the others and the given one, opened or not, are within the limit."""
        others = [each for each in self._used if each.opened and each is not cache]
        others.sort(key=self._used.__getitem__)
        while others and self._bytes(cache) > self._max_bytes:
            others.pop(0).opened = None

    def _bytes(self, cache: QueryVectorCache) -> int:
        weights: dict[str, int] = {}  # by fingerprint: encoders may share a backbone
        for each in self._used:
            if each.opened:
                each.weights = each.opened.backbone.fingerprint, each.opened.backbone.weight_bytes
            if each.opened or each is cache:
                weights.update([each.weights])
        return sum(weights.values())


class QueryVectorCache:
    """Encodes texts for tasks, and caches the most recently used tokens and vectors. Thread-safe.

    Cached vectors, and cached tokens, take about ``max_bytes`` each.

    Args:
        memory: Memory that the encoder shares with others, and a function that opens it again.

    Attributes:
        opened: The encoder; None if it has left the memory.
        weights: Fingerprint and bytes of the encoder's backbone, when the memory last saw it.
    """

    def __init__(
        self,
        encoder: QueryEncoder,
        max_bytes: int = _CACHE_BYTES,
        memory: tuple[EncoderMemory, Callable[[], QueryEncoder]] | None = None,
    ) -> None:
        def size_of(*arrays: npt.NDArray[Any]) -> int:
            return min(_OBJECT_BYTES + sum(array.nbytes for array in arrays), max_bytes)

        self.opened: QueryEncoder | None = encoder
        self.weights = "", 0
        self._memory = memory
        self.modes, self.profile_factor = encoder.modes, encoder.profile_factor
        self.shares_text_encoding, self._shared_modes = encoder.shares_text_encoding, encoder.shared_modes
        self._lock = Lock()
        self._tokens: LRUCache[str, TokenizedText] = LRUCache(max_bytes, lambda text: size_of(*text))
        # By text, query mode and task; the task is "" if tasks share a vector.
        self._vectors: LRUCache[tuple[str, str, str], Vectors] = LRUCache(max_bytes, getsizeof=size_of)
        self._identities: dict[tuple[str, str], str | None] = {}

    @property
    def encoder(self) -> QueryEncoder:
        """The query encoder, opened again if it has left the memory; raises Unavailable."""
        if self._memory is None:
            return cast(QueryEncoder, self.opened)
        memory, reopen = self._memory
        return memory.use(self, reopen)

    def clear(self) -> None:
        """Remove all cached texts."""
        with self._lock:
            self._tokens.clear()
            self._vectors.clear()

    def tokens(self, texts: Sequence[str]) -> list[TokenizedText]:
        """Tokenize each text. If tasks share an encoding, new texts are encoded, too."""
        with self._lock:
            tokens = {text: cached for text in texts if (cached := self._tokens.get(text)) is not None}
        missing = [text for text in dict.fromkeys(texts) if text not in tokens]
        if missing:
            encoder = self.encoder
            new = dict(zip(missing, encoder.tokenize(missing), strict=True))
            encoder.prepare_texts(list(new.values()))
            tokens |= new
            with self._lock:
                self._tokens.update(new)
        return [tokens[text] for text in texts]

    def __call__(self, pairs: Sequence[tuple[str, str, str]]) -> list[Vectors]:
        """Get the unit vector ``float32 [dim]`` of each (text, mode, task). One batch encodes those not cached."""
        shared = self._shared_modes
        keys = [(text, mode, "" if mode in shared else task_of(task)) for text, mode, task in pairs]
        with self._lock:
            vectors = {key: cached for key in keys if (cached := self._vectors.get(key)) is not None}
        missing = {
            key: task_of(task) for key, (_, _, task) in zip(keys, pairs, strict=True) if key not in vectors
        }
        for mode in dict.fromkeys(mode for _, mode, _ in missing):
            batch = [key for key in missing if key[1] == mode]
            tokens, tasks = self.tokens([text for text, _, _ in batch]), [missing[key] for key in batch]
            for key, vector in zip(batch, self.encoder.encode_pairs(tokens, tasks, mode), strict=True):
                vectors[key] = vector.copy()  # a view would keep the whole batch alive
        with self._lock:
            self._vectors.update({key: vectors[key] for key in missing})
        return [vectors[key] for key in keys]

    def encode_uncached(self, texts: Sequence[str], mode: str, task: str) -> Vectors:
        """Encode texts for one task, ``float32 [n, dim]``, without caching them."""
        encoder = self.encoder
        return encoder.encode_pairs(encoder.tokenize(texts), [task_of(task)] * len(texts), mode)

    def encoding_identity(self, task: str, mode: str) -> str | None:
        """Identify the parameters that encode texts for a task; None if a later release can change them."""
        key = task, mode
        if key not in self._identities:  # hashes weights, and may read them first
            self._identities[key] = self.encoder.encoding_identity(task_of(task), mode)
        return self._identities[key]


def best_per_video(hits: Hits) -> Hits:
    """Keep the best hit of each video, best first, then by ID."""
    videos = video_ids_of(hits.ids)
    order = np.lexsort((videos, -hits.scores))
    _, firsts = np.unique(videos[order], return_index=True)
    best = order[np.sort(firsts)]
    return Hits(videos[best], hits.scores[best])


def drop_moments(hits: Hits) -> Hits:
    """Keep the hits of whole videos."""
    is_whole = ~is_moment(hits.ids)
    return Hits(hits.ids[is_whole], hits.scores[is_whole])


class ShardScan(NamedTuple):
    """One shard's search for a query's k nearest videos."""

    task: str
    query: Vectors  # query vector float32 [dim]
    k: int
    among: Ids | None = None  # IDs to search, including moments; None: the whole shard
    # Reduces hits to videos, for shards with moments; None keeps the hits.
    group: Grouping | None = best_per_video
    exclude: Sequence[int] = ()  # IDs to leave out


@dataclass(frozen=True, eq=False)
class ServedLineage:
    """The releases of one encoder, as a snapshot serves them."""

    release_id: str  # the newest one, which encodes queries
    backbone_name: str
    query_vectors: QueryVectorCache
    visual_score: VisualScore  # conversion of cosines to log-odds; appends do not change it
    confidence_model: ConfidenceModel | None = None  # calibration of the release, with appended captions
    release_confidence: ConfidenceModel | None = None  # calibration of the release alone
    # The newest append's calibration as JSON; None without one.
    appended_confidence: Mapping[str, Any] | None = None


@dataclass(frozen=True, eq=False)
class SearchSnapshot:
    """One index generation, loaded for searches. A new generation is a new object; snapshots compare by identity."""

    index_snapshot: IndexSnapshot
    generation: int  # of the index
    release_id: str  # ID of the served release: the newest, a pinned or an earlier one
    lineages: Mapping[str, ServedLineage]  # by ID of each searchable task, in learned order
    # Searchable shards in learned order, by key in the manifest: the ID of a task, or, if an upgraded task has several
    # shards, another one, see ``task_of``. Each is searched like a task of its own; only answers name the task.
    shards: Mapping[str, SearchableShard]
    task_names: Mapping[str, str]  # by key
    # Why a task cannot be searched, by key. Grows when a shard breaks while being served.
    degraded: dict[str, str]
    router_indices: Mapping[str, int]  # index of each task in the router, by task ID
    router: Router  # router over all tasks, with appended and edited captions added
    modes: tuple[str, ...]  # query modes that the methods offer
    served_mode: QueryMode  # default query mode: the one with the least forgetting
    # What each release read so far added (tasks and routing profiles), by release ID.
    contributions: Mapping[str, TaskLineage]
    # Routing profiles with appended and edited captions, by task ID.
    appended_profiles: Mapping[str, AppendedProfile]
    video_tasks: VideoTasks  # index of each video's task in shards

    @property
    def is_pinned(self) -> bool:
        """Whether an operator pinned a release older than the newest."""
        return self.index_snapshot.manifest.pinned is not None

    @cached_property
    def task_indices(self) -> Mapping[str, int]:
        """Index in ``shards`` by task ID."""
        return {task: index for index, task in enumerate(self.shards)}

    @cached_property
    def distinct_lineages(self) -> tuple[ServedLineage, ...]:
        """The lineages, in the order of their first tasks."""
        return tuple(dict.fromkeys(self.lineages.values()))

    def lineages_of(self, tasks: Iterable[str]) -> Sequence[ServedLineage]:
        """List the distinct lineages of tasks."""
        if len(self.distinct_lineages) == 1:
            return self.distinct_lineages
        return list(dict.fromkeys(map(self.lineages.__getitem__, tasks)))

    @cached_property
    def _tasks(self) -> Mapping[str, str]:
        """ID of the task of each searchable shard, by key; a search looks up those of all."""
        return {key: task_of(key) for key in self.shards}

    @cached_property
    def lineage_indices(self) -> npt.NDArray[np.intp]:
        """Index of each searchable task's lineage in :attr:`distinct_lineages`, ``[T]``."""
        return np.array(
            [self.distinct_lineages.index(lineage) for lineage in self.lineages.values()], np.intp
        )

    @cached_property
    def nonempty_tasks(self) -> tuple[str, ...]:
        """Searchable tasks that have undeleted videos, in learned order."""
        return tuple(task for task, shard in self.shards.items() if shard.count)

    @property
    def degraded_by_name(self) -> dict[str, str]:
        """Why tasks cannot be searched, by task name."""
        degraded = dict(self.degraded)  # other threads add shards that they cannot read
        return {self.task_names.get(task, task): reason for task, reason in degraded.items()}

    def require_searchable(self, task: str) -> None:
        """Raise Unavailable if a task is degraded."""
        if task in self.degraded:
            raise self.unavailable_error(task)

    def unavailable_error(self, task: str) -> Unavailable:
        """Create the error for requests that need a degraded task."""
        name = self.task_names.get(task, task)
        return Unavailable(f"Task {name!r} can't be searched: {self.degraded[task]}", DEGRADED_RETRY_SECONDS)

    def mark_degraded(self, task: str, error: ShardStoreError) -> None:
        """Exclude a shard from later searches, because reading it failed."""
        self.index_snapshot.mark_degraded(task, str(error))
        self.degraded[task] = str(error)

    def with_lineages(self, change: Callable[[ServedLineage], ServedLineage]) -> SearchSnapshot:
        """Copy the snapshot with changed lineages."""
        changed = {lineage: change(lineage) for lineage in self.distinct_lineages}
        return replace(self, lineages={task: changed[lineage] for task, lineage in self.lineages.items()})

    def query_vectors(self, pairs: Sequence[tuple[str, str, str]]) -> list[Vectors]:
        """Encode each (text, mode, task) to a unit vector ``float32 [dim]``, with one batch per encoder."""
        vectors: dict[int, Vectors] = {}
        for lineage in self.lineages_of(task for _, _, task in pairs):
            rows = [row for row, (_, _, task) in enumerate(pairs) if self.lineages[task] is lineage]
            vectors.update(zip(rows, lineage.query_vectors([pairs[row] for row in rows]), strict=True))
        return [vectors[row] for row in range(len(pairs))]

    def route(
        self, texts: Sequence[str], tasks: Sequence[Sequence[str]]
    ) -> list[tuple[dict[str, float], npt.NDArray[np.float32], dict[ServedLineage, TextEvidence]]]:
        """Route each text among its tasks; raises Unavailable if a text has no task.

        The evidence of words is the same for all encoders. That of captions depends on how an encoder places texts, so
        it only compares the tasks of one lineage: if there are several, the likeliest task of each has 0.

        Returns:
            For each text, the log weights of its tasks, likeliest first, where those of one lineage sum to one; bounded
            log-odds of these tasks, which rank results; and how well the tasks of each lineage know it.
        """
        if not all(tasks):
            raise Unavailable("None of these tasks can be searched now.", DEGRADED_RETRY_SECONDS)
        routing = {}
        # Texts with the same tasks share an encoder call.
        groups: dict[tuple[str, ...], list[int]] = {}
        for number, task_ids in enumerate(tasks):
            groups.setdefault(tuple(task_ids), []).append(number)
        for task_ids, numbers in groups.items():
            indices = np.array([self.router_indices[task] for task in task_ids], np.int64)
            columns = {each: list[int]() for each in self.lineages_of(task_ids)}
            for position, task in enumerate(task_ids):
                columns[self.lineages[task]].append(position)
            captions = np.zeros((len(numbers), len(task_ids)), np.float32)
            for lineage, positions in columns.items():
                tokens = lineage.query_vectors.tokens([texts[number] for number in numbers])
                of_lineage = [self._tasks[task_ids[position]] for position in positions]
                evidence = lineage.query_vectors.encoder.routing_evidence(tokens, of_lineage)
                if evidence is not None:
                    captions[:, positions] = evidence
            for row, number in enumerate(numbers):
                pieces, parts = tokens[row].pieces, dict[ServedLineage, TextEvidence]()
                log_weights = np.empty(len(task_ids), np.float32)
                for lineage, positions in columns.items():
                    log_weights[positions], bounded, parts[lineage] = self.router.route(
                        pieces, indices[positions], captions[row, positions]
                    )
                    captions[row, positions] -= captions[row, positions].max()
                overall = log_weights
                if len(columns) > 1:
                    overall, bounded, _ = self.router.route(pieces, indices, captions[row])
                order = np.argsort(-overall, kind="stable")  # tasks with equal weights keep their order
                sorted_weights = zip(order.tolist(), log_weights[order].tolist(), strict=True)
                weights = {task_ids[index]: weight for index, weight in sorted_weights}
                routing[number] = weights, bounded[order], parts
        return [routing[number] for number in range(len(texts))]

    def scan(self, scans: Sequence[ShardScan]) -> list[Hits]:
        """Run scans and collect the hits of each, in order.

        Scans that differ only in the query share one pass over their shard. Shards are scanned in parallel if that is
        faster. A shard that becomes unreadable is set aside, and its scans have no hits.
        """
        groups: dict[tuple[str, int, int, Grouping | None, Sequence[int]], list[int]] = {}
        for number, scan in enumerate(scans):
            key = scan.task, scan.k, id(scan.among), scan.group, tuple(scan.exclude)
            groups.setdefault(key, []).append(number)
        batches = [[scans[number] for number in numbers] for numbers in groups.values()]
        shards = [self.shards[batch[0].task] for batch in batches]
        total_bytes = sum(shard.bytes for shard in shards)
        is_remote = any(shard.is_remote for shard in shards)
        results = search_in_parallel(
            self._scan_shard, batches, total_bytes // max(1, len(batches)), remote=is_remote
        )
        hits = dict(zip(chain(*groups.values()), chain(*results), strict=True))
        return [hits[number] for number in range(len(scans))]

    def _scan_shard(self, scans: Sequence[ShardScan]) -> list[Hits]:
        """Run scans of one shard that differ only in the query."""
        task, query, k, among, group, exclude = scans[0]
        if task not in self.degraded:
            shard = self.shards[task]
            queries = query[None] if len(scans) == 1 else np.stack([scan.query for scan in scans])
            try:
                if group is None or not shard.has_moments:
                    return shard.search_many(queries, k, exclude, among)

                def search(rows: Rows, depth: int) -> list[Hits]:
                    return shard.search_many(queries[rows], depth, exclude, among)

                return nearest_videos(search, len(queries), k, group)
            except ShardStoreError as error:
                self.mark_degraded(task, error)
        return [NO_HITS] * len(scans)


def nearest_videos(
    search: Callable[[Rows, int], Sequence[Hits]], count: int, k: int, group: Grouping
) -> list[Hits]:
    """Find each query's k best videos, or all if there are fewer, as if every vector were scored.

    Hits are fetched to a growing depth, until no deeper hit can change the result. All ``count`` queries share the
    first fetch, and those that need more depth share the next.

    Args:
        search: Finds a shard's best hits, best first, then by ID, given the query numbers and the number of hits.
        group: Reduces hits to videos, keeping the best score and the order.
    """
    results: dict[int, Hits] = {}
    remaining, depth = np.arange(count), _DEPTH_FACTOR * k
    while len(remaining):
        for number, hits in zip(remaining.tolist(), search(remaining, depth), strict=True):
            videos = group(hits)
            # A deeper hit with the same score may belong to a video that precedes the k-th by ID.
            is_final = len(videos.ids) >= k and hits.scores[-1] < videos.scores[k - 1]
            if is_final or len(hits.ids) < depth:
                results[number] = Hits(videos.ids[:k], videos.scores[:k])
        remaining = remaining[[number not in results for number in remaining.tolist()]]
        depth *= _DEPTH_FACTOR
    return [results[number] for number in range(count)]


def search_in_parallel(
    search: Callable[[Job], Result], jobs: Sequence[Job], bytes_each: int, *, remote: bool = False
) -> list[Result]:
    """Run jobs in parallel if each reads enough bytes to be worth a thread, or if they wait for a remote server.

    Scans release the interpreter lock.
    """
    if len(jobs) < 2 or (bytes_each < _MIN_PARALLEL_BYTES and not remote):
        return [search(job) for job in jobs]
    return map_in_threads(search, jobs, _REMOTE_SEARCHES if remote else core_count())
