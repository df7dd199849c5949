"""Audit a store completely: compare every byte with the manifest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from index.arrays import Ids
from index.errors import ShardStoreError
from index.files.durable_files import find_damage
from index.files.manifest_format import Manifest, task_of
from index.files.segment_files import require_intact
from index.shard_store import ShardStore

_REPORTED_IDS = 10


@dataclass(frozen=True)
class Audit:
    """Result of an audit."""

    manifest: Manifest
    ids: dict[str, Ids]  # task → IDs of its vectors that are not deleted, for intact shards
    damaged_releases: dict[str, str]
    damaged_shards: dict[str, str]  # task → what is wrong with its files or vectors
    contradictions: list[str]
    # Folders that no manifest names. A writer is about to publish them, or the garbage collector will remove them.
    leftovers: list[Path]

    @property
    def problems(self) -> list[str]:
        """Every problem that needs repair; each names its folder or task."""
        releases = [
            f"release {release[:12]}: {problem}; restore releases/{release} from a backup"
            for release, problem in self.damaged_releases.items()
        ]
        return [*releases, *self.damaged_shards.values(), *self.contradictions]


def audit(store: ShardStore) -> Audit:
    """Compare every file with its checksum, every shard with its entries, and the entries with each other.

    A writer may publish meanwhile; the result then describes the generation at the start. Raises ManifestError.
    """
    folders = store.folders()  # listed first, so that a folder published meanwhile is no leftover
    manifest = store.manifest()
    damaged_releases: dict[str, str] = {}
    damaged_shards: dict[str, str] = {}
    contradictions = [] if store.is_manifest_canonical() else ["manifest.json was altered outside its values"]
    ids: dict[str, Ids] = {}
    deleted: dict[str, Ids] = {}
    for release in manifest.kept_releases():
        problem = find_damage(store.release_folder(release.id), release.files, release.bytes, verify=True)
        if problem:
            damaged_releases[release.id] = problem
    if manifest.release is not None and manifest.release not in manifest.releases:
        contradictions.append(
            f"the current release {manifest.release[:12]} is not among the releases of the manifest"
        )
    for task in manifest.shards:
        try:
            deleted[task] = store.tombstones(manifest, task)
            for entry in manifest.segments(task):
                require_intact(store.shard_folder(entry.id), entry, verify=True)
                store.check(entry, "bytes")
            ids[task] = store.open(manifest.segments(task)).ids
        except ShardStoreError as error:
            damaged_shards[task] = str(error)
            continue
        if len(np.setdiff1d(deleted[task], ids[task])):
            contradictions.append(f"task {task}: it never had some of its deleted IDs")
        contradictions += _contradictions(manifest, task)
    for task, replaced in manifest.replaced.items():
        for entry in (*replaced.segments, *(e for part in replaced.parts.values() for e in part.segments)):
            problem = find_damage(store.shard_folder(entry.id), entry.files, entry.bytes, verify=True)
            if problem:
                contradictions.append(f"task {task}: the upgrade can't be undone, {problem}")
    live_ids = {task: np.setdiff1d(stored, deleted[task]) for task, stored in ids.items()}
    contradictions += _shared_ids(
        live_ids
    )  # a part of an upgraded task has the others' videos as deleted ones
    referenced = manifest.folder_ids() | store.word_folders()
    leftovers = [path for path in folders if path.name not in referenced]
    return Audit(manifest, live_ids, damaged_releases, damaged_shards, contradictions, leftovers)


def _contradictions(manifest: Manifest, task: str) -> list[str]:
    """List contradictions between the entries of a task's segments and the rest of the manifest."""
    problems = []
    segments = manifest.segments(task)
    pinned = segments[0]
    for entry in segments:
        name = f"shard {entry.id[:12]} of task {entry.task}"
        if entry.task != task_of(task):
            problems.append(f"{name} is listed under task {task} in the manifest")
        if entry.release not in manifest.releases:
            problems.append(f"{name} pins release {entry.release[:12]}, which does not exist")
        if (entry.release, entry.fingerprint) != (pinned.release, pinned.fingerprint):
            problems.append(f"{name} was made by another encoder than its task's first segment")
    return problems


def _shared_ids(ids: dict[str, Ids]) -> list[str]:
    """List IDs that occur in several shards."""
    if not ids:
        return []
    all_ids = np.concatenate(list(ids.values()))
    owners = np.repeat(np.array(list(ids)), [len(stored) for stored in ids.values()])
    order = np.argsort(all_ids, kind="stable")
    all_ids, owners = all_ids[order], owners[order]
    repeated = np.flatnonzero(all_ids[1:] == all_ids[:-1])[:_REPORTED_IDS]
    return [f"ID {all_ids[i]} belongs to task {owners[i]} and to task {owners[i + 1]}" for i in repeated]
