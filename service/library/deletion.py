"""Deleting videos, one, some, or all of a task: nothing of them is found, shown, learned from or measured any more.

A deletion goes from what is found to what it is known by, and all of it holds the task's row::

    tombstones in the index ─▶ rows of the catalog ─▶ files of ours ─▶ commit

Killed at any line it has left the video's row, so it can be repeated, and the repetition finishes it. Once it has
returned, no process shows the video: search leaves out what the catalog does not know, so that servers which have not
seen the tombstones yet, and lists that were begun before, do not show it either.

* The row goes, with captions, metadata, moments and the events that name the file. An id can be given anew; a vector id
  never.
* Files of ours go: thumbnail, sampled frames, the file itself where it was uploaded. A file below the media root is its
  owner's, and stays.
* What a process remembers of captions is held against the catalog before it describes another video with one.
* The vector stays in its shard, which never changes, until the task is compacted; nobody is given it, nor those of its
  moments. What releases have learned from a video cannot be taken out of them, nor can snapshots that were made before.
* A worker that is learning the task drops the video where it comes to it: it is not embedded, or is published deleted.
* The recall matrix keeps the rows that were measured with the video; later rows have a smaller gallery. What the worker
  had counted goes (it holds query vectors of captions), and is counted anew with the next task.
* A learned task of which nothing is left stays in its place, for later releases are built on what it taught; its
  column of the matrix goes. Compacted, it has an empty shard.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from index.errors import ShardStoreError
from index.shard_store import ShardStore
from service.catalog.database import id_chunks, session_scope
from service.catalog.tables import ACTIVE_STATES, Event, Recall, Task, Video
from service.core.errors import Conflict, NotFound, Unavailable
from service.core.schemas import DeletionResult, VideoCounts
from service.core.settings import settings
from service.library.compaction import update_shard_rows
from service.storage import index_manifest, library_paths
from service.storage.video_files import delete_video_files
from service.tasks.lifecycle.state_machine import locked
from service.tasks.task_events import record

__all__ = ["delete_task", "delete_videos"]


def delete_videos(video_ids: Iterable[str], *, task_id: str | None = None) -> DeletionResult:
    """Delete videos. Twice is like once.

    Args:
        task_id: leave out those of other tasks.

    Raises:
        NotFound: there is no such task.
        Unavailable: the index or the catalog cannot be written, or a file cannot be removed; what was not reported
            deleted can be sent again.
    """
    wanted = list(dict.fromkeys(video_ids))
    by_task: dict[str, list[str]] = {}
    with session_scope() as session:
        if task_id is not None and session.get(Task, task_id) is None:
            raise NotFound(f"There is no task {task_id!r}.")
        for chunk in id_chunks(wanted):
            for video, task in session.execute(select(Video.id, Video.task_id).where(Video.id.in_(chunk))):
                if task_id in (None, task):
                    by_task.setdefault(task, []).append(video)
    deleted = {video for task, videos in by_task.items() for video in _delete(task, videos)}
    return DeletionResult(
        deleted=[video for video in wanted if video in deleted],
        not_found=[video for video in wanted if video not in deleted],
    )


def delete_task(task_id: str) -> DeletionResult:
    """Delete all videos of a task, and the task too where it was never laid down. What a kill left is finished by a
    repetition.

    Raises:
        NotFound: there is no such task, or not any more.
        Conflict: a worker is at it, or will be.
        Unavailable: as for :func:`delete_videos`.
    """
    with session_scope(write=True) as session:
        task = locked(session, task_id)
        if task.state in ACTIVE_STATES:
            raise Conflict(f"Task {task_id} is {task.state}; cancel it, then delete it.")
        own = select(Video).where(Video.task_id == task_id).order_by(Video.vector_id)
        gone = _remove(session, task, session.scalars(own).all(), whole=True)
        # An attempt that failed, or was cancelled, left them.
        shutil.rmtree(settings().checkpoints_dir / task_id, ignore_errors=True)
        if task.learned_order is None and not index_manifest.is_published(task_id):
            session.delete(task)
    manifest = index_manifest.read_manifest()
    update_shard_rows(
        manifest, {task_id} & manifest.shards.keys()
    )  # it was emptied, if its files were damaged
    return DeletionResult(deleted=gone, not_found=[])


def _delete(task_id: str, video_ids: Sequence[str]) -> list[str]:
    """Those of a task that were there."""
    with session_scope(write=True) as session:
        task = locked(session, task_id)
        videos = [
            video
            for chunk in id_chunks(video_ids)
            for video in session.scalars(select(Video).where(Video.id.in_(chunk), Video.task_id == task_id))
        ]
        return _remove(session, task, videos)


def _remove(session: Session, task: Task, videos: Sequence[Video], *, whole: bool = False) -> list[str]:
    """Videos of a locked task; with ``whole`` they are all that it has."""
    if not videos:
        return []
    _bury(task.id, [video.vector_id for video in videos], whole=whole)
    files = [(video.id, video.uri, video.content_hash) for video in videos]
    gone = [video.id for video in videos]
    for chunk in id_chunks(gone):
        session.execute(delete(Video).where(Video.id.in_(chunk)))
    try:
        library_paths.recall_cache_path().unlink(missing_ok=True)
        delete_video_files(session, files)
    except OSError as error:
        raise Unavailable(f"A file of task {task.id} cannot be removed: {error}", 30) from error
    _forget_events(session, task.id, set(gone))
    task.counts = _counted(session, task.id)
    if not task.counts["accepted"]:
        session.execute(delete(Recall).where(Recall.task_order == task.learned_order))
    record(session, task.id, "log", {"message": f"{len(gone)} videos were deleted.", "deleted": len(gone)})
    return gone


def _bury(task_id: str, vector_ids: Sequence[int], *, whole: bool) -> None:
    if not settings().index_dir.exists():
        return
    store = ShardStore(settings().index_dir)
    try:
        try:
            store.delete(vector_ids, task=task_id)
        except ShardStoreError:  # its ids cannot be read, and where all go they need not be
            if not whole:
                raise
            store.clear(task_id)
    except (ShardStoreError, OSError) as error:
        raise Unavailable(
            f"Nothing was deleted of task {task_id}, for its shard cannot be marked: {error}", 30
        ) from error


def _forget_events(session: Session, task_id: str, videos: set[str]) -> None:
    told = session.scalars(select(Event).where(Event.task_id == task_id, Event.kind.in_(("rejected", "log"))))
    for event in told:
        if event.data.get("video_id") in videos:
            session.delete(event)
    session.flush()


def _counted(session: Session, task_id: str) -> dict[str, int]:
    rows = session.execute(
        select(Video.status, Video.effective_split, func.count())
        .where(Video.task_id == task_id)
        .group_by(Video.status, Video.effective_split)
    ).all()
    return VideoCounts(
        videos=sum(count for _, _, count in rows),
        **{kind: sum(n for status, _, n in rows if status == kind) for kind in ("accepted", "rejected")},
        **{part: sum(n for _, split, n in rows if split == part) for part in ("train", "val", "test")},
    ).model_dump()
