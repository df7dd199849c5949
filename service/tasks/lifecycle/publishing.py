"""Publish a finished task in the catalog: write the rows for its release, shard and recall."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from cinestrata_schemas.tasks import Drift, TaskProgress
from cinestrata_schemas.uri_redaction import redact_uri
from service.access.audit_log import record_change
from service.catalog.database import now
from service.catalog.domain_videos import count_task_videos
from service.catalog.tables import Recall, Release, Shard, Task, Video
from service.core.errors import Conflict, LeaseLost
from service.tasks.lifecycle.state_machine import lock_task, set_state
from service.tasks.lifecycle.takeover import Takeover
from service.tasks.rejections import SAME_CONTENT, reject
from service.tasks.task_details import progress_with_times
from service.tasks.task_events import record


class _OpenPublication:
    """An open transaction that holds a task's row lock.

    Attributes:
        completed: Whether the rows that make the task ready are written.
    """

    def __init__(self, session: Session, task: Task, stage_seconds: dict[str, float]) -> None:
        self._session = session
        self._task = task
        self._stage_seconds = stage_seconds
        self._takeover: Takeover | None = None
        self.completed = False

    def require_lock(self) -> None:
        """Check that the transaction still holds the lock: a database restart silently ends it.

        Raises:
            LeaseLost: Another worker owns the task; nothing may be published.
            SQLAlchemyError: The transaction's connection is lost.
        """
        query = select(Task.fencing_token).where(Task.id == self._task.id)
        with self._session.no_autoflush:
            token = self._session.scalar(query)
        if token != self._task.fencing_token:
            raise LeaseLost(f"Task {self._task.id} no longer belongs to this worker.")

    def _finish(self, facts: dict[str, Any]) -> None:
        """Make the task ready, and record that it was published."""
        if self._takeover is not None:
            self._takeover.move_thumbnails()
            self._takeover.number_edits(self._session)
        set_state(self._session, self._task, "ready")
        record_change(self._session, "task.publish", self._task.id, facts)
        self.completed = True


class Publication(_OpenPublication):
    """The open transaction in which a task becomes ready; created by ``Claim.publishing``."""

    def take_over_videos(self) -> Takeover | None:
        """Replace the originals of a relearned domain's videos in the catalog; None for other tasks.

        The index must then be published without the originals and orphans, before :meth:`complete`.
        """
        self._takeover = Takeover.prepare(self._session, self._task)
        return self._takeover

    def complete(
        self,
        *,
        release: Release,
        shard: Shard,
        recalls: Sequence[tuple[str, Recall]] = (),
        trained: bool,
        unmeasured: str | None = None,
    ) -> int:
        """Write the rows for release, shard and recall matrix, and make the task ready.

        Args:
            release: New row, without the columns that the catalog decides: task, order and time.
            shard: New row, without task and time.
            recalls: For each new cell of the recall matrix, the task that its queries come from and the row, without
                orders; ``release_order`` is 0 for the untrained backbone.
            trained: Whether the method was trained, rather than only applied.
            unmeasured: Why there are no ``recalls``.

        Returns:
            The task's learned order t among all published tasks, from 1.
        """
        session, task = self._session, self._task
        order = task.learned_order or 1 + (session.scalar(select(func.max(Task.learned_order))) or 0)
        task.learned_order, task.release_id, task.trained = order, release.id, trained
        at = now(session)
        # A task without training may keep the current release.
        if session.get(Release, release.id) is None:
            release.task_id, release.learned_order, release.created_at = task.id, order, at
            session.add(release)
            session.flush()
        if session.get(Shard, shard.id) is None:
            shard.task_id, shard.created_at = task.id, at
            session.add(shard)
        self._write_recalls(order, recalls)
        task.attempts = 0
        view = TaskProgress(stage="ready", fraction=1.0, unmeasured=unmeasured)
        _store_final_progress(session, task, view, self._stage_seconds)
        self._finish({"name": task.name, "release": release.id, "shard": shard.id, "videos": shard.count})
        return order

    def _write_recalls(self, order: int, recalls: Sequence[tuple[str, Recall]]) -> None:
        session = self._session
        session.flush()
        # Locked until commit: if a task later loses all videos, its column goes together with these cells.
        learned = session.scalars(
            select(Task).where(Task.learned_order.is_not(None)).with_for_update(read=True)
        ).all()
        orders = {task.id: task.learned_order for task in learned if task.counts.get("accepted") != 0}
        session.execute(delete(Recall).where(Recall.release_order == order))
        session.execute(delete(Recall).where(Recall.release_order == 0, Recall.task_order == order))
        for task_id, row in recalls:
            task_order = orders.get(task_id)
            if task_order is None:  # its videos were deleted during evaluation
                continue
            row.task_order = task_order
            if row.release_order != 0:
                row.release_order = order
            session.add(row)


class AppendPublication(_OpenPublication):
    """The open transaction in which an append becomes ready; created by ``Claim.appending``.

    Attributes:
        rejected: Vector IDs of the append's rejected videos. If any were embedded already, their vectors must be
            deleted.
    """

    def __init__(self, session: Session, append: Task, stage_seconds: dict[str, float]) -> None:
        super().__init__(session, append, stage_seconds)
        self._domain = lock_task(session, append.target_id or "")
        if self._domain.deleted_at is not None:
            raise Conflict(f"The domain {self._domain.name!r} was deleted; no videos can be appended to it.")
        self.rejected = session.scalars(
            select(Video.vector_id).where(Video.task_id == append.id, Video.status == "rejected")
        ).all()

    def take_over_videos(self) -> dict[str, Sequence[int]]:
        """Replace the originals of appended videos in the catalog, and return their vector IDs by domain.

        The index must then be published without them, before :meth:`complete`.
        """
        self._takeover = Takeover.prepare(self._session, self._task)
        return dict(self._takeover.originals) if self._takeover else {}

    def complete(self, *, vectors: int, size: int, drift: Drift | None = None) -> None:
        """Move the accepted videos to the domain, and make the append ready.

        Args:
            vectors: Number of vectors in the shard's segments together.
            size: Size of the shard's segments together, in bytes.
            drift: Recall of the domain's encoder on the appended videos; None if it cannot be measured.
        """
        session, append, domain = self._session, self._task, self._domain
        accepted = (Video.task_id == append.id) & (Video.status == "accepted")
        count = session.scalar(select(func.count()).where(accepted)) or 0
        append.counts = count_task_videos(session, append.id) | {"appended": count}
        session.execute(
            update(Video)
            .where(accepted)
            .values(task_id=domain.id, effective_split="appended")
            .execution_options(synchronize_session=False)
        )
        domain.counts = count_task_videos(session, domain.id)
        session.execute(
            update(Shard)
            .where(Shard.task_id == domain.id)
            .values(count=vectors, bytes=size)
            .execution_options(synchronize_session=False)
        )
        append.attempts = 0
        append.release_id = domain.release_id
        view = TaskProgress(stage="ready", fraction=1.0, drift=drift)
        _store_final_progress(session, append, view, self._stage_seconds)
        if drift is not None:
            domain.progress = {**domain.progress, "drift": drift.model_dump()}
        if count:
            videos = "1 video was" if count == 1 else f"{count} videos were"
            record(session, domain.id, "log", {"message": f"{videos} appended.", "append": append.id})
        self._finish(
            {"name": domain.name, "domain": domain.id, "release": domain.release_id, "videos": count}
        )


def reject_duplicates(session: Session, append: Task) -> None:
    """Reject an append's accepted videos whose content has reached the domain since they were probed.

    Two appends may contain the same file.

    Args:
        session: Transaction that locks the append, under the index write lock: while that is held, no other publication
            adds videos to the domain.
    """
    accepted = (Video.task_id == append.id) & (Video.status == "accepted")
    known = {
        digest: uri
        for digest, uri in session.execute(
            select(Video.content_hash, Video.uri).where(
                Video.task_id == append.target_id,
                Video.status == "accepted",
                Video.content_hash.in_(select(Video.content_hash).where(accepted)),
            )
        )
    }
    for video in session.scalars(select(Video).where(accepted, Video.content_hash.in_(list(known)))).all():
        original = redact_uri(known[video.content_hash or ""])
        reject(session, video, SAME_CONTENT + original, is_final=True, content_hash=video.content_hash)


def _store_final_progress(
    session: Session, task: Task, progress: TaskProgress, seconds: dict[str, float]
) -> None:
    """Store a ready task's progress with the time that its stages took, in seconds."""
    view = progress.model_dump(exclude_none=True)
    record(session, task.id, "progress", view)
    task.progress = progress_with_times(task, view, seconds)
