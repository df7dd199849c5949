"""Let the copies of videos take over from their originals, in the transaction that publishes them.

Copies are the videos of a relearned domain, and appended videos that replace others: new versions of their files, or
files that were moved from another domain. They take over the IDs of their originals, together with current captions,
metadata, transcripts and feedback. An original whose copy was rejected stays. If an original was deleted meanwhile, a
relearned copy is deleted too, and an appended one becomes a video of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session, aliased

from service.catalog.column_types import is_damaged
from service.catalog.database import id_chunks, now
from service.catalog.domain_videos import count_task_videos, number_edits
from service.catalog.tables import Feedback, Task, Video
from service.catalog.transcripts import copy_transcripts
from service.storage import library_paths
from service.storage.video_files import register_removals
from service.tasks.lifecycle.state_machine import lock_task
from service.tasks.task_events import record


@dataclass(frozen=True)
class Takeover:
    """The videos that a task's copies replace.

    Attributes:
        originals: Vector IDs that leave the shards of their domains, by domain.
        orphans: Vector IDs of relearned copies whose original was deleted.
        thumbnails: Old and new ID of each copy.
        copies: Vector IDs of the copies that took over captions and metadata.
    """

    originals: Mapping[str, Sequence[int]]
    orphans: Sequence[int]
    thumbnails: Sequence[tuple[str, str]]
    copies: Sequence[int]

    @classmethod
    def prepare(cls, session: Session, task: Task) -> Takeover | None:
        """Replace the originals with their copies in the catalog; None for a task without copies.

        The rows of the originals' domains stay locked until commit, so that no deletion comes between the catalog and
        the index.

        Args:
            session: Transaction of the publication.
            task: Locked task that is being published.
        """
        is_copy = (Video.task_id == task.id) & (Video.status == "accepted") & Video.copy_of.is_not(None)
        original = aliased(Video)
        homes = select(original.task_id).join(Video, original.vector_id == Video.copy_of).where(is_copy)
        names = {task.relearns_id} if task.relearns_id else set(session.scalars(homes.distinct()))
        if not names:
            return None
        domains = {name: lock_task(session, name) for name in sorted(names)}
        rows = session.execute(
            select(
                Video.vector_id,
                Video.id,
                original.vector_id,
                original.id,
                original.captions,
                original.extra,
                Video.captions,
                Video.extra,
                original.added_at,
                original.replaced_at,
                original.task_id,
                original.content_hash == Video.content_hash,
            )
            .outerjoin(original, (original.vector_id == Video.copy_of) & original.task_id.in_(names))
            .where(is_copy)
            .order_by(Video.vector_id)
        ).all()
        orphans = [copy for copy, _, replaced, *_ in rows if replaced is None and task.relearns_id]
        kept = [row for row in rows if row[2] is not None]
        originals = {name: [row[2] for row in kept if row[10] == name] for name in names}
        copy_transcripts(session, task.id)
        # Deleting an original left the file that its relearned copy still uses.
        for chunk in id_chunks(orphans):
            register_removals(session, Video.vector_id.in_(chunk))
        if task.target_id is not None:  # an earlier version's upload, if no copy has its path
            for chunk in id_chunks([row[2] for row in kept]):
                register_removals(session, Video.vector_id.in_(chunk))
        _move_feedback(session, {row[2]: row[0] for row in kept})
        for chunk in id_chunks([*(row[2] for row in kept), *orphans]):
            session.execute(delete(Video).where(Video.vector_id.in_(chunk)))
        at = now(session)
        taken: list[dict[str, Any]] = [
            {
                "vector_id": copy,
                "id": video_id,
                "captions": copied_captions if is_damaged(captions) else captions,
                "extra": copied_extra if is_damaged(extra) else extra,
                "added_at": added_at,
                "copy_of": None,
                "replaced_at": replaced_at if same_content else at,
            }
            for copy, _, _, video_id, captions, extra, copied_captions, copied_extra, added_at, replaced_at, _, (
                same_content
            ) in kept
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
                measured.progress = {
                    name: value for name, value in measured.progress.items() if name != "drift"
                }
            videos = "1 appended video" if len(kept) == 1 else f"{len(kept)} appended videos"
            record(
                session, domain.id, "log", {"message": f"{task.name} took over {videos}.", "task": task.id}
            )
        return cls(originals, orphans, [(row[1], row[3]) for row in kept], [row[0] for row in kept])

    def number_edits(self, session: Session) -> None:
        """Count the takeover of captions and metadata as an edit, once the transaction has locked all tasks.

        Searches may already know the copies with old captions, because the manifest is replaced before the commit.
        """
        number_edits(session, self.copies)

    def move_thumbnails(self) -> None:
        """Rename the copies' thumbnails to their new IDs. Idempotent."""
        for old_id, video_id in self.thumbnails:
            with suppress(FileNotFoundError):
                library_paths.thumbnail_path(old_id).replace(library_paths.thumbnail_path(video_id))


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
