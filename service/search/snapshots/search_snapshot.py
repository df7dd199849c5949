"""A searchable snapshot: one index generation with its shards, its router, and its query encoders and their caches.

A video and its moments are in one shard, so hits are grouped within each shard before shards are merged: a shard's
result is its k best videos, and neither merging nor the bound on the k-th best score needs to know about moments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from cinestrata_schemas.choice_types import QueryMode
from index.arrays import NO_HITS, Hits, Ids, Rows, Vectors, is_moment, video_ids_of
from index.errors import ShardStoreError
from index.files.manifest_format import task_of
from index.index_snapshot import IndexSnapshot
from index.shards.vector_store import SearchableShard
from models.backbones.tower_threads import core_count, map_in_threads
from models.releases.release_state import TaskLineage
from models.routing.confidence_model import ConfidenceModel, VisualScore
from models.routing.router import Indices, Router, TextEvidence, as_slice
from service.core.errors import Unavailable
from service.search.library_words import DomainCaptions, LibraryTexts, VideoTasks
from service.search.snapshots.appended_captions import AppendedProfile
from service.search.snapshots.query_vector_cache import DEGRADED_RETRY_SECONDS, QueryVectorCache

Grouping = Callable[[Hits], Hits]
Job = TypeVar("Job")
Result = TypeVar("Result")

_DEPTH_FACTOR = 4  # hits fetched per requested video; the depth grows by it if they were too few
# Of a scan that also finds videos without captions: an ANN structure has 100, some of which may be deleted.
_ANN_HITS = 90
_REMOTE_HITS = 4096  # beyond, a remote store is sent the IDs of the videos without captions
_MIN_PARALLEL_BYTES = 2 * 1024**2  # smaller scans take less time than handing them to another thread
_REMOTE_SEARCHES = 32  # concurrent searches of a remote store, in one process


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
    # If given, the k nearest videos without captions are found, too, and follow those of all.
    captions: DomainCaptions | None = None
    narrow: Callable[[Ids], Ids] = lambda videos: videos  # adds moments, and selects those to search


@dataclass(frozen=True, eq=False)
class ServedLineage:
    """The releases of one encoder, as a snapshot serves them."""

    release_id: str  # the newest one, which encodes queries
    backbone_name: str
    query_cache: QueryVectorCache
    visual_score: VisualScore  # conversion of cosines to log-odds; appends do not change it
    confidence_model: ConfidenceModel | None = None  # calibration of the release, with appended captions
    release_confidence: ConfidenceModel | None = None  # calibration of the release alone
    # The newest append's calibration as JSON; None without one.
    appended_confidence: Mapping[str, Any] | None = None


class SearchScope(NamedTuple):
    """Tasks of a snapshot that a search considers: IDs in learned order, and what does not depend on the query."""

    tasks: tuple[str, ...]
    numbers: Indices  # index of each in the snapshot's shards
    router_indices: Indices  # index of each in the router
    # For each of their lineages: the rows of its tasks, their router indices, and their IDs without a shard's part.
    lineages: Mapping[ServedLineage, tuple[Indices, Indices, tuple[str, ...]]]


class Routing(NamedTuple):
    """Where a text belongs: arrays with an entry for each of a snapshot's tasks, −∞ for those out of the scope."""

    log_weights: npt.NDArray[np.float32]  # within each lineage, weights sum to one
    likelihoods: npt.NDArray[np.float32]  # log weights among all tasks of the scope
    bounded: npt.NDArray[np.float32]  # bounded log-odds, which rank results
    evidence: dict[ServedLineage, TextEvidence]  # how well the tasks of each lineage know the text


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
    def task_ids(self) -> tuple[str, ...]:
        """The IDs of the tasks in ``shards``."""
        return tuple(self.shards)

    @cached_property
    def keys_by_task(self) -> Mapping[str, Sequence[str]]:
        """Keys in ``shards`` by task ID."""
        keys: dict[str, list[str]] = {}
        for key in self.shards:
            keys.setdefault(task_of(key), []).append(key)
        return keys

    @cached_property
    def tasks_by_name(self) -> Mapping[str, Sequence[str]]:
        """IDs of tasks, also of those that cannot be searched, by name."""
        tasks: dict[str, list[str]] = {}
        for key, name in self.task_names.items():
            if task_of(key) == key:
                tasks.setdefault(name, []).append(key)
        return tasks

    @cached_property
    def task_indices(self) -> Mapping[str, int]:
        """Index in ``shards`` by task ID."""
        return {task: index for index, task in enumerate(self.shards)}

    @cached_property
    def distinct_lineages(self) -> tuple[ServedLineage, ...]:
        """The lineages, in the order of their first tasks."""
        return tuple(dict.fromkeys(self.lineages.values()))

    @cached_property
    def default_scope(self) -> SearchScope:
        """The scope of all nonempty tasks."""
        return self.scope(self.nonempty_tasks)

    def scope(self, tasks: tuple[str, ...]) -> SearchScope:
        """Create the scope of tasks, given in learned order."""
        numbers = np.fromiter(map(self.task_indices.__getitem__, tasks), np.intp, len(tasks))
        router_indices = np.fromiter(map(self.router_indices.__getitem__, tasks), np.int64, len(tasks))
        lineages = dict[ServedLineage, tuple[Indices, Indices, tuple[str, ...]]]()
        of_tasks = self.lineage_indices[numbers]
        for index in dict.fromkeys(of_tasks.tolist()):
            (rows,) = np.nonzero(of_tasks == index)
            ids = tuple(task_of(tasks[row]) for row in rows.tolist())
            lineages[self.distinct_lineages[index]] = as_slice(rows), as_slice(router_indices[rows]), ids
        return SearchScope(tasks, as_slice(numbers), as_slice(router_indices), lineages)

    def lineages_of(self, tasks: Iterable[str]) -> Sequence[ServedLineage]:
        """List the distinct lineages of tasks."""
        if len(self.distinct_lineages) == 1:
            return self.distinct_lineages
        return list(dict.fromkeys(map(self.lineages.__getitem__, tasks)))

    @cached_property
    def lineage_indices(self) -> npt.NDArray[np.intp]:
        """Index of each searchable task's lineage in :attr:`distinct_lineages`, ``[T]``."""
        return np.array(
            [self.distinct_lineages.index(lineage) for lineage in self.lineages.values()], np.intp
        )

    @cached_property
    def without_captions(self) -> DomainCaptions:
        """Caption statistics for searches in which words do not count: no video has a caption."""
        return DomainCaptions(LibraryTexts().words, self.video_tasks)

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
            vectors.update(zip(rows, lineage.query_cache([pairs[row] for row in rows]), strict=True))
        return [vectors[row] for row in range(len(pairs))]

    def route(self, texts: Sequence[str], scopes: Sequence[SearchScope]) -> list[Routing]:
        """Route each text among the tasks of its scope; raises Unavailable if a scope is empty.

        The evidence of words is the same for all encoders. That of captions depends on how an encoder places texts, so
        it only compares the tasks of one lineage: if there are several, the likeliest task of each has 0.
        """
        if not all(scope.tasks for scope in scopes):
            raise Unavailable("None of these domains can be searched now.", DEGRADED_RETRY_SECONDS)
        routing: dict[int, Routing] = {}
        # Texts with the same tasks share an encoder call.
        groups: dict[int, list[int]] = {}
        for number, scope in enumerate(scopes):
            groups.setdefault(id(scope), []).append(number)
        for numbers in groups.values():
            scope = scopes[numbers[0]]
            captions = np.zeros((len(numbers), len(scope.tasks)), np.float32)
            for lineage, (rows, _, of_lineage) in scope.lineages.items():
                tokens = lineage.query_cache.tokens([texts[number] for number in numbers])
                evidence = lineage.query_cache.encoder.routing_evidence(tokens, of_lineage)
                if evidence is not None:
                    captions[:, rows] = evidence
            for text, number in enumerate(numbers):
                pieces, of_text = tokens[text].pieces, captions[text]
                parts = dict[ServedLineage, TextEvidence]()
                log_weights = np.empty(len(scope.tasks), np.float32)
                for lineage, (rows, indices, _) in scope.lineages.items():
                    log_weights[rows], bounded, parts[lineage] = self.router.route(
                        pieces, indices, of_text[rows]
                    )
                    of_text[rows] -= of_text[rows].max()
                overall = log_weights
                if len(scope.lineages) > 1:
                    overall, bounded, _ = self.router.route(pieces, scope.router_indices, of_text)
                of_all = np.full((3, len(self.shards)), -np.inf, np.float32)
                of_all[:, scope.numbers] = log_weights, overall, bounded
                routing[number] = Routing(of_all[0], of_all[1], of_all[2], parts)
        return [routing[number] for number in range(len(texts))]

    def scan(self, scans: Sequence[ShardScan]) -> list[Hits]:
        """Run scans and collect the hits of each, in order.

        Scans that differ only in the query share one pass over their shard. Shards are scanned in parallel if that is
        faster. A shard that becomes unreadable is set aside, and its scans have no hits.
        """
        groups: dict[tuple[object, ...], list[int]] = {}
        for number, scan in enumerate(scans):
            key = scan.task, scan.k, id(scan.among), scan.group, tuple(scan.exclude), scan.captions
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
        task, query, k, among, group, exclude, captions, _ = scans[0]
        if task not in self.degraded:
            shard = self.shards[task]
            queries = query[None] if len(scans) == 1 else np.stack([scan.query for scan in scans])

            def search(rows: Rows, depth: int, ids: Ids | None = among) -> list[Hits]:
                return shard.search_many(queries[rows], depth, exclude, ids)

            try:
                if group is None or (not shard.has_moments and captions is None):
                    return shard.search_many(queries, k, exclude, among)
                if captions is None:
                    return nearest_videos(search, len(queries), k, group)
                return self._scan_both(search, len(queries), scans[0], captions)
            except ShardStoreError as error:
                self.mark_degraded(task, error)
        return [NO_HITS] * len(scans)

    def _scan_both(
        self, search: Callable[..., list[Hits]], count: int, scan: ShardScan, captions: DomainCaptions
    ) -> list[Hits]:
        """Find the nearest videos to each query, and the nearest of those without captions, in one pass.

        Its depth is a multiple, at least 1.5, of what has enough of these if captions do not depend on the cosine. If
        it is not enough for a query, the videos without captions are searched alone.
        """
        shard, number, group = self.shards[scan.task], self.task_indices[scan.task], best_per_video
        needed = scan.k * int(self.video_tasks.counts[number]) // int(captions.uncaptioned_counts[number])
        first_depth = min(4 * needed, _ANN_HITS) if 3 * needed <= 2 * _ANN_HITS else 2 * needed
        first_depth = max(first_depth, _DEPTH_FACTOR * scan.k * shard.has_moments)
        first = search(np.arange(count), first_depth)

        def search_again(rows: Rows, depth: int) -> list[Hits]:
            return [first[row] for row in rows.tolist()] if depth == first_depth else search(rows, depth)

        def search_uncaptioned(rows: Rows, depth: int) -> list[Hits]:
            if depth == first_depth or (shard.is_remote and depth <= _REMOTE_HITS):
                return search_again(rows, depth)
            limit = depth if shard.has_moments else scan.k
            return search(rows, limit, scan.narrow(captions.uncaptioned(number)))

        def drop_captioned(hits: Hits) -> Hits:
            videos = group(hits)
            is_captioned = captions.are_captioned(videos.ids, np.full(len(videos.ids), number))
            return Hits(videos.ids[~is_captioned], videos.scores[~is_captioned])

        nearest = nearest_videos(search_again, count, scan.k, group, first_depth)
        uncaptioned = nearest_videos(search_uncaptioned, count, scan.k, drop_captioned, first_depth)
        return [
            Hits(np.append(best.ids, more.ids[is_new]), np.append(best.scores, more.scores[is_new]))
            for best, more in zip(nearest, uncaptioned, strict=True)
            for is_new in [np.isin(more.ids, best.ids, invert=True)]
        ]


def nearest_videos(
    search: Callable[[Rows, int], Sequence[Hits]], count: int, k: int, group: Grouping, depth: int = 0
) -> list[Hits]:
    """Find each query's k best videos, or all if there are fewer, as if every vector were scored.

    Hits are fetched to a growing depth, until no deeper hit can change the result. All ``count`` queries share the
    first fetch, and those that need more depth share the next.

    Args:
        search: Finds a shard's best hits, best first, then by ID, given the query numbers and the number of hits.
        group: Reduces hits to videos, keeping the best score and the order.
        depth: Number of hits to fetch first; 0 for a multiple of k.
    """
    results: dict[int, Hits] = {}
    remaining, depth = np.arange(count), depth or _DEPTH_FACTOR * k
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
