"""Publish a finished task in the catalog: write the rows for its release, shard and recall."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session, aliased

from cinestrata_schemas.tasks import Drift, TaskProgress, UpgradeOutcome
from cinestrata_schemas.uris import redact_uri
from index.files.manifest_format import SegmentEntry
from service.access.audit_log import record_change
from service.catalog.database import id_chunks, now
from service.catalog.domain_videos import count_task_videos, number_edits
from service.catalog.readings import MODEL_SOURCES, READ_SOURCES, queue_unread, readable_sources
from service.catalog.tables import Feedback, Recall, Release, Shard, Task, Video
from service.catalog.video_texts import copy_texts
from service.core.errors import Conflict, DomainChanged, LeaseLost
from service.storage import library_files
from service.storage.video_files import register_removals
from service.tasks.lifecycle.state_machine import (
    SAME_CONTENT,
    lock_task,
    record,
    reject,
    set_progress,
    set_state,
)


@dataclass(frozen=True)
class Reassignment:
    """The videos that a task's copies replace."""

    # vector IDs that leave the shards of their domains, by domain
    originals: Mapping[str, Sequence[int]] = field(default_factory=dict)
    orphans: Sequence[int] = ()  # vector IDs of relearned copies whose original was deleted
    thumbnails: Sequence[tuple[str, str]] = ()  # old and new ID of each copy
    copies: Sequence[int] = ()  # vector IDs of the copies that got the originals' captions and metadata

    @classmethod
    def prepare(cls, session: Session, task: Task) -> Reassignment:
        """Replace the originals with their copies in the catalog; empty for a task without copies.

        The rows of the originals' domains stay locked until commit, so that no deletion comes between the catalog and
        the index.
        """
        is_copy = (Video.task_id == task.id) & (Video.status == "accepted") & Video.copy_of.is_not(None)
        original = aliased(Video)
        homes = select(original.task_id).join(Video, original.vector_id == Video.copy_of).where(is_copy)
        names = {task.relearns_id} if task.relearns_id else set(session.scalars(homes.distinct()))
        if not names:
            return cls()
        domains = {name: lock_task(session, name) for name in sorted(names)}
        rows = session.execute(
            select(
                Video.vector_id,
                Video.id,
                Video.captions,
                Video.extra,
                original.vector_id.label("original"),
                original.id.label("original_id"),
                original.task_id.label("home"),
                original.captions.label("original_captions"),
                original.extra.label("original_extra"),
                original.added_at,
                original.replaced_at,
                (original.content_hash == Video.content_hash).label("same_content"),
            )
            .outerjoin(original, (original.vector_id == Video.copy_of) & original.task_id.in_(names))
            .where(is_copy)
            .order_by(Video.vector_id)
        ).all()
        orphans = [row.vector_id for row in rows if row.original is None and task.relearns_id]
        copies = {row.original: row for row in rows if row.original is not None}
        originals = {name: [key for key, row in copies.items() if row.home == name] for name in names}
        copy_texts(session, task.id)
        # Deleting an original left the file that its relearned copy still uses. An earlier version's upload goes, too,
        # if no copy has its path.
        for chunk in id_chunks([*orphans, *(copies if task.target_id is not None else ())]):
            register_removals(session, Video.vector_id.in_(chunk))
        _move_feedback(session, {key: row.vector_id for key, row in copies.items()})
        for chunk in id_chunks([*copies, *orphans]):
            session.execute(delete(Video).where(Video.vector_id.in_(chunk)))
        at = now(session)
        taken: list[dict[str, Any]] = [
            {
                "vector_id": row.vector_id,
                "id": row.original_id,
                "captions": row.original_captions,
                "extra": row.original_extra,
                "added_at": row.added_at,
                "copy_of": None,
                "replaced_at": row.replaced_at if row.same_content else at,
            }
            for row in copies.values()
        ]
        if taken:
            session.execute(update(Video), taken)
        session.expire_all()
        receiver = lock_task(session, task.target_id) if task.target_id else task
        for domain in domains.values():
            # The release may have learned old captions, and searches may have cached old metadata.
            receiver.caption_edits += 1 if task.target_id else domain.caption_edits
            receiver.metadata_edits += 1 if task.target_id else domain.metadata_edits
            domain.metadata_edits += 1  # as for a deletion
            domain.counts = count_task_videos(session, domain.id)
        if task.relearns_id:
            domain = domains[task.relearns_id]
            task.counts = count_task_videos(session, task.id)
            # The advice to relearn has been followed.
            for measured in (domain, *session.scalars(select(Task).where(Task.target_id == domain.id))):
                progress = measured.progress.items()
                measured.progress = {name: value for name, value in progress if name != "drift"}
            videos = "1 appended video" if len(copies) == 1 else f"{len(copies)} appended videos"
            message = f"{task.name} took over {videos}."
            record(session, domain.id, "log", {"message": message, "task": task.id})
        thumbnails = [(row.id, row.original_id) for row in copies.values()]
        return cls(originals, orphans, thumbnails, [row.vector_id for row in copies.values()])

    def move_thumbnails(self) -> None:
        """Rename the copies' thumbnails to their new IDs. Idempotent."""
        for old_id, video_id in self.thumbnails:
            with suppress(FileNotFoundError):
                library_files.thumbnail_path(old_id).replace(library_files.thumbnail_path(video_id))


def _move_feedback(session: Session, copies: Mapping[int, int]) -> None:
    """Move the originals' feedback to the copies."""
    for chunk in id_chunks(list(copies)):
        judged = session.scalars(
            select(Feedback.video_vector_id).where(Feedback.video_vector_id.in_(chunk)).distinct()
        ).all()
        for original in judged:
            session.execute(
                update(Feedback)
                .where(Feedback.video_vector_id == original)
                .values(video_vector_id=copies[original])
                .execution_options(synchronize_session=False)
            )


class _OpenPublication:
    """An open transaction that holds a task's row lock."""

    def __init__(self, session: Session, task: Task) -> None:
        self._session = session
        self._task = task
        self._reassignment = Reassignment()
        self.completed = False  # whether the rows that make the task ready are written

    def require_lock(self) -> None:
        """Check that the transaction still holds the lock, which a database restart silently ends; raise LeaseLost."""
        with self._session.no_autoflush:
            token = self._session.scalar(select(Task.fencing_token).where(Task.id == self._task.id))
        if token != self._task.fencing_token:
            raise LeaseLost(f"Task {self._task.id} no longer belongs to this worker.")

    def reassign_videos(self) -> Reassignment:
        """Replace the originals of the task's copies in the catalog; without copies, the result is empty.

        The index must then be published without the originals and orphans, before ``complete``.
        """
        self._reassignment = Reassignment.prepare(self._session, self._task)
        return self._reassignment

    def _finish(self, facts: dict[str, Any]) -> None:
        """Make the task ready, and record that it was published."""
        if self._reassignment.originals:
            self._reassignment.move_thumbnails()
            # Searches may already know the copies with old captions: the manifest is replaced before the commit.
            number_edits(self._session, self._reassignment.copies)
        set_state(self._session, self._task, "ready")
        record_change(self._session, "task.publish", self._task.id, facts)
        self.completed = True


def shard_columns(segments: Sequence[SegmentEntry]) -> dict[str, Any]:
    """Describe a shard for the catalog, given its segments in the manifest."""
    first = segments[0]
    columns = {name: getattr(first, name) for name in ("id", "fingerprint", "dim")}
    sums = {name: sum(getattr(segment, name) for segment in segments) for name in ("count", "bytes")}
    return {**columns, "release_id": first.release, **sums}


def find_undoable(session: Session, domain_id: str) -> Task | None:
    """Find the upgrade of a domain that can be undone: at most the last one that was published."""
    return session.scalar(select(Task).where(Task.target_id == domain_id, Task.undo.is_not(None)))


def settle_upgrade(session: Session, domain_id: str, status: str) -> None:
    """Record that a domain's upgrade can no longer be undone: it is ``accepted`` or ``undone``."""
    if (task := find_undoable(session, domain_id)) is not None:
        task.undo = None
        task.progress = {**task.progress, "upgrade": {**task.progress["upgrade"], "status": status}}


class Publication(_OpenPublication):
    """The open transaction in which a task becomes ready. Raises Conflict if the domain of an upgrade was deleted."""

    def __init__(self, session: Session, task: Task) -> None:
        super().__init__(session, task)
        self._domain = lock_task(session, task.learned_id)
        if task.upgrades and self._domain.deleted_at is not None:
            raise Conflict(f"The domain {self._domain.name!r} was deleted.")

    def require_videos(self, vector_ids: Collection[int]) -> None:
        """Check that no others were added to the domain since it was loaded; raise DomainChanged."""
        accepted = select(Video.vector_id).where(Video.task_id == self._domain.id, Video.status == "accepted")
        if self._task.upgrades and not set(self._session.scalars(accepted)) <= set(vector_ids):
            raise DomainChanged("Videos were added to the domain; its upgrade starts again with them.")

    def complete(
        self,
        *,
        release: Release,
        shard: Shard,
        recalls: Sequence[tuple[str, Recall]] = (),
        trained: bool,
        moved: int = 0,
        unmeasured: str | None = None,
    ) -> None:
        """Write the rows for release, shard and recall matrix, and make the task ready.

        Args:
            shard: New row, without task and time.
            recalls: For each new cell of the recall matrix, the task that its queries come from and the row, without
                orders; ``release_order`` is 0 for the untrained backbone.
            trained: Whether the method was trained, rather than only applied.
            moved: For an upgrade: how many of the domain's videos the new shard has.
            unmeasured: Why there are no ``recalls``.
        """
        session, task, domain = self._session, self._task, self._domain
        upgrade = None
        if task.upgrades:
            task.upgrade_order = order = self._next_order()
            upgrade = self._replace_learned(recalls, moved)
        else:
            task.learned_order = order = task.learned_order or self._next_order()
        for learned in (task, domain):
            learned.release_id, learned.trained, learned.backbone = release.id, trained, release.backbone
        at = now(session)
        # A task without training may keep the current release, and an upgrade may return to an earlier one.
        if session.get(Release, release.id) is None:
            release.task_id, release.learned_order, release.created_at = task.id, order, at
            session.add(release)
            session.flush()
        if session.get(Shard, shard.id) is None:
            session.execute(delete(Shard).where(Shard.task_id == domain.id))  # that of an upgraded domain
            shard.task_id, shard.created_at = domain.id, at
            session.add(shard)
        self._write_recalls(order, recalls)
        task.attempts = 0
        sources = READ_SOURCES if task.upgrades else MODEL_SOURCES  # probing reads the files of new videos
        queue_unread(session, Video.task_id == domain.id, readable_sources(domain.read, sources))
        progress = TaskProgress(stage="ready", fraction=1.0, unmeasured=unmeasured, upgrade=upgrade)
        set_progress(session, task, progress)
        self._finish({"name": task.name, "release": release.id, "shard": shard.id, "videos": shard.count})

    def _next_order(self) -> int:
        orders = (Task.learned_order, Task.upgrade_order, Release.learned_order)
        return 1 + max(self._session.scalar(select(func.max(order))) or 0 for order in orders)

    def _replace_learned(self, recalls: Sequence[tuple[str, Recall]], moved: int) -> UpgradeOutcome:
        """Change the domain to what the upgrade has learned, and keep and describe it as it was."""
        session, task, domain = self._session, self._task, self._domain
        cells = select(Recall).where(Recall.task_order == domain.learned_order, Recall.gallery == "local")
        earlier = cells.where(Recall.release_order != 0).order_by(Recall.release_order.desc())
        before = session.scalars(earlier.limit(1)).first()
        after = next((row for key, row in recalls if (key, row.gallery) == (domain.id, "local")), None)
        remaining = count_task_videos(session, domain.id)["accepted"] - moved
        outcome = UpgradeOutcome(
            status="undoable",
            release=domain.release_id or "",
            method=domain.method,
            settings=domain.settings,
            backbone=domain.backbone,
            r1_before=before.r1 if before else None,
            r1_after=after.r1 if after else None,
            queries=after.queries if after else None,
            remaining=remaining,
        )
        settle_upgrade(session, domain.id, "accepted")  # the index keeps only the last replaced shard
        is_appended = (Video.task_id == domain.id) & (Video.effective_split == "appended")
        appended = session.scalars(select(Video.vector_id).where(is_appended)).all()
        names = ("release_id", "method", "settings", "backbone", "trained")
        task.undo = {"columns": {name: getattr(domain, name) for name in names}, "appended": [*appended]}
        domain.method, domain.settings, domain.backbone = task.method, dict(task.settings), task.backbone
        session.execute(update(Video).where(is_appended).values(effective_split="train"))
        domain.counts = count_task_videos(session, domain.id)
        domain.progress = {name: value for name, value in domain.progress.items() if name != "drift"}
        words = f"Upgraded from {outcome.backbone} to {domain.backbone}, method {domain.method}."
        if remaining:
            words += f" Videos that could not be read and stay as they were: {remaining}."
        record(session, domain.id, "log", {"message": words, "upgrade": task.id})
        return outcome

    def _write_recalls(self, order: int, recalls: Sequence[tuple[str, Recall]]) -> None:
        session = self._session
        session.flush()
        # Locked until commit: if a task later loses all videos, its column goes together with these cells.
        measured = Task.learned_order.is_not(None) & Task.id.in_({task_id for task_id, _ in recalls})
        learned = session.scalars(select(Task).where(measured).with_for_update(read=True)).all()
        orders = {task.id: task.learned_order for task in learned if task.counts.get("accepted") != 0}
        baseline = (Recall.release_order == 0) & (Recall.task_order == order)
        session.execute(delete(Recall).where((Recall.release_order == order) | baseline))
        for task_id, row in recalls:
            task_order = orders.get(task_id)
            if task_order is None:  # its videos were deleted during evaluation
                continue
            row.task_order = task_order
            if row.release_order != 0:
                row.release_order = order
            session.add(row)


class AppendPublication(_OpenPublication):
    """The open transaction in which an append becomes ready; created by ``Claim.appending``."""

    def __init__(self, session: Session, append: Task) -> None:
        super().__init__(session, append)
        self._domain = lock_task(session, append.target_id or "")
        if self._domain.deleted_at is not None:
            raise Conflict(f"The domain {self._domain.name!r} was deleted; no videos can be appended to it.")
        # If any of these were embedded already, their vectors must be deleted.
        self.rejected = session.scalars(
            select(Video.vector_id).where(Video.task_id == append.id, Video.status == "rejected")
        ).all()

    def complete(self, shard: Mapping[str, Any], *, drift: Drift | None = None) -> None:
        """Move the accepted videos to the domain, and make the append ready.

        ``shard`` are the columns of the domain's shard with the new segments (:func:`shard_columns`), and ``drift`` the
        recall of its encoder on the appended videos; None if it cannot be measured.
        """
        session, append, domain = self._session, self._task, self._domain
        accepted = (Video.task_id == append.id) & (Video.status == "accepted")
        count = session.scalar(select(func.count()).where(accepted)) or 0
        append.counts = count_task_videos(session, append.id) | {"appended": count}
        queue_unread(session, accepted, readable_sources(domain.read, MODEL_SOURCES))
        session.execute(
            update(Video)
            .where(accepted)
            .values(task_id=domain.id, effective_split="appended")
            .execution_options(synchronize_session=False)
        )
        domain.counts = count_task_videos(session, domain.id)
        session.execute(update(Shard).where(Shard.task_id == domain.id).values(shard))
        append.attempts = 0
        append.release_id = domain.release_id
        set_progress(session, append, TaskProgress(stage="ready", fraction=1.0, drift=drift))
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

    Two appends may contain the same file. The caller holds the index write lock, under which no other publication adds
    videos to the domain.
    """
    accepted = (Video.task_id == append.id) & (Video.status == "accepted")
    in_domain = select(Video.content_hash, Video.uri).where(
        Video.task_id == append.target_id,
        Video.status == "accepted",
        Video.content_hash.in_(select(Video.content_hash).where(accepted)),
    )
    originals = {digest: uri for digest, uri in session.execute(in_domain)}
    for video in session.scalars(
        select(Video).where(accepted, Video.content_hash.in_(list(originals)))
    ).all():
        original = redact_uri(originals[video.content_hash or ""])
        reject(session, video, SAME_CONTENT + original, is_final=True, content_hash=video.content_hash)
