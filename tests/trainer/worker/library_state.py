"""Helpers of the learning worker's tests: run the learning job, and read the published library and the catalog."""

from __future__ import annotations

import numpy as np
from sqlalchemy import select

from cinestrata_schemas.tasks import TaskDetails
from index.index_snapshot import IndexSnapshot
from index.shard_store import ShardStore
from models.releases.release_files import read_lineage, read_release
from models.releases.release_state import ReleaseState
from service.catalog.database import session_scope
from service.catalog.tables import Recall, Video
from service.core.settings import settings
from service.tasks import commands
from trainer.worker import learning_job


def run_job(task: str) -> TaskDetails:
    """Run the learning job of a task; the task afterwards."""
    learning_job.run_learning_job(task)
    return commands.get_task(task)


def learn(task: str) -> TaskDetails:
    """Run the learning job of a task, which must become ready."""
    view = run_job(task)
    assert (view.state, view.error) == ("ready", None)
    return view


def open_store() -> ShardStore:
    """The shard store of the library."""
    return ShardStore(settings().index_dir)


def current_release() -> ReleaseState:
    """The newest published release."""
    store = open_store()
    release = store.manifest().release
    assert release is not None
    return read_release(
        store.release_folder(release), read_parent=lambda earlier: read_lineage(store.release_folder(earlier))
    )


def shard_vectors(task: str) -> dict[int, np.ndarray]:
    """Searchable vectors of a task, by vector id."""
    store = open_store()
    shard = IndexSnapshot.open(store).shard(task, fingerprint=store.manifest().shards[task].fingerprint)
    return dict(zip(shard.ids.tolist(), shard.vectors(shard.ids), strict=True))


def catalog_vector_ids(task: str) -> dict[str, int]:
    """Vector ids of a task's videos in the catalog, by video id."""
    with session_scope() as session:
        query = select(Video.id, Video.vector_id).where(Video.task_id == task)
        return {video: vector_id for video, vector_id in session.execute(query)}


def recall_cells() -> dict[tuple[int, int, str, str], Recall]:
    """Cells of the recall matrix by release, task, query mode and gallery; release 0 is the unchanged backbone."""
    with session_scope() as session:
        return {
            (cell.release_order, cell.task_order, cell.mode, cell.gallery): cell
            for cell in session.scalars(select(Recall)).all()
        }
