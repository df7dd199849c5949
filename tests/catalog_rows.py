"""Catalog rows that tests read, and rows of published tasks that tests write without a worker."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import select
from sqlalchemy.orm import Session

from index.files.manifest_format import SegmentEntry
from service.catalog.database import now, session_scope
from service.catalog.domain_videos import count_edit
from service.catalog.tables import Release, Shard, Task, Video


def accepted_videos(task_id: str) -> list[Video]:
    """Return a task's accepted videos, in order of vector ID."""
    with session_scope() as session:
        query = select(Video).where(Video.task_id == task_id, Video.status == "accepted")
        return list(session.scalars(query.order_by(Video.vector_id)))


def mark_learned(task_id: str, order: int = 1) -> str:
    """Make a task a learned domain without files of the index; returns the identifier."""
    with session_scope(write=True) as session:
        task = session.get_one(Task, task_id)
        task.state, task.learned_order, task.finished_at = "ready", order, now(session)
    return task_id


def add_release_and_shard(
    task_id: str, shard: SegmentEntry | Shard, *, order: int = 1, kind: str = "tame", release_bytes: int = 1
) -> None:
    """Write the rows of a published shard and of the release that embedded it, as a worker does."""
    release = shard.release_id if isinstance(shard, Shard) else shard.release
    with session_scope(write=True) as session:
        common = {"task_id": task_id, "fingerprint": shard.fingerprint, "created_at": now(session)}
        learned = Release(id=release, learned_order=order, method="m", backbone="tiny", kind=kind, **common)
        learned.bytes = release_bytes
        session.add(learned)
        session.flush()
        columns = {name: getattr(shard, name) for name in ("id", "count", "dim", "bytes")}
        session.add(Shard(release_id=release, **columns, **common))


def count_changes(session: Session, videos: Iterable[Video]) -> None:
    """Count an edit of the rows of videos, so that a running service shows what a test stored in them."""
    by_task: dict[str, list[int]] = {}
    for video in videos:
        by_task.setdefault(video.task_id, []).append(video.vector_id)
    for task, ids in by_task.items():
        count_edit(session, task, ids, captions=False, metadata=True)
