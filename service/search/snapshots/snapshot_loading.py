"""Load snapshots: read their releases, encode a first query, and check how each release passes its self-test."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple, cast

import numpy as np
import structlog

from cinestrata_schemas.choice_types import QueryMode
from index.arrays import FIRST_MOMENT_ID, Ids
from index.errors import ShardStoreError
from index.files.manifest_format import task_of
from index.index_snapshot import IndexSnapshot
from index.shards.vector_store import SearchableShard
from models.backbones.query_backbone import QueryBackbone
from models.encoders.encoder_registry import open_query_encoder, read_query_release, read_video_release
from models.encoders.query_encoder import QueryEncoder
from models.errors import BackboneUnavailable, ModelError, ReleaseError
from models.releases.release_files import LINEAGE_FILES, read_lineage
from models.releases.release_state import (
    Lineage,
    ParentRelease,
    ReleaseState,
    ReleaseTask,
    TaskLineage,
    find_lineages,
)
from models.routing.confidence_model import DEFAULT_VISUAL_SCORE, ConfidenceModel
from models.routing.router import Router
from models.routing.routing_profiles import VOCABULARY, RoutingProfiles
from service.catalog.database import session_scope
from service.catalog.domain_videos import read_calibration
from service.search.library_words import VideoTasks
from service.search.snapshots.appended_captions import AppendedProfile, appended_profiles
from service.search.snapshots.query_vector_cache import EncoderMemory, QueryVectorCache
from service.search.snapshots.search_snapshot import SearchSnapshot, ServedLineage
from service.search.snapshots.self_test import check_self_test

log = structlog.get_logger(__name__)

_WARM_UP_QUERY = "a warm-up query, so that no client waits for one-time initialization"


class _LoadedLineage(NamedTuple):
    """A lineage whose encoder passes its self-test."""

    served: ServedLineage
    release: ReleaseState
    shards: dict[str, SearchableShard]  # by key in the manifest
    videos: dict[str, Ids]  # vector IDs of the whole videos in each shard


def load_snapshot(
    index_snapshot: IndexSnapshot,
    load_backbone: Callable[[ReleaseState], QueryBackbone],
    release_id: str | None = None,
    *,
    other: SearchSnapshot | None = None,
    memory: EncoderMemory | None = None,
) -> SearchSnapshot:
    """Read the releases of an index snapshot, encode a first query, and check the releases' self-test queries.

    Shards never change, so an index snapshot can also be searched with an earlier release; the snapshot then contains
    the tasks that were learned until then. Shards that are broken, made by another encoder, or pinned to a broken
    release are left out and recorded in ``degraded``, and so are those of a lineage whose encoder cannot be loaded, if
    another one can.

    Args:
        load_backbone: Loads the backbone of a release.
        release_id: ID of a release in the manifest; the served one by default.
        other: Snapshot of the same library. Releases never change, so those that it has are not read again.
        memory: Memory that the encoders of several lineages share; None: all stay.

    Raises:
        ModelError, ShardStoreError: The release cannot be read, does not fit the backbone, or has no searchable shard.
        Unavailable: The catalog cannot be read: scores without appended and edited captions would be others.
    """
    release_id = release_id or index_snapshot.manifest.served
    if release_id is None:
        raise AssertionError("an empty index has no release to serve")
    manifest = index_snapshot.manifest
    later = set(manifest.releases_after(release_id))
    reader = ContributionReader(index_snapshot, other.contributions if other else {})
    lineages = find_lineages((release for release in manifest.releases if release not in later), reader)
    # One whose domains were all upgraded needs no encoder.
    lineages = [lineage for lineage in lineages if _served_tasks(index_snapshot, lineage)] or lineages[:1]
    task_names = {task.task_id: task.name for lineage in lineages for task in lineage.tasks}
    degraded: dict[str, str] = {}
    task_names |= {key: name for key in manifest.shards if (name := task_names.get(task_of(key)))}
    if release_id == index_snapshot.manifest.release:
        unknown = [task for task in index_snapshot.tasks if task not in task_names]
        degraded = dict.fromkeys(unknown, "no release knows it")
    loaded: list[_LoadedLineage] = []
    for lineage in lineages:
        try:
            shared = memory if len(lineages) > 1 else None
            loaded.append(
                _load_lineage(index_snapshot, lineage, load_backbone, reader, degraded, other, shared)
            )
        except (ModelError, ShardStoreError, OSError, MemoryError, RuntimeError) as error:
            is_newest = lineage.releases[0] == release_id
            if len(lineages) == 1 or (is_newest and not isinstance(error, BackboneUnavailable)):
                raise
            log.warning("lineage_refused", release=lineage.releases[0], error=str(error))
            reason = f"its encoder cannot be loaded: {error}"
            degraded |= dict.fromkeys(_served_tasks(index_snapshot, lineage), reason)
    degraded |= reader.broken
    parts = {task: part for part in loaded for task in part.shards if task not in degraded}
    if not parts:
        raise ReleaseError(f"no shard can be searched: {'; '.join(degraded.values()) or 'there is none'}")
    if len(lineages) > 1:  # in learned order
        order = {task: number for number, task in enumerate(manifest.shards)}
        task_names = {task: task_names[task] for task in sorted(task_names, key=lambda t: order.get(t, -1))}
        parts = {task: parts[task] for task in task_names if task in parts}
    shards = {task: part.shards[task] for task, part in parts.items()}
    lineage_of = {task: part.served for task, part in parts.items()}
    rows = [(task.task_id, part) for part in loaded for task in part.release.tasks]
    router_indices = {task: row for row, (task, part) in enumerate(rows) if parts.get(task, part) is part}
    for key in parts.keys() - router_indices.keys():
        of_part = ((row, task) for row, (task, part) in enumerate(rows) if part is parts[key])
        router_indices[key] = next(row for row, task in of_part if task == task_of(key))
    profiles = loaded[0].release.profiles
    if len(loaded) > 1:
        profiles = RoutingProfiles.concatenate([part.release.profiles for part in loaded])
    uncounted = frozenset[str]().union(*(part.release.uncounted for part in loaded))
    previous = other.appended_profiles if other else {}
    factors = {task: lineage.query_cache.profile_factor for task, lineage in lineage_of.items()}
    appended = appended_profiles(shards, factors, previous, uncounted)
    modes = loaded[0].served.query_cache.modes
    snapshot = SearchSnapshot(
        index_snapshot=index_snapshot,
        generation=index_snapshot.generation,
        release_id=release_id,
        lineages=lineage_of,
        shards=shards,
        task_names=task_names,
        degraded=degraded,
        router_indices=router_indices,
        router=Router(_replace_profiles(profiles, router_indices, appended)),
        modes=modes,
        served_mode=cast(QueryMode, modes[-1]),
        contributions=reader.contributions,
        appended_profiles=appended,
        video_tasks=VideoTasks([part.videos[task] for task, part in parts.items()]),
    )
    return with_current_confidence(snapshot) or snapshot


def _served_tasks(index_snapshot: IndexSnapshot, lineage: Lineage) -> list[str]:
    """List the keys of the shards of a lineage's tasks that one of its releases made, and tasks without a shard."""
    shards, tasks = index_snapshot.manifest.shards, dict.fromkeys(task.task_id for task in lineage.tasks)
    made = [
        key for key, shard in shards.items() if shard.release in lineage.releases and task_of(key) in tasks
    ]
    return [*made, *(task for task in tasks if task not in shards)]


def _load_lineage(
    index_snapshot: IndexSnapshot,
    lineage: Lineage,
    load_backbone: Callable[[ReleaseState], QueryBackbone],
    reader: ContributionReader,
    degraded: dict[str, str],
    other: SearchSnapshot | None,
    memory: EncoderMemory | None,
) -> _LoadedLineage:
    """Open a lineage's shards and its query encoder, and check the encoder; ``degraded`` gets shards left out."""
    release_id = lineage.releases[0]
    folder = index_snapshot.release_folder(release_id)
    release = read_query_release(folder, read_parent=reader)
    fingerprints = {task.task_id: task.fingerprint for task in release.tasks}
    shards, videos = dict[str, SearchableShard](), dict[str, Ids]()
    for task in _served_tasks(index_snapshot, lineage):
        try:
            shard = index_snapshot.shard(task, fingerprint=fingerprints[task_of(task)])
            ids = shard.ids
            videos[task] = ids[: np.searchsorted(ids, FIRST_MOMENT_ID)]
        except ShardStoreError as error:
            degraded[task] = str(error)
        else:
            shards[task] = shard
    previous = other.shards if other else {}
    checked = {
        task
        for task, shard in shards.items()
        if task in previous and previous[task].entry.release == shard.entry.release
    }
    before = next((other.lineages[key] for key in shards if other and key in checked), None)
    broken: dict[str, str] = {}
    keys = {task_of(key): key for key in shards}
    pinned = pinned_query_releases(index_snapshot, release_id, release, keys, broken)
    opened = before.query_cache.opened if before else None
    unchanged = {task_of(key) for key in checked}
    encoder = open_query_encoder(load_backbone(release), release, pinned, opened, unchanged)
    degraded |= broken
    searchable = [task for task in shards if task not in degraded and task not in reader.broken]

    def reopen() -> QueryEncoder:
        state = read_query_release(folder, read_parent=reader)
        again = pinned_query_releases(index_snapshot, release_id, state, keys, {})
        return open_query_encoder(load_backbone(state), state, again)

    query_cache = QueryVectorCache(encoder, memory=None if memory is None else (memory, reopen))
    for mode in encoder.modes:
        new = [task for task in searchable if mode != "pinned" or task not in checked]
        vectors = query_cache([(_WARM_UP_QUERY, mode, task) for task in new or searchable])
        if not np.isfinite(vectors).all():
            raise ReleaseError(
                f"release {release_id[:12]} encodes queries as vectors with NaN or infinity in mode {mode}"
            )
    tested = {task_of(key): shards[key] for key in searchable}
    check_self_test(folder, release_id, query_cache, tested, encoder.modes)
    served = ServedLineage(
        release_id=release_id,
        backbone_name=encoder.backbone.name,
        query_cache=query_cache,
        visual_score=(release.confidence and release.confidence.visual) or DEFAULT_VISUAL_SCORE,
        confidence_model=release.confidence,
        release_confidence=release.confidence,
    )
    return _LoadedLineage(served, release, shards, videos)


def with_current_captions(snapshot: SearchSnapshot) -> SearchSnapshot | None:
    """Update the routing profiles to captions edited since; None if there were no edits. Raises Unavailable."""
    previous = snapshot.appended_profiles
    factors = {task: lineage.query_cache.profile_factor for task, lineage in snapshot.lineages.items()}
    appended = appended_profiles(snapshot.shards, factors, previous)
    changed = {task: row for task, row in appended.items() if row is not previous.get(task)}
    if not changed:
        return None
    profiles = _replace_profiles(snapshot.router.profiles, snapshot.router_indices, changed)
    return replace(snapshot, router=Router(profiles), appended_profiles=appended)


def with_current_confidence(snapshot: SearchSnapshot) -> SearchSnapshot | None:
    """Adopt the calibrations that appends stored since; None if there is no new one. Raises Unavailable.

    A resumed append stores its calibration without a new generation of the index.
    """

    def update(lineage: ServedLineage) -> ServedLineage:
        if not any(snapshot.lineages.get(task) is lineage for task in snapshot.appended_profiles):
            return lineage
        with session_scope() as session:
            stored = read_calibration(session, lineage.release_id, snapshot.generation)
        if stored == lineage.appended_confidence:
            return lineage
        model = lineage.release_confidence
        if stored is not None:
            try:
                model = ConfidenceModel.from_json(dict(stored))
            except (KeyError, TypeError, ValueError) as error:
                log.warning("appended_calibration_not_read", error=str(error))
        return replace(lineage, confidence_model=model, appended_confidence=stored)

    fresh = snapshot.with_lineages(update)
    return None if fresh.lineages == snapshot.lineages else fresh


def _replace_profiles(
    profiles: RoutingProfiles, indices: Mapping[str, int], replacements: Mapping[str, AppendedProfile]
) -> RoutingProfiles:
    rows = {indices[task]: (row.tokens, row.values) for task, row in replacements.items()}
    return profiles.replace_rows(rows) if rows else profiles


# -- releases ---------------------------------------------------------------------------------------------------


@dataclass
class ContributionReader:
    """Reads what a release added, by its ID. Checksums are verified; weights are not read.

    If a release is unreadable, its contribution is reconstructed from the manifest, which still tells the shards that
    it made and the release before it. All other tasks keep their indices and are served; only that release's tasks
    are degraded.
    """

    index_snapshot: IndexSnapshot
    in_memory: Mapping[str, TaskLineage]  # contributions that need no reading, by release ID
    contributions: dict[str, TaskLineage] = field(default_factory=dict)  # those of releases asked for
    broken: dict[str, str] = field(default_factory=dict)  # why a task's release cannot be read, by task ID
    # Total tasks of continued releases, by release ID.
    continued: dict[str, int] = field(default_factory=dict)

    def __call__(self, release_id: str) -> TaskLineage:
        """Read the contribution of a release, or reconstruct it; raises the cause if the release made no shard."""
        try:
            contribution = self._read(release_id)
        except (ModelError, ShardStoreError, OSError) as error:
            contribution = self._reconstruct(release_id)
            if not contribution.tasks:
                raise
            reason = f"the release that learned it cannot be read: {error}"
            shards = self.index_snapshot.manifest.shards.items()
            self.broken |= {key: reason for key, shard in shards if shard.release == release_id}
        if contribution.parent is not None:
            self.continued[contribution.parent.release] = contribution.parent.tasks
        return contribution

    def _read(self, release_id: str) -> TaskLineage:
        if release_id not in self.contributions:
            self.contributions[release_id] = self.in_memory.get(release_id) or read_lineage(
                self.index_snapshot.release_folder(release_id, files=LINEAGE_FILES)
            )
        return self.contributions[release_id]

    def _has_total(self, release_id: str, tasks: int) -> bool:
        with suppress(ModelError, ShardStoreError, OSError):
            return self._read(release_id).total_tasks == tasks
        return False

    def _reconstruct(self, release_id: str) -> TaskLineage:
        """Reconstruct a contribution: the tasks of the release's shards, without names and routing profiles.

        The release before it is that of the previous shard if no other lineage has shards until then, and otherwise the
        newest one with the number of tasks that the release continued.
        """
        of_keys = self.index_snapshot.manifest.shards.items()
        shards = [shard for key, shard in of_keys if key == shard.task or shard.release == release_id]
        indices = [index for index, shard in enumerate(shards) if shard.release == release_id]
        earlier = indices[0] if indices else 0
        count = self.continued.get(release_id, earlier + len(indices)) - len(indices)
        before: ParentRelease | None = None
        if count > 0:
            candidates = [
                shard.release for shard in reversed(shards[:earlier]) if shard.dim == shards[earlier].dim
            ]
            if count < earlier:
                candidates = [release for release in candidates if self._has_total(release, count)]
            before = ParentRelease(candidates[0], count) if candidates else None
        tasks = tuple(
            ReleaseTask(shard.task, shard.task, shard.fingerprint)
            for shard in shards
            if shard.release == release_id
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
    index_snapshot: IndexSnapshot,
    release_id: str,
    release: ReleaseState,
    keys: Mapping[str, str],
    broken: dict[str, str],
) -> PinnedReleases:
    """Get the query side of the release that made each task's shard, whose key in the manifest may differ.

    If that release is broken, the current one takes its place so that other tasks can be served, and ``broken`` gets
    the reason.
    """
    shards = index_snapshot.manifest.shards

    def read(task: str) -> ReleaseState:
        key = keys.get(task, task)
        shard = shards.get(key)
        if shard is None or shard.release == release_id:
            return release
        try:
            return read_query_release(index_snapshot.release_folder(shard.release), profiles=False)
        except (ModelError, ShardStoreError, OSError) as error:
            broken[key] = f"the release that made its shard cannot be read: {error}"
            return release

    return PinnedReleases([task.task_id for task in release.tasks], read)
