"""Reading everything: is every byte of a store what its manifest says?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from index.errors import ShardStoreError
from index.files.durable_files import damage
from index.files.manifest_format import Manifest
from index.scanning.segment import require_whole
from index.shard_store import ShardStore

__all__ = ["Audit", "audit"]

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Audit:
    """What was found.

    Attributes:
        manifest: the generation that was read.
        ids: task → ids that can be found in it, of the shards that are whole.
        damaged_releases: release → what is wrong with its files.
        damaged_shards: task → what is wrong with its files or vectors.
        contradictions: what the entries of the manifest say of each other that cannot be.
        leftovers: folders that no manifest names. They do no harm: a writer is about to publish them, or they are
            swept away an hour after they were left.
    """

    manifest: Manifest
    ids: dict[str, Ids]
    damaged_releases: dict[str, str]
    damaged_shards: dict[str, str]
    contradictions: list[str]
    leftovers: list[Path]

    @property
    def problems(self) -> list[str]:
        """All that must be mended, each with the folder or the task that it is about."""
        releases = [
            f"release {release[:12]}: {problem}; restore releases/{release} from a backup"
            for release, problem in self.damaged_releases.items()
        ]
        return [*releases, *self.damaged_shards.values(), *self.contradictions]


def audit(store: ShardStore) -> Audit:
    """Compare every file with its checksum, every shard with its entry, and the entries with each other.

    May run beside a writer, and then speaks of the generation that was there when it began.

    Raises:
        ManifestError: the manifest itself cannot be trusted, so there is nothing to compare with.
    """
    # Folders first: one that is published meanwhile is then not taken for a leftover.
    folders = store.folders()
    manifest = store.manifest()
    damaged_releases: dict[str, str] = {}
    damaged_shards: dict[str, str] = {}
    contradictions: list[str] = []
    ids: dict[str, Ids] = {}
    deleted: dict[str, Ids] = {}
    for release in manifest.releases.values():
        problem = damage(store.release_folder(release.id), release.files, release.bytes, verify=True)
        if problem:
            damaged_releases[release.id] = problem
    if manifest.release is not None and manifest.release not in manifest.releases:
        contradictions.append(
            f"the current release {manifest.release[:12]} is not among the releases of the manifest"
        )
    for task in manifest.shards:
        parts = manifest.segments(task)
        try:
            deleted[task] = store.tombstones(manifest, task)
            for part in parts:
                require_whole(store.shard_folder(part.id), part, verify=True)
                store.check(part, "bytes")
            ids[task] = store.open(parts).ids
        except ShardStoreError as error:
            damaged_shards[task] = str(error)
            continue
        if len(np.setdiff1d(deleted[task], ids[task])):
            contradictions.append(f"task {task}: ids were deleted that it never had")
        for part in parts:
            name = f"shard {part.id[:12]} of task {part.task}"
            if part.task != task:
                contradictions.append(f"{name} stands in the manifest under task {task}")
            if part.release not in manifest.releases:
                contradictions.append(f"{name} pins release {part.release[:12]}, which is not there")
            if (part.release, part.fingerprint) != (parts[0].release, parts[0].fingerprint):
                contradictions.append(
                    f"{name} was made by another encoder than the first segment of the task"
                )
    contradictions += _shared(ids)
    found = {task: np.setdiff1d(every, deleted[task]) for task, every in ids.items()}
    named = manifest.folder_ids()
    leftovers = [path for path in folders if path.name not in named]
    return Audit(manifest, found, damaged_releases, damaged_shards, contradictions, leftovers)


def _shared(ids: dict[str, Ids]) -> list[str]:
    """Ids that several shards claim."""
    if not ids:
        return []
    every = np.concatenate(list(ids.values()))
    owners = np.repeat(np.array(list(ids)), [len(found) for found in ids.values()])
    order = np.argsort(every, kind="stable")
    every, owners = every[order], owners[order]
    twice = np.flatnonzero(every[1:] == every[:-1])
    return [f"id {every[i]} belongs to task {owners[i]} and to task {owners[i + 1]}" for i in twice[:10]]
