"""Reading everything: is every byte of a store what its manifest says?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from index.durable import damage
from index.errors import ShardStoreError
from index.format import Manifest
from index.segment import require_whole
from index.store import ShardStore

__all__ = ["Audit", "audit"]

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Audit:
    """What was found.

    Attributes:
        manifest: the generation that was read.
        ids: task → ids that can be found in it, of the shards that are whole.
        wrong: what must be mended, each with the folder or the task that it is about.
        leftovers: folders that no manifest names. They do no harm: a writer is about to publish them, or they are
            swept away an hour after they were left.
    """

    manifest: Manifest
    ids: dict[str, Ids]
    wrong: list[str]
    leftovers: list[Path]


def audit(store: ShardStore) -> Audit:
    """Compare every file with its checksum, every shard with its entry, and the entries with each other.

    May run beside a writer, and then speaks of the generation that was there when it began.

    Raises:
        ManifestError: the manifest itself cannot be trusted, so there is nothing to compare with.
    """
    # Folders first: one that is published meanwhile is then not taken for a leftover.
    folders = store.folders()
    manifest = store.manifest()
    wrong: list[str] = []
    ids: dict[str, Ids] = {}
    deleted: dict[str, Ids] = {}
    for release in manifest.releases.values():
        problem = damage(store.release_folder(release.id), release.files, release.bytes, verify=True)
        if problem:
            wrong.append(f"release {release.id[:12]}: {problem}; restore releases/{release.id} from a backup")
    if manifest.release is not None and manifest.release not in manifest.releases:
        wrong.append(f"the current release {manifest.release[:12]} is not among the releases of the manifest")
    for task in manifest.shards:
        parts = manifest.parts(task)
        try:
            deleted[task] = store.tombstones(manifest, task)
            for part in parts:
                require_whole(store.shard_folder(part.id), part, verify=True)
                store.check(part, "bytes")
            ids[task] = store.open(parts).ids
        except ShardStoreError as error:
            wrong.append(str(error))
            continue
        if len(np.setdiff1d(deleted[task], ids[task])):
            wrong.append(f"task {task}: ids were deleted that it never had")
        for part in parts:
            name = f"shard {part.id[:12]} of task {part.task}"
            if part.task != task:
                wrong.append(f"{name} stands in the manifest under task {task}")
            if part.release not in manifest.releases:
                wrong.append(f"{name} pins release {part.release[:12]}, which is not there")
            if (part.release, part.fingerprint) != (parts[0].release, parts[0].fingerprint):
                wrong.append(f"{name} was made by another encoder than the first segment of the task")
    wrong += _shared(ids)
    found = {task: np.setdiff1d(every, deleted[task]) for task, every in ids.items()}
    named = manifest.folders()
    return Audit(manifest, found, wrong, [path for path in folders if path.name not in named])


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
