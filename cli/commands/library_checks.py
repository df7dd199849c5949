"""Whether what was laid down fits together: shards, releases, and what the catalog says of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from index.integrity_audit import Audit
    from models.releases.release_lineage import TaskLineage
    from service.core.settings import Settings

__all__ = ["check_catalog", "check_releases"]

_MEND = "restore catalog and index from the same snapshot"


def check_releases(settings: Settings, found: Audit) -> list[str]:
    """What is wrong with the releases: each must be readable, and the current one must know every shard.

    A release that is damaged is named by the audit already.
    """

    from index.shard_store import ShardStore
    from models.encoders.encoder_registry import read_query_release
    from models.errors import ModelError
    from models.releases.release_files import read_lineage

    store, manifest = ShardStore(settings.index_dir), found.manifest
    wrong: list[str] = []
    learned: dict[str, TaskLineage] = {}
    for identifier in manifest.releases:
        if identifier in found.damaged_releases:
            continue
        folder = store.release_folder(identifier)
        try:
            learned[identifier] = read_lineage(folder)
            read_query_release(folder, profiles=False)
        except (ModelError, OSError) as error:
            wrong.append(str(error))
    for identifier, own in learned.items():
        name = f"release {identifier[:12]}"
        if own.parent is not None and own.parent.release not in manifest.releases:
            wrong.append(f"{name}: it goes on from release {own.parent.release[:12]}, which is not there")
        for task in own.tasks:
            shard = manifest.shards.get(task.task_id)
            if shard is not None and shard.fingerprint != task.fingerprint:
                wrong.append(
                    f"{name}: for task {task.task_id} it names encoder {task.fingerprint[:12]}, the shard was made by "
                    f"{shard.fingerprint[:12]}"
                )
    known = {identifier: {task.task_id for task in own.tasks} for identifier, own in learned.items()}
    newest = manifest.release
    if newest in learned:
        try:
            known[newest] = {task.task_id for task in learned[newest].resolve(learned.__getitem__).tasks}
        except KeyError:
            del known[newest]  # a release before it is named above
        except ModelError as error:
            wrong.append(f"release {newest[:12]}: {error}")
            del known[newest]
    for task_id, shard in manifest.shards.items():
        wrong += [
            f"release {identifier[:12]}: it does not know task {task_id}, so that shard cannot be searched"
            for identifier in dict.fromkeys((shard.release, newest))
            if identifier in known and task_id not in known[identifier]
        ]
    return wrong


def check_catalog(settings: Settings, found: Audit) -> list[str]:
    """What the catalog and the manifest say of each other that is not true.

    May run while tasks are learned: the manifest is replaced first, and the catalog follows.
    """
    from sqlalchemy import select

    from index.shard_store import ShardStore
    from index.vector_ids import video_ids_of
    from service.catalog.database import session_scope, sqlite_path
    from service.catalog.tables import FINAL_STATES, Shard, Task, Video

    file = sqlite_path(settings.database_url)
    if file and not file.exists():
        return [f"there is no catalog; {_MEND}"] if found.manifest.shards else []
    wrong: list[str] = []
    with session_scope() as session:
        states = {task: state for task, state in session.execute(select(Task.id, Task.state))}
        rows = {
            row.task_id: (row.release_id, row.fingerprint, row.dim) for row in session.scalars(select(Shard))
        }
        for task, ids in found.ids.items():
            known = session.scalars(select(Video.vector_id).where(Video.task_id == task)).all()
            unknown = np.setdiff1d(video_ids_of(ids), np.array(known, np.int64))
            if task in states and len(unknown):
                wrong.append(
                    f"{len(unknown)} vectors of task {task} belong to no video in the catalog, for example {unknown[0]}"
                )
    # After the catalog: what that calls ready is published.
    manifest = ShardStore(settings.index_dir).manifest()
    for task, state in states.items():
        if state == "ready" and task not in manifest.shards:
            wrong.append(f"task {task} is ready, and the manifest has no shard of it; {_MEND}")
    for task, shard in manifest.shards.items():
        if task not in states:
            wrong.append(f"the shard of task {task} belongs to no task of the catalog; {_MEND}")
        elif task in rows and rows[task] != (shard.release, shard.fingerprint, shard.dim):
            wrong.append(f"the catalog describes another shard of task {task} than the manifest has; {_MEND}")
        elif task not in rows and states[task] in FINAL_STATES:
            wrong.append(f"task {task} is {states[task]}, and the catalog does not know its shard; {_MEND}")
    return wrong
