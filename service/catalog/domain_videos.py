"""A domain's rows: videos, edit counters, moments of long videos, and refitted confidence models.

Each process compares the counters of domains with those that its caches were computed for, and reads the videos with
later numbers. Both change in the transaction that changes the videos, so rows read after them are at least as new.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, bindparam, delete, func, insert, or_, select, update
from sqlalchemy.orm import Session

from cinestrata_schemas.choice_types import LEARNED_SPLITS
from index.arrays import batches, moment_ids
from index.files.manifest_format import task_of
from service.catalog.database import edit_number, id_chunks, session_scope
from service.catalog.tables import FINAL_STATES, Calibration, EditCounter, Moment, Task, Video
from service.core.change_sequence import note_edit

# Built once: building a statement takes as long as PostgreSQL needs for it.
_COUNT_EDIT = (
    update(Task)
    .where(Task.id == bindparam("domain"))
    .values(
        caption_edits=Task.caption_edits + bindparam("captions"),
        metadata_edits=Task.metadata_edits + bindparam("metadata"),
    )
)
_NEXT_NUMBER = (
    update(EditCounter).values(last_edit=EditCounter.last_edit + 1).returning(EditCounter.last_edit)
)
_TRANSACTION_NUMBER = select(edit_number("postgresql", func.pg_current_xact_id()))
_NUMBER_EDIT = (
    update(Video)
    .where(Video.vector_id.in_(bindparam("ids", expanding=True)))
    .values(last_edit=bindparam("number"))
)

Span = tuple[float, float]  # start and end, in seconds since the first frame
_MOMENT_ROWS = 10_000  # per INSERT
MAX_AWAITED = 1000  # edited videos that a search waits for; the background reads more


def in_domain(task_id: str) -> ColumnElement[bool]:
    """Build the condition for the videos in a task, given by ID or a shard's key, including appends to its domain.

    A single statement with this condition sees an append either before or after it is published. With two statements,
    PostgreSQL shows a publication in between only to the second.
    """
    task_id = task_of(task_id)
    return Video.task_id.in_(select(Task.id).where(or_(Task.id == task_id, Task.target_id == task_id)))


def splits_of(use: str) -> Sequence[str]:
    """List the effective splits that count as a use of videos: a fold is learned, too."""
    return LEARNED_SPLITS if use == "train" else (use,)


def count_task_videos(session: Session, task_id: str) -> dict[str, int]:
    """Count a task's videos for the fields of ``VideoCounts``."""
    rows = session.execute(
        select(Video.status, Video.effective_split, func.count())
        .where(Video.task_id == task_id)
        .group_by(Video.status, Video.effective_split)
    ).all()
    return {
        "videos": sum(count for _, _, count in rows),
        **{kind: sum(n for status, _, n in rows if status == kind) for kind in ("accepted", "rejected")},
        **{
            part: sum(n for _, split, n in rows if split in splits_of(part))
            for part in ("train", "val", "test", "appended")
        },
    }


def read_counts(session: Session, task_id: str, counts: dict[str, Any]) -> dict[str, Any]:
    """Read a task's stored counts, or count its videos if there are none."""
    return counts or count_task_videos(session, task_id)


def count_edit(
    session: Session, domain_id: str, videos: Sequence[int], *, captions: bool, metadata: bool
) -> None:
    """Count an edit of videos. The transaction must not lock another task afterwards; see :func:`number_edits`.

    The domain is that of the shard which has, or will have, the videos, given by their vector IDs. A deletion counts as
    an edit of metadata, without the deleted videos, so that no copy of the rows stays current.
    """
    added = {"domain": domain_id, "captions": int(captions), "metadata": int(metadata)}
    session.flush()
    session.connection().execute(_COUNT_EDIT, added)
    number_edits(session, videos)


def number_edits(session: Session, videos: Sequence[int]) -> None:
    """Count an edit, and give its number to the videos (vector IDs) whose texts or metadata this transaction changes.

    Transactions lock tasks first and videos last; otherwise, two of them could deadlock.
    """
    session.flush()
    connection = session.connection()
    is_postgresql = connection.dialect.name == "postgresql"
    number: int = connection.execute(_TRANSACTION_NUMBER if is_postgresql else _NEXT_NUMBER).scalar_one()
    note_edit(number)
    for chunk in id_chunks(videos):
        connection.execute(_NUMBER_EDIT, {"number": number, "ids": chunk})


def read_edited_videos(after: int, last: int | None = None) -> dict[int, int]:
    """Read the numbers of the videos edited after a number, by vector ID: all, or the newest ones up to ``last``."""
    edited = select(Video.vector_id, Video.last_edit).where(Video.last_edit > after)
    if last is not None:
        edited = edited.where(Video.last_edit <= last).order_by(Video.last_edit.desc()).limit(MAX_AWAITED)
    with session_scope() as session:
        return {video: number or 0 for video, number in session.execute(edited)}


def read_caption_edits() -> dict[str, int]:
    """Read the number of caption edits in each domain."""
    with session_scope() as session:
        edits = select(Task.id, Task.caption_edits).where(Task.caption_edits > 0)
        return dict(session.execute(edits).all())


def replace_moments(session: Session, task_id: str, spans: Mapping[int, Sequence[Span]]) -> None:
    """Replace all moments of a task, given by their video's vector ID in order of time."""
    video_ids = select(Video.vector_id).where(Video.task_id == task_id)
    session.execute(delete(Moment).where(Moment.video_vector_id.in_(video_ids)))
    rows = [
        {"vector_id": vector_id, "video_vector_id": video, "start_seconds": start, "end_seconds": end}
        for video, moments in spans.items()
        for vector_id, (start, end) in zip(moment_ids(video, len(moments)).tolist(), moments, strict=True)
    ]
    for batch in batches(rows, _MOMENT_ROWS):
        session.execute(insert(Moment), batch)


def delete_moments(session: Session, video: int) -> None:
    """Delete a video's moments, given its vector ID."""
    session.execute(delete(Moment).where(Moment.video_vector_id == video))


def moment_spans(session: Session, video: int) -> list[Span]:
    """Read a video's moments in order of time, given its vector ID."""
    query = select(Moment.start_seconds, Moment.end_seconds).where(Moment.video_vector_id == video)
    return [(start, end) for start, end in session.execute(query.order_by(Moment.vector_id))]


def store_calibration(
    session: Session, task_id: str, release_id: str, generation: int, model: dict[str, Any]
) -> None:
    """Store the confidence model that an append refitted, replacing one from a previous attempt.

    A release never changes, so such a model goes to the catalog, before the manifest lists the append, with the first
    index generation that it applies to. Models for other releases are kept: any may be served again.
    """
    session.execute(delete(Calibration).where(Calibration.task_id == task_id))
    session.add(Calibration(task_id=task_id, release_id=release_id, generation=generation, model=model))


def read_calibration(session: Session, release_id: str, generation: int) -> dict[str, Any] | None:
    """Read a release's newest model for an index generation, but none of an append that did not become ready."""
    return session.scalars(
        select(Calibration.model)
        .join(Task, Task.id == Calibration.task_id)
        .where(
            Calibration.release_id == release_id,
            Calibration.generation <= generation,
            Task.state.not_in([state for state in FINAL_STATES if state != "ready"]),
        )
        .order_by(Calibration.generation.desc(), Calibration.id.desc())
        .limit(1)
    ).one_or_none()
