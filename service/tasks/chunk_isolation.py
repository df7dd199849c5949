"""Isolation of the videos of a probing chunk that failed: the video that ends workers is found, the others are kept.

A chunk may fail because of one of its videos, or because a worker is broken: it dies at once, or every video is an
error for it. The owner of the task therefore divides a failed chunk into chunks of one video each, which it processes
itself. A video whose own chunk fails twice is rejected.
"""

from __future__ import annotations

from sqlalchemy import ColumnElement, and_, or_, select

from cinestrata_schemas.uri_redaction import redact_uri
from service.catalog.database import now, session_scope
from service.catalog.tables import Chunk, Task, Video
from service.tasks.lifecycle import Claim, plan_chunks
from service.tasks.lifecycle.chunks import ISOLATED, is_unleased
from service.tasks.task_events import record

_MAX_ATTEMPTS = 2  # of a single video


def isolate_failures(claim: Claim) -> None:
    """Divide the failed chunks of a task, and reject single videos that failed again.

    Raises:
        LeaseLost, TaskCancelled: see ``Claim.transaction``.
    """
    with session_scope() as session:
        failed = _failed(claim.task.id) & is_unleased(now(session))
        if session.scalars(select(Chunk.id).where(failed).limit(1)).first() is None:
            return
    with claim.transaction() as session:
        at = now(session)
        for chunk in session.scalars(select(Chunk).where(failed).order_by(Chunk.number).with_for_update()):
            pending = session.scalars(
                select(Video)
                .where(
                    Video.task_id == chunk.task_id,
                    Video.status == "pending",
                    Video.vector_id.between(chunk.first_id, chunk.last_id),
                )
                .order_by(Video.vector_id)
            ).all()
            # The row stays: SQLite would give its id, and with it the claim of its last worker, to a new chunk.
            chunk.fencing_token += 1
            chunk.done_at = at
            if chunk.run == ISOLATED:
                for video in pending:
                    _reject(video, chunk)
                    record(
                        session,
                        chunk.task_id,
                        "rejected",
                        {"uri": redact_uri(video.uri), "video_id": video.id, "reason": video.reason},
                    )
                chunk.finished = chunk.videos
                task = session.get_one(Task, chunk.task_id)
                task.attempts = min(
                    task.attempts, 1
                )  # progress, of which there is as much as there are videos
                continue
            chunk.videos -= len(pending)
            chunk.finished = chunk.videos
            ids = [video.vector_id for video in pending]
            plan_chunks(session, chunk.task_id, "probing", ids, 1, run=ISOLATED)


def _failed(task_id: str) -> ColumnElement[bool]:
    return and_(
        Chunk.task_id == task_id,
        Chunk.stage == "probing",
        Chunk.done_at.is_(None),
        or_(
            Chunk.run.is_(None) & (Chunk.attempts >= 1),
            (Chunk.run == ISOLATED) & (Chunk.attempts >= _MAX_ATTEMPTS),
        ),
    )


def _reject(video: Video, chunk: Chunk) -> None:
    cause = f"It cannot be processed ({chunk.error})" if chunk.error else "Its decoding ended the worker"
    video.status, video.content_hash = "rejected", None
    video.reason = (
        f"{cause} in {chunk.attempts} attempts with this video alone. Export it again, or leave it out."
    )
