"""Finish tasks as workers would, without decoding: files whose content starts with ``broken`` are rejected."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from media import MediaError, content_hash
from service.catalog.database import session_scope
from service.catalog.tables import Task, Video
from service.storage.library_files import resolve_video_path
from service.tasks.lifecycle.publishing import Reassignment
from service.tasks.lifecycle.state_machine import SAME_CONTENT, reject


def finish(state: str = "ready") -> None:
    """Give all unfinished tasks a final state, in order; a ready append moves its videos to its domain."""
    while True:
        with session_scope(write=True) as session:
            unfinished = select(Task).where(Task.finished_at.is_(None)).order_by(Task.position)
            task = session.scalars(unfinished.limit(1)).one_or_none()
            if task is None:
                return
            task.state, task.finished_at = state, datetime.now(UTC)
            if state != "ready":
                continue
            task.learned_order = None if task.target_id else task.position
            for video in session.scalars(
                select(Video).where(Video.task_id == task.id).order_by(Video.vector_id)
            ).all():
                _probe(session, video, task)
                session.flush()
            if task.target_id:
                Reassignment.prepare(session, task)
                accepted = (Video.task_id == task.id) & (Video.status == "accepted")
                session.execute(update(Video).where(accepted).values(task_id=task.target_id))


def _probe(session: Session, video: Video, task: Task) -> None:
    try:
        path = resolve_video_path(video.uri)
        digest = content_hash(path)
    except (MediaError, OSError):
        return reject(session, video, "The file no longer exists.", is_final=False)
    uris = select(Video.uri).where(
        Video.content_hash == digest,
        Video.status == "accepted",
        Video.task_id.in_({task.id, task.target_id or task.id}),
    )
    if copy := session.scalars(uris.limit(1)).first():
        return reject(session, video, SAME_CONTENT + copy, is_final=True, content_hash=digest)
    if path.read_bytes().startswith(b"broken"):
        return reject(session, video, f"{video.uri} is damaged.", is_final=True)
    video.status, video.content_hash, video.bytes = "accepted", digest, path.stat().st_size
    return None
