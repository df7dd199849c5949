"""Publication of a task in the index: whether the manifest lists its vectors."""

from __future__ import annotations

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from service.catalog.tables import Task, Video
from service.storage import index_manifest

__all__ = ["is_published"]


def is_published(session: Session, task: Task) -> bool:
    """Return whether the vectors of a task are in the index.

    The manifest is replaced just before the catalog commits. If a worker dies in between, the vectors are published and
    only the rows of the catalog are missing: such a task must be finished, not failed or cancelled.

    Args:
        session: Session of the caller.
        task: A domain, or an append. The videos of an append belong to the domain once the catalog is complete.

    Raises:
        Unavailable: the manifest or the ids of the shard cannot be read.
    """
    if task.target_id is None:
        return index_manifest.is_published(task.id)
    ids = session.scalars(select(Video.vector_id).where(Video.task_id == task.id)).all()
    return bool(len(index_manifest.stored_ids(task.target_id, np.array(ids, np.int64))))
