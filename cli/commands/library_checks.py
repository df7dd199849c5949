"""Consistency of shards, releases and catalog, as reported by ``cinestrata doctor``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from index.integrity_audit import Audit
    from models.releases.release_lineage import TaskLineage
    from service.core.settings import Settings

__all__ = ["check_catalog", "check_json_columns", "check_releases"]

_CHUNK = 1000  # rows read at a time
_HINT = "restore catalog and index from the same backup"


def check_releases(settings: Settings, audit: Audit) -> list[str]:
    """Faults of the releases: each must be readable, and the current one must know every shard.

    Releases with damaged files are omitted, because the audit reports them.

    Args:
        settings: Settings of the library.
        audit: Result of the integrity audit of its files.

    Returns:
        One sentence per fault.
    """
    from index.shard_store import ShardStore
    from models.encoders.encoder_registry import read_query_release
    from models.errors import ModelError
    from models.releases.release_files import read_lineage

    store, manifest = ShardStore(settings.index_dir), audit.manifest
    faults: list[str] = []
    learned: dict[str, TaskLineage] = {}
    for identifier in manifest.releases:
        if identifier in audit.damaged_releases:
            continue
        folder = store.release_folder(identifier)
        try:
            learned[identifier] = read_lineage(folder)
            read_query_release(folder, profiles=False)
        except (ModelError, OSError) as error:
            faults.append(str(error))
    for identifier, release in learned.items():
        name = f"release {identifier[:12]}"
        if release.parent is not None and release.parent.release not in manifest.releases:
            faults.append(f"{name}: its predecessor, release {release.parent.release[:12]}, is missing")
        for task in release.tasks:
            shard = manifest.shards.get(task.task_id)
            if shard is not None and shard.fingerprint != task.fingerprint:
                faults.append(
                    f"{name}: it names encoder {task.fingerprint[:12]} for task {task.task_id}, but encoder "
                    f"{shard.fingerprint[:12]} made the shard"
                )
    known = {identifier: {task.task_id for task in release.tasks} for identifier, release in learned.items()}
    newest = manifest.release
    if newest in learned:
        try:
            known[newest] = {task.task_id for task in learned[newest].resolve(learned.__getitem__).tasks}
        except KeyError:
            del known[newest]  # the fault of the predecessor is in the list
        except ModelError as error:
            faults.append(f"release {newest[:12]}: {error}")
            del known[newest]
    for task_id, shard in manifest.shards.items():
        faults += [
            f"release {identifier[:12]}: it does not know task {task_id}, so that shard cannot be searched"
            for identifier in dict.fromkeys((shard.release, newest))
            if identifier in known and task_id not in known[identifier]
        ]
    return faults


def check_json_columns() -> list[str]:
    """Rows of the catalog whose JSON is not of the shape that its column requires, one sentence per value."""
    from sqlalchemy import Text, cast, null, select

    from service.catalog.catalog_schema import CATALOG_SCHEMA
    from service.catalog.database import session_scope
    from service.catalog.tables import StoredJson

    columns = [column for table in CATALOG_SCHEMA.sorted_tables for column in table.columns]
    faults: list[str] = []
    with session_scope() as session:
        for column in columns:
            if not isinstance(column.type, StoredJson):
                continue
            place, keys = f"{column.table.name}.{column.name}", column.table.primary_key.columns
            values = select(cast(column, Text), *keys).where(column.is_not(null()))
            for text, *key in session.execute(values.execution_options(yield_per=_CHUNK)):
                try:
                    value = json.loads(text)
                except ValueError:
                    value = ...  # no JSON
                if not column.type.accepts(value):
                    faults.append(f"{place} of row {', '.join(map(str, key))} is not {column.type.shape}")
    return faults


def check_catalog(settings: Settings, audit: Audit) -> list[str]:
    """Contradictions between the catalog and the manifest.

    The check may run while tasks are published: the manifest is replaced first, and the catalog follows.

    Args:
        settings: Settings of the library.
        audit: Result of the integrity audit of its files.

    Returns:
        One sentence per contradiction.
    """
    from sqlalchemy import select

    from index.shard_store import ShardStore
    from index.vector_ids import video_ids_of
    from service.catalog.database import session_scope, sqlite_path
    from service.catalog.tables import FINAL_STATES, Shard, Task, Video

    file = sqlite_path(settings.database_url)
    if file and not file.exists():
        return [f"there is no catalog; {_HINT}"] if audit.manifest.shards else []
    faults: list[str] = []
    with session_scope() as session:
        states = {
            task: state
            for task, state in session.execute(select(Task.id, Task.state).where(Task.target_id.is_(None)))
        }
        rows = {
            row.task_id: (row.release_id, row.fingerprint, row.dim) for row in session.scalars(select(Shard))
        }
        for task, ids in audit.ids.items():
            known = session.scalars(select(Video.vector_id).where(Video.task_id == task)).all()
            unknown = np.setdiff1d(video_ids_of(ids), np.array(known, np.int64))
            if task in states and len(unknown):
                faults.append(
                    f"{len(unknown)} vectors of task {task} belong to no video in the catalog, for example {unknown[0]}"
                )
    # Read after the catalog, because a task that the catalog calls ready was published before.
    manifest = ShardStore(settings.index_dir).manifest()
    for task, state in states.items():
        if state == "ready" and task not in manifest.shards:
            faults.append(f"task {task} is ready, but the manifest has no shard of it; {_HINT}")
    for task, shard in manifest.shards.items():
        if task not in states:
            faults.append(f"the shard of task {task} belongs to no task of the catalog; {_HINT}")
        elif task in rows and rows[task] != (shard.release, shard.fingerprint, shard.dim):
            faults.append(f"the catalog and the manifest describe different shards of task {task}; {_HINT}")
        elif task not in rows and states[task] in FINAL_STATES:
            faults.append(
                f"task {task} is {states[task]}, but the catalog has no record of its shard; {_HINT}"
            )
    return faults
