"""A searchable snapshot: one index generation with its shards, releases and query encoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt

from cinestrata_schemas.choice_types import QueryMode
from index.arrays import Ids, Rows, Vectors
from index.errors import ShardStoreError
from index.hits import NO_HITS, Hits
from index.index_snapshot import IndexSnapshot
from index.shards.searchable_shard import SearchableShard
from index.vector_ids import FIRST_MOMENT_ID
from models.backbones.backbone_description import TokenIds
from models.backbones.query_backbone import QueryBackbone
from models.backbones.tower_threads import core_count, map_in_threads
from models.encoders.encoder_registry import open_query_encoder, read_query_release
from models.errors import ReleaseError
from models.releases.release_files import read_lineage
from models.releases.release_state import TaskLineage
from models.routing.confidence_model import ConfidenceModel
from models.routing.router import Router, TextEvidence, log_probabilities, route_text
from models.routing.routing_profiles import RoutingProfiles
from models.routing.visual_score import DEFAULT_VISUAL_SCORE, VisualScore
from service.core.errors import Unavailable
from service.search.snapshots.appended_captions import (
    AppendedProfile,
    appended_profiles,
    parse_confidence,
    read_appended_confidence,
)
from service.search.snapshots.query_vector_cache import QueryVectorCache
from service.search.snapshots.release_validation import check_probes
from service.search.snapshots.snapshot_releases import SnapshotLineage, pinned_query_releases
from service.search.snapshots.video_grouping import best_per_video, nearest_videos
from service.search.words.domain_captions import VideoPositions

Grouping = Callable[[Hits], Hits]

Job = TypeVar("Job")
Result = TypeVar("Result")

DEGRADED_RETRY_SECONDS = 30  # Retry-After when a shard cannot be searched
_MIN_PARALLEL_BYTES = 2 * 1024**2  # smaller scans take less time than handing them to another thread
_REMOTE_SEARCHES = 32  # concurrent searches of a remote store, in one process
_WARM_UP_QUERY = "a warm-up query, so that no client waits for one-time initialization"


class ShardScan(NamedTuple):
    """One shard's search for a query's k nearest videos.

    Attributes:
        query: Query vector ``float32 [dim]``.
        among: IDs to search, including moments; None: the whole shard.
        group: Reduces hits to videos, for shards with moments; None keeps the hits.
        exclude: IDs to leave out.
    """

    task: str
    query: Vectors
    k: int
    among: Ids | None = None
    group: Grouping | None = best_per_video
    exclude: Sequence[int] = ()


class TextRouting(NamedTuple):
    """Where a text is routed.

    Attributes:
        tasks: Task IDs, likeliest first.
        log_weights: Their log weights, ``float32 [T]``; the weights sum to one.
        evidence: Summary of the evidence behind the weights.
        bounded: Bounded evidence for the tasks, which ranks results, in nats, ``float32 [T]``.
    """

    tasks: Sequence[str]
    log_weights: npt.NDArray[np.float32]
    evidence: TextEvidence
    bounded: npt.NDArray[np.float32]

    @classmethod
    def of(
        cls,
        tasks: Sequence[str],
        log_weights: npt.NDArray[np.float32],
        evidence: TextEvidence,
        bounded: npt.NDArray[np.float32],
    ) -> TextRouting:
        """Sort tasks by weight; those with equal weights keep their order."""
        order = np.argsort(-log_weights, kind="stable")
        return cls([tasks[place] for place in order.tolist()], log_weights[order], evidence, bounded[order])

    def with_words(self, nats: npt.NDArray[np.float32]) -> TextRouting:
        """Weigh the tasks by their bounded evidence and the highest evidence of words in each, ``[T]``, instead."""
        weights = log_probabilities(self.bounded + nats)
        return TextRouting.of(self.tasks, weights, self.evidence, self.bounded)

    @property
    def weights(self) -> dict[str, float]:
        """Log weights by task ID, likeliest first."""
        return dict(zip(self.tasks, self.log_weights.tolist(), strict=True))


@dataclass(frozen=True, eq=False)
class SearchSnapshot:
    """One index generation, loaded for searches. A new generation is a new object; snapshots compare by identity.

    Attributes:
        release_id: ID of the release that encodes queries: the newest, a pinned or an earlier one.
        shards: Searchable shards by task ID, in learned order.
        degraded: Why a task cannot be searched, by task ID. Grows when a shard breaks while being served.
        modes: Query modes that the release's method offers.
        router_positions: Position of each task in the router, by task ID.
        router: Router of the release, with appended and edited captions added.
        query_vectors: Query encoder of the release, with its cache.
        shard_releases: ID of the release that made each searchable shard, by task ID.
        contributions: What each release read so far added (tasks and routing profiles), by release ID.
        appended_profiles: Routing profiles with appended and edited captions, by task ID.
        video_positions: Each video's task, as a position in ``shards``.
        confidence_model: Calibration of the release, with appended captions; None without one.
        release_confidence: Calibration of the release alone.
        appended_confidence: The newest append's calibration as JSON; None without one.
    """

    index_snapshot: IndexSnapshot
    release_id: str
    shards: Mapping[str, SearchableShard]
    task_names: Mapping[str, str]
    degraded: dict[str, str]
    modes: tuple[str, ...]
    router_positions: Mapping[str, int]
    router: Router
    query_vectors: QueryVectorCache
    shard_releases: Mapping[str, str]
    contributions: Mapping[str, TaskLineage]
    appended_profiles: Mapping[str, AppendedProfile]
    video_positions: VideoPositions
    confidence_model: ConfidenceModel | None = None
    release_confidence: ConfidenceModel | None = None
    appended_confidence: Mapping[str, Any] | None = None

    @property
    def visual_score(self) -> VisualScore:
        """Conversion of cosines to nats."""
        fitted = self.release_confidence and self.release_confidence.visual  # appends change no score
        return fitted or DEFAULT_VISUAL_SCORE

    @property
    def has_fitted_visual_score(self) -> bool:
        """Whether the visual score is fitted to the release."""
        return self.visual_score is not DEFAULT_VISUAL_SCORE

    @property
    def served_mode(self) -> QueryMode:
        """Default query mode: the one with the least forgetting."""
        return cast(QueryMode, self.modes[-1])

    @classmethod
    def load(
        cls,
        index_snapshot: IndexSnapshot,
        backbone: QueryBackbone,
        release_id: str | None = None,
        *,
        other: SearchSnapshot | None = None,
    ) -> SearchSnapshot:
        """Read the releases of an index snapshot, encode a first query, and check the release's probes.

        Shards never change, so an index snapshot can also be searched with an earlier release; the snapshot then
        contains the tasks that this release had learned. Shards that are broken, made by another encoder, or pinned to
        a broken release are left out and recorded in ``degraded``.

        Args:
            release_id: ID of a release in the manifest; the served one by default.
            other: Snapshot of the same library with the same backbone. Releases never change, so its loaded releases
                are reused without rereading or rechecking them. It is not modified.

        Raises:
            ModelError, ShardStoreError: The release cannot be read, does not fit the backbone, or has no searchable
                shard.
            Unavailable: The catalog cannot be read. Scores without appended and edited captions would differ from
                previous ones of the same generation.
        """
        release_id = release_id or index_snapshot.served_release_id
        is_newest = release_id == index_snapshot.release_id
        if release_id is None:
            raise AssertionError("an empty index has no release to serve")
        folder = index_snapshot.release_folder(release_id)
        lineage = SnapshotLineage(index_snapshot, backbone.vocabulary, other.contributions if other else {})
        release = read_query_release(folder, read_parent=lineage)
        task_names = {task.task_id: task.name for task in release.tasks}
        unknown = [task for task in index_snapshot.tasks if task not in task_names] if is_newest else []
        degraded = dict.fromkeys(unknown, "the current release does not know it")
        shards: dict[str, SearchableShard] = {}
        for task in release.tasks:
            try:
                shards[task.task_id] = index_snapshot.shard(task.task_id, fingerprint=task.fingerprint)
            except ShardStoreError as error:
                degraded[task.task_id] = str(error)
        entries = index_snapshot.manifest.shards
        shard_releases = {task: entries[task].release for task in task_names if task in entries}
        checked = {
            task
            for task, shard_release in shard_releases.items()
            if other and other.shard_releases.get(task) == shard_release
        }
        broken: dict[str, str] = {}
        pinned = pinned_query_releases(index_snapshot, release_id, release, broken)
        encoder = open_query_encoder(
            backbone, release, pinned, other.query_vectors.encoder if other else None, checked
        )
        degraded.update(lineage.broken | broken)
        shards = {task: shard for task, shard in shards.items() if task not in degraded}
        videos = _read_video_ids(shards, degraded)
        shards = {task: shards[task] for task in videos}
        if not shards:
            raise ReleaseError(f"no shard can be searched: {'; '.join(degraded.values()) or 'there is none'}")
        router_positions = {task: position for position, task in enumerate(task_names)}
        known = other.appended_profiles if other else {}
        appended = appended_profiles(shards, encoder, backbone.vocabulary, known)
        confidence = read_appended_confidence(release_id, index_snapshot.generation) if appended else None
        profiles = _replace_profiles(release.profiles, router_positions, appended)
        query_vectors = QueryVectorCache(encoder)
        for mode in encoder.modes:
            new = [task for task in shards if mode != "pinned" or task not in checked]
            vectors = query_vectors([(_WARM_UP_QUERY, mode, task) for task in new or shards])
            if not np.isfinite(vectors).all():
                raise ReleaseError(
                    f"release {release_id[:12]} encodes queries as vectors with NaN or infinity in mode {mode}"
                )
        check_probes(folder, release_id, query_vectors, shards, encoder.modes)
        return cls(
            index_snapshot=index_snapshot,
            release_id=release_id,
            shards=shards,
            task_names=task_names,
            degraded=degraded,
            modes=encoder.modes,
            router_positions=router_positions,
            router=Router(profiles),
            query_vectors=query_vectors,
            shard_releases={task: shard for task, shard in shard_releases.items() if task in shards},
            contributions={**lineage.contributions, release_id: read_lineage(folder)},
            appended_profiles=appended,
            video_positions=VideoPositions(list(videos.values())),
            confidence_model=parse_confidence(confidence) or release.confidence,
            release_confidence=release.confidence,
            appended_confidence=confidence,
        )

    def with_current_captions(self) -> SearchSnapshot | None:
        """Update the routing profiles to captions edited since; None if there were no edits.

        Raises:
            Unavailable: The catalog cannot be read.
        """
        known, encoder = self.appended_profiles, self.query_vectors.encoder
        appended = appended_profiles(self.shards, encoder, self.router.profiles.vocabulary, known)
        changed = {task: row for task, row in appended.items() if row is not known.get(task)}
        if not changed:
            return None
        profiles = _replace_profiles(self.router.profiles, self.router_positions, changed)
        return replace(self, router=Router(profiles), appended_profiles=appended)

    def with_current_confidence(self) -> SearchSnapshot | None:
        """Adopt the calibration that an append stored since; None if there is no new one.

        A resumed append stores its calibration without a new generation of the index.

        Raises:
            Unavailable: The catalog cannot be read.
        """
        if not self.appended_profiles:
            return None
        stored = read_appended_confidence(self.release_id, self.generation)
        if stored == self.appended_confidence:
            return None
        model = parse_confidence(stored) or self.release_confidence
        return replace(self, confidence_model=model, appended_confidence=stored)

    @property
    def generation(self) -> int:
        """Generation of the index."""
        return self.index_snapshot.generation

    @property
    def is_pinned(self) -> bool:
        """Whether an operator pinned a release older than the newest."""
        return self.index_snapshot.manifest.pinned is not None

    @cached_property
    def positions(self) -> Mapping[str, int]:
        """Position in ``shards`` by task ID, as :meth:`locate` uses it."""
        return {task: position for position, task in enumerate(self.shards)}

    @cached_property
    def nonempty_tasks(self) -> tuple[str, ...]:
        """Searchable tasks that have undeleted videos, in learned order."""
        return tuple(task for task, shard in self.shards.items() if shard.count)

    @property
    def degraded_by_name(self) -> dict[str, str]:
        """Why tasks cannot be searched, by task name."""
        return {self.task_names.get(task, task): reason for task, reason in self.degraded.items()}

    def locate(self, ids: Ids) -> npt.NDArray[np.int32]:
        """Find each video's task.

        Args:
            ids: ``int64``; vector IDs of videos, not of moments.

        Returns:
            ``int32 [len(ids)]``; positions in ``shards``, which is in learned order. -1 for videos that the snapshot
            does not contain.
        """
        return self.video_positions.locate(ids)

    def require_searchable(self, task: str) -> None:
        """Check that a task is not degraded.

        Raises:
            Unavailable: The task's shard cannot be searched.
        """
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

    def route(self, texts: Sequence[TokenIds], tasks: Sequence[Sequence[str]]) -> list[TextRouting]:
        """Route each text, given as tokens, among its tasks."""
        routing: dict[int, TextRouting] = {}
        # Texts with the same tasks share an encoder call.
        groups: dict[tuple[str, ...], list[int]] = {}
        for number, task_ids in enumerate(tasks):
            groups.setdefault(tuple(task_ids), []).append(number)
        for task_ids, numbers in groups.items():
            positions = np.array([self.router_positions[task] for task in task_ids], np.int64)
            extra = self.query_vectors.encoder.routing_evidence(
                [texts[number] for number in numbers], task_ids
            )
            for place, number in enumerate(numbers):
                weights, bounded, evidence = route_text(
                    self.router, texts[number], positions, None if extra is None else extra[place]
                )
                routing[number] = TextRouting.of(task_ids, weights, evidence, bounded)
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
        task, _, k, among, group, exclude = scans[0]
        if task not in self.degraded:
            shard = self.shards[task]
            queries = scans[0].query[None] if len(scans) == 1 else np.stack([scan.query for scan in scans])
            try:
                if group is None or not shard.has_moments:
                    return shard.search_many(queries, k, exclude, among)

                def search(rows: Rows, depth: int) -> list[Hits]:
                    return shard.search_many(queries[rows], depth, exclude, among)

                return nearest_videos(search, len(queries), k, group)
            except ShardStoreError as error:
                self.mark_degraded(task, error)
        return [NO_HITS] * len(scans)


def _read_video_ids(shards: Mapping[str, SearchableShard], degraded: dict[str, str]) -> dict[str, Ids]:
    """Read the ascending video IDs of each shard, by task ID; a shard whose IDs are unreadable is degraded."""
    videos: dict[str, Ids] = {}
    for task, shard in shards.items():
        try:
            ids = shard.ids
        except ShardStoreError as error:
            degraded[task] = str(error)
        else:
            videos[task] = ids[: np.searchsorted(ids, FIRST_MOMENT_ID)]
    return videos


def _replace_profiles(
    profiles: RoutingProfiles, positions: Mapping[str, int], replacements: Mapping[str, AppendedProfile]
) -> RoutingProfiles:
    if not replacements:
        return profiles
    return profiles.replace_rows(
        {positions[task]: (row.tokens, row.values) for task, row in replacements.items()}
    )


def search_in_parallel(
    search: Callable[[Job], Result], jobs: Sequence[Job], bytes_each: int, *, remote: bool = False
) -> list[Result]:
    """Run jobs in parallel if each reads enough bytes to be worth a thread; scans release the interpreter lock.

    Args:
        search: Runs one job.
        jobs: Jobs, run in the calling thread and others.
        bytes_each: Bytes that one job reads, roughly.
        remote: Whether jobs wait for a server; these always run in parallel.

    Returns:
        Results in job order.
    """
    threads = _REMOTE_SEARCHES if remote else core_count()
    if threads < 2 or len(jobs) < 2 or (bytes_each < _MIN_PARALLEL_BYTES and not remote):
        return [search(job) for job in jobs]
    return map_in_threads(search, jobs, threads)
