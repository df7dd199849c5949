"""Load snapshots: read their releases, encode a first query, and check how each release passes its self-test."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import numpy as np

from cinestrata_schemas.choice_types import QueryMode
from index.arrays import FIRST_MOMENT_ID, Ids, Vectors
from index.errors import ShardMissing, ShardStoreError
from index.index_snapshot import IndexSnapshot
from index.shards.vector_store import SearchableShard
from models.backbones.query_backbone import QueryBackbone
from models.encoders.encoder_registry import open_query_encoder, read_query_release, read_video_release
from models.errors import ModelError, ReleaseError
from models.releases.release_files import LINEAGE_FILES, SelfTest, read_lineage, read_self_test
from models.releases.release_state import ParentRelease, ReleaseState, ReleaseTask, TaskLineage
from models.routing.confidence_model import DEFAULT_VISUAL_SCORE
from models.routing.router import Router
from models.routing.routing_profiles import RoutingProfiles
from models.routing.word_pieces import VOCABULARY
from service.search.library_words import VideoTasks
from service.search.snapshots.appended_captions import (
    AppendedProfile,
    appended_profiles,
    parse_confidence,
    read_appended_confidence,
)
from service.search.snapshots.search_snapshot import QueryVectorCache, SearchSnapshot

Encode = Callable[[Sequence[tuple[str, str, str]]], Sequence[Vectors]]

# Maximum difference between a unit query vector, or any of its cosines, and the worker's. Another device in float32 or
# half-precision storage differs by about 0.001, a twelve-block text tower in bfloat16 by about 0.02, a compiled one,
# which rounds weights, by about 0.03, and another task's maps by 0.15 and more.
SELF_TEST_TOLERANCE = 0.1
MAX_SCANNED_ROWS = 10**6  # of a larger shard, a self-test reads only a few rows
_WARM_UP_QUERY = "a warm-up query, so that no client waits for one-time initialization"


def load_snapshot(
    index_snapshot: IndexSnapshot,
    backbone: QueryBackbone,
    release_id: str | None = None,
    *,
    other: SearchSnapshot | None = None,
) -> SearchSnapshot:
    """Read the releases of an index snapshot, encode a first query, and check the release's self-test queries.

    Shards never change, so an index snapshot can also be searched with an earlier release; the snapshot then contains
    the tasks that this release had learned. Shards that are broken, made by another encoder, or pinned to a broken
    release are left out and recorded in ``degraded``.

    Args:
        release_id: ID of a release in the manifest; the served one by default.
        other: Snapshot of the same library and backbone. Releases never change, so those that it has are not read
            again.

    Raises:
        ModelError, ShardStoreError: The release cannot be read, does not fit the backbone, or has no searchable shard.
        Unavailable: The catalog cannot be read. Scores without appended and edited captions would differ from previous
            ones of the same generation.
    """
    release_id = release_id or index_snapshot.served_release_id
    is_newest = release_id == index_snapshot.release_id
    if release_id is None:
        raise AssertionError("an empty index has no release to serve")
    folder = index_snapshot.release_folder(release_id)
    lineage = SnapshotLineage(index_snapshot, other.contributions if other else {})
    release = read_query_release(folder, read_parent=lineage)
    task_names = {task.task_id: task.name for task in release.tasks}
    unknown = [task for task in index_snapshot.tasks if task not in task_names] if is_newest else []
    degraded = dict.fromkeys(unknown, "the current release does not know it")
    shards, videos = dict[str, SearchableShard](), dict[str, Ids]()
    for task in release.tasks:
        try:
            shard = index_snapshot.shard(task.task_id, fingerprint=task.fingerprint)
            ids = shard.ids
            videos[task.task_id] = ids[: np.searchsorted(ids, FIRST_MOMENT_ID)]
        except ShardStoreError as error:
            degraded[task.task_id] = str(error)
        else:
            shards[task.task_id] = shard
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
    if not shards:
        raise ReleaseError(f"no shard can be searched: {'; '.join(degraded.values()) or 'there is none'}")
    router_indices = {task: index for index, task in enumerate(task_names)}
    previous = other.appended_profiles if other else {}
    appended = appended_profiles(shards, encoder, previous, release.uncounted)
    confidence = read_appended_confidence(release_id, index_snapshot.generation) if appended else None
    profiles = _replace_profiles(release.profiles, router_indices, appended)
    query_vectors = QueryVectorCache(encoder)
    for mode in encoder.modes:
        new = [task for task in shards if mode != "pinned" or task not in checked]
        vectors = query_vectors([(_WARM_UP_QUERY, mode, task) for task in new or shards])
        if not np.isfinite(vectors).all():
            raise ReleaseError(
                f"release {release_id[:12]} encodes queries as vectors with NaN or infinity in mode {mode}"
            )
    check_self_test(folder, release_id, query_vectors, shards, encoder.modes)
    return SearchSnapshot(
        index_snapshot=index_snapshot,
        generation=index_snapshot.generation,
        backbone=backbone,
        release_id=release_id,
        shards=shards,
        task_names=task_names,
        degraded=degraded,
        router_indices=router_indices,
        router=Router(profiles),
        query_vectors=query_vectors,
        modes=encoder.modes,
        served_mode=cast(QueryMode, encoder.modes[-1]),
        visual_score=(release.confidence and release.confidence.visual) or DEFAULT_VISUAL_SCORE,
        shard_releases={task: shard for task, shard in shard_releases.items() if task in shards},
        contributions={**lineage.contributions, release_id: read_lineage(folder)},
        appended_profiles=appended,
        video_tasks=VideoTasks([videos[task] for task in shards]),
        confidence_model=parse_confidence(confidence) or release.confidence,
        release_confidence=release.confidence,
        appended_confidence=confidence,
    )


def with_current_captions(snapshot: SearchSnapshot) -> SearchSnapshot | None:
    """Update the routing profiles to captions edited since; None if there were no edits. Raises Unavailable."""
    previous, encoder = snapshot.appended_profiles, snapshot.query_vectors.encoder
    appended = appended_profiles(snapshot.shards, encoder, previous)
    changed = {task: row for task, row in appended.items() if row is not previous.get(task)}
    if not changed:
        return None
    profiles = _replace_profiles(snapshot.router.profiles, snapshot.router_indices, changed)
    return replace(snapshot, router=Router(profiles), appended_profiles=appended)


def with_current_confidence(snapshot: SearchSnapshot) -> SearchSnapshot | None:
    """Adopt the calibration that an append stored since; None if there is no new one. Raises Unavailable.

    A resumed append stores its calibration without a new generation of the index.
    """
    if not snapshot.appended_profiles:
        return None
    stored = read_appended_confidence(snapshot.release_id, snapshot.generation)
    if stored == snapshot.appended_confidence:
        return None
    model = parse_confidence(stored) or snapshot.release_confidence
    return replace(snapshot, confidence_model=model, appended_confidence=stored)


def _replace_profiles(
    profiles: RoutingProfiles, indices: Mapping[str, int], replacements: Mapping[str, AppendedProfile]
) -> RoutingProfiles:
    if not replacements:
        return profiles
    return profiles.replace_rows(
        {indices[task]: (row.tokens, row.values) for task, row in replacements.items()}
    )


# -- releases ---------------------------------------------------------------------------------------------------


@dataclass
class SnapshotLineage:
    """Reads what a release added, by its ID. Checksums are verified; weights are not read.

    If a release is unreadable, its contribution is reconstructed from the manifest, which still tells the shards that
    it made and the release before it. All other tasks keep their indices and are served; only that release's tasks
    are degraded.
    """

    index_snapshot: IndexSnapshot
    in_memory: Mapping[str, TaskLineage]  # contributions that need no reading, by release ID
    contributions: dict[str, TaskLineage] = field(default_factory=dict)  # those of releases asked for
    broken: dict[str, str] = field(default_factory=dict)  # why a task's release cannot be read, by task ID

    def __call__(self, release_id: str) -> TaskLineage:
        """Read the contribution of a release, or reconstruct it; raises the cause if the release made no shard."""
        try:
            self.contributions[release_id] = self.in_memory.get(release_id) or read_lineage(
                self.index_snapshot.release_folder(release_id, files=LINEAGE_FILES)
            )
        except (ModelError, ShardStoreError, OSError) as error:
            contribution = self._reconstruct(release_id)
            if not contribution.tasks:
                raise
            reason = f"the release that learned it cannot be read: {error}"
            self.broken |= {task.task_id: reason for task in contribution.tasks}
            return contribution
        return self.contributions[release_id]

    def _reconstruct(self, release_id: str) -> TaskLineage:
        """Reconstruct a contribution: the tasks of the release's shards, without names and routing profiles."""
        shards = list(self.index_snapshot.manifest.shards.values())
        indices = [index for index, shard in enumerate(shards) if shard.release == release_id]
        before = ParentRelease(shards[indices[0] - 1].release, indices[0]) if indices and indices[0] else None
        tasks = tuple(
            ReleaseTask(shards[index].task, shards[index].task, shards[index].fingerprint)
            for index in indices
        )
        empty = RoutingProfiles.from_dense(np.zeros((len(tasks), VOCABULARY), np.float32))
        return TaskLineage(tasks, empty, before)


class PinnedReleases(Mapping[str, ReleaseState]):
    """The release that made each task's shard, by task ID, read on access.

    None is cached: releases may be large, and encoders keep little of them.
    """

    def __init__(self, tasks: Iterable[str], read: Callable[[str], ReleaseState]) -> None:
        self._tasks, self._read = dict.fromkeys(tasks), read

    def __getitem__(self, task: str) -> ReleaseState:
        return self._read(task)

    def __contains__(self, task: object) -> bool:  # the inherited method would read the release
        return task in self._tasks

    def __iter__(self) -> Iterator[str]:
        return iter(self._tasks)

    def __len__(self) -> int:
        return len(self._tasks)


def pinned_video_releases(index_snapshot: IndexSnapshot, tasks: Iterable[str]) -> PinnedReleases:
    """Get the video side of the release that made each task's shard."""
    shards = index_snapshot.manifest.shards
    return PinnedReleases(
        tasks, lambda task: read_video_release(index_snapshot.release_folder(shards[task].release))
    )


def pinned_query_releases(
    index_snapshot: IndexSnapshot, release_id: str, release: ReleaseState, broken: dict[str, str]
) -> PinnedReleases:
    """Get the query side of the release that made each task's shard.

    If that release is broken, the current one takes its place so that other tasks can be served, and ``broken`` gets
    the reason.
    """
    shards = index_snapshot.manifest.shards

    def read(task: str) -> ReleaseState:
        shard = shards.get(task)
        if shard is None or shard.release == release_id:
            return release
        try:
            return read_query_release(index_snapshot.release_folder(shard.release), profiles=False)
        except (ModelError, ShardStoreError, OSError) as error:
            broken[task] = f"the release that made its shard cannot be read: {error}"
            return release

    return PinnedReleases([task.task_id for task in release.tasks], read)


# -- self-test queries ---------------------------------------------------------------------------------------------


def check_self_test(
    folder: Path, release: str, encode: Encode, shards: Mapping[str, SearchableShard], modes: Sequence[str]
) -> None:
    """Compare a release's answers to its self-test queries with those recorded when it was learned.

    Encodes one batch of short texts and searches only the newest shard. Tasks without a served shard and deleted
    vectors are skipped, and a release without such queries is accepted.

    Args:
        encode: Computes the query vector ``float32 [dim]`` of each (text, mode, task).
        modes: Query modes that the release offers.

    Raises:
        ReleaseError: An answer differs by more than :data:`SELF_TEST_TOLERANCE`; names release, query and difference.
    """
    self_test = read_self_test(folder)
    if self_test is None:
        return
    if self_test.mode not in modes:
        raise ReleaseError(
            f"release {release[:12]} has self-test queries for mode {self_test.mode!r}, which it does not offer"
        )
    rows = [row for row, task in enumerate(self_test.tasks) if task in shards]
    vectors = encode([(self_test.texts[row], self_test.mode, self_test.tasks[row]) for row in rows])
    for row, vector in zip(rows, vectors, strict=True):
        task, expected = self_test.tasks[row], self_test.vectors[row].astype(np.float32)
        is_newest = task == self_test.tasks[0]
        try:
            difference = _score_difference(self_test, row, vector, shards[task], is_newest)
            is_comparable = vector.shape == expected.shape
            difference = max(
                float(np.linalg.norm(vector - expected)) if is_comparable else np.inf, difference
            )
        except ShardStoreError:  # the shard is broken, not the release; a search sets the shard aside
            continue
        if not difference <= SELF_TEST_TOLERANCE:
            raise ReleaseError(
                f"release {release[:12]} doesn't answer as it did when it was learned: self-test query {row} "
                f"({self_test.texts[row]!r} in task {task}, mode {self_test.mode}) differs by "
                f"{difference:.3f}, and {SELF_TEST_TOLERANCE} is allowed; compare versions and precision of "
                "worker and server, or learn the task again"
            )


def _score_difference(
    self_test: SelfTest, row: int, vector: Vectors, shard: SearchableShard, is_searched: bool
) -> float:
    """Find the largest score difference over a query's recorded vectors and, if searched, its ranks."""
    has_vector = self_test.ids[row] >= 0
    ids, expected = self_test.ids[row][has_vector], self_test.scores[row][has_vector]
    try:
        stored = shard.vectors(ids)
    except ShardMissing:
        present = [number for number, vector_id in enumerate(ids) if _contains(shard, vector_id)]
        ids, expected = ids[present], expected[present]
        stored = shard.vectors(ids)
    if not len(ids):
        return 0.0
    difference = float(np.abs(stored @ vector - expected).max())
    if is_searched and shard.count <= MAX_SCANNED_ROWS:
        # Segments appended later can only add nearer vectors, so scores may rise but not fall.
        scores = shard.search(vector, len(ids)).scores
        difference = max(difference, float((expected - scores).max()))
    return difference


def _contains(shard: SearchableShard, vector_id: np.int64) -> bool:
    """Check whether a shard contains a vector. Vectors removed by compaction have no tombstone."""
    try:
        shard.vectors(np.array([vector_id]))
    except ShardMissing:
        return False
    return True
