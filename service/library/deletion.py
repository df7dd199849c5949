"""Delete videos: one, some, or all of a task. Deleted videos are neither found, shown, trained on nor evaluated.

A deletion runs in this order, with the index and the task's row locked::

    tombstones in the index ─▶ rows of the catalog ─▶ commit ─▶ files

If a process is killed before the commit, repeating the request finishes the deletion. The transaction stores which
files to delete, and a worker's maintenance deletes those left by a killed process or an error
(``service.storage.video_files``). No search that starts after the commit shows the video, also on servers that have not
read the tombstones yet: a deletion counts as an edit, and searches drop results without a row.

* The row is deleted, with captions, metadata, moments and the events that name the file. An ID may be used again; a
  vector ID never is.
* The library's own files are deleted: thumbnail, frame cache, and the video itself if it was uploaded. A file below the
  media root belongs to its owner and stays.
* Vectors of video and moments stay in the immutable shard until the task is compacted. What releases have learned
  cannot be removed, nor can existing backups be changed.
* A worker that trains the task skips the video: it is not embedded, or is published with a tombstone.
* A learned task without videos keeps its position, since later releases build on it, but its column of the recall
  matrix is deleted. Once compacted, it has an empty shard. A task deleted as a whole gives up its name and refuses
  appends.

Compaction rewrites shards without the vectors of deleted videos, and then word files without their texts
(:func:`service.search.library_words.write_words`). The sweeps delete the replaced files later.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Row, delete, exists, select, update
from sqlalchemy.orm import Session

from cinestrata_schemas.domain_names import MAX_NAME_CHARS
from cinestrata_schemas.videos import DeletionResult
from index.errors import ShardStoreError
from index.files.manifest_format import Manifest, task_of
from index.shard_store import ShardStore
from service.access.audit_log import MAX_LISTED_IDS, record_change
from service.catalog.database import id_chunks, now, session_scope
from service.catalog.domain_videos import count_edit, count_task_videos
from service.catalog.tables import ACTIVE_STATES, LEARNING_STATES, Event, Recall, Shard, Task, Video
from service.catalog.task_names import find_task
from service.core.errors import Conflict, NotFound, Unavailable
from service.core.settings import settings
from service.storage import index_manifest
from service.storage.index_manifest import index_lock, library_store, unavailable_if_failing
from service.storage.video_files import delete_unneeded_frames, register_removals, remove_deleted_files
from service.tasks.lifecycle.publishing import settle_upgrade
from service.tasks.lifecycle.state_machine import is_published, lock_task, record

_IDS = select(Video.vector_id, Video.id)
_ABANDONED_SECONDS = 3600
_LOCK_SECONDS = 1.0  # short, because the maintenance thread also reports its worker's health


def delete_videos(video_ids: Iterable[str], *, task_id: str | None = None) -> DeletionResult:
    """Delete videos, of one task with ``task_id``. Idempotent; raise NotFound for a task, Unavailable to repeat it."""
    wanted = list(dict.fromkeys(video_ids))
    with session_scope() as session:
        if task_id is not None and session.get(Task, task_id) is None:
            raise NotFound(f"There is no task {task_id!r}.")
    deleted: set[str] = set()
    # Publishing an append or a relearned domain moves videos to another task: look for them there again.
    while by_task := _find_tasks([video for video in wanted if video not in deleted], task_id):
        for task, videos in by_task.items():
            deleted.update(_delete(task, list(videos)))
        _delete_copies([vector_id for videos in by_task.values() for vector_id in videos.values()])
    _delete_files(wanted)
    return DeletionResult(
        deleted=[video for video in wanted if video in deleted],
        not_found=[video for video in wanted if video not in deleted],
    )


def _find_tasks(video_ids: Sequence[str], task_id: str | None) -> dict[str, dict[str, int]]:
    """Look up existing videos' vector IDs by task and video ID; with ``task_id``, only that task's videos."""
    by_task: dict[str, dict[str, int]] = {}
    with session_scope() as session:
        for chunk in id_chunks(video_ids):
            rows = session.execute(
                select(Video.id, Video.task_id, Video.vector_id).where(Video.id.in_(chunk))
            )
            for video, task, vector_id in rows:
                if task_id in (None, task):
                    by_task.setdefault(task, {})[video] = vector_id
    return by_task


def delete_task(task_id: str) -> DeletionResult:
    """Delete all videos of a task, and the task itself if it was never published; raise NotFound.

    Repeating the call finishes an interrupted deletion. Raises Conflict if the task is unfinished.
    """
    with index_lock(), session_scope(write=True) as session:
        task = lock_task(session, task_id)
        if task.state in ACTIVE_STATES:
            raise Conflict(f"Task {task_id} is {task.state}; cancel it, then delete it.")
        videos = session.execute(_IDS.where(Video.task_id == task_id).order_by(Video.vector_id)).all()
        originals = [video.vector_id for video in videos]
        gone = _remove(session, task, videos, whole=True)
        with unavailable_if_failing(f"The previous shard of task {task_id} can't be deleted"):
            library_store(settings()).accept_upgrade(task_id)
        settle_upgrade(session, task_id, "accepted")
        if gone or task.deleted_at is None:
            record_change(session, "task.delete", task.id, {"name": task.name, "videos": len(gone)})
        # A ready append's folder holds the uploaded files of videos that belong to the domain now.
        is_finished_append = task.target_id is not None and task.state == "ready"
        if is_finished_append:
            pass
        elif task.learned_order is None and not is_published(session, task):
            session.delete(task)
        elif task.deleted_at is None:
            task.deleted_at = now(session)
            suffix = f" (deleted {task.id})"  # the name is free again
            task.slug = None
            task.name = task.name[: MAX_NAME_CHARS - len(suffix)] + suffix
    # Checkpoints of a failed or cancelled attempt.
    shutil.rmtree(settings().checkpoints_dir / task_id, ignore_errors=True)
    _delete_copies(originals)
    _delete_files(gone)
    if not is_finished_append:
        manifest = index_manifest.read_manifest()
        # If the shard's files were damaged, an empty one has replaced it.
        update_shard_rows(manifest, {task_id} & manifest.shards.keys(), "shard.empty")
    return DeletionResult(deleted=gone, not_found=[])


def _delete_copies(originals: Sequence[int]) -> None:
    """Delete the copies of deleted videos in domains that are relearning them."""
    with session_scope() as session:
        copies = [
            video
            for chunk in id_chunks(originals)
            for video in session.scalars(select(Video.id).where(Video.copy_of.in_(chunk)))
        ]
    for task, videos in _find_tasks(copies, None).items():
        _delete(task, list(videos))


def _delete(task_id: str, video_ids: Sequence[str]) -> list[str]:
    """Delete a task's videos, and return the IDs of those that existed."""
    with index_lock(), session_scope(write=True) as session:
        task = lock_task(session, task_id)
        videos = [
            video
            for chunk in id_chunks(video_ids)
            for video in session.execute(_IDS.where(Video.id.in_(chunk), Video.task_id == task_id))
        ]
        gone = _remove(session, task, videos)
        if gone:
            details = {"videos": gone[:MAX_LISTED_IDS], "number": len(gone)}
            record_change(session, "video.delete", task.id, details)
        return gone


def _remove(
    session: Session, task: Task, videos: Sequence[Row[int, str]], *, whole: bool = False
) -> list[str]:
    """Delete videos of a locked task; ``whole`` if they are all of its videos."""
    if not videos:
        return []
    # An append's vectors are in its domain's shard once it is published.
    shard, whole_shard = task.target_id or task.id, whole and task.target_id is None
    _add_tombstones(shard, [video.vector_id for video in videos], whole=whole_shard)
    gone = [video.id for video in videos]
    for condition in [Video.task_id == task.id] if whole else map(Video.id.in_, id_chunks(gone)):
        register_removals(session, condition)
        session.execute(delete(Video).where(condition).execution_options(synchronize_session=False))
    _delete_events(session, task.id, set(gone))
    task.counts = count_task_videos(session, task.id)
    if not task.counts["accepted"]:
        session.execute(delete(Recall).where(Recall.task_order == task.learned_order))
    record(session, task.id, "log", {"message": f"{len(gone)} videos were deleted.", "deleted": len(gone)})
    count_edit(session, shard, [], captions=False, metadata=True)
    return gone


def _delete_files(video_ids: Iterable[str]) -> None:
    """Delete the files of deleted videos, including those left by other deletions; raise Unavailable."""
    failed = remove_deleted_files()
    if failed and (error := next((failed[video] for video in video_ids if video in failed), None)):
        raise Unavailable(
            f"The videos are deleted, but one of their files can't be deleted yet ({error}). The service "
            "will try again.",
            30,
        )


def _add_tombstones(task_id: str, vector_ids: Sequence[int], *, whole: bool) -> None:
    store = ShardStore(settings().index_dir)
    problem = f"Nothing of task {task_id} was deleted, because its shard can't be marked"
    with unavailable_if_failing(problem):
        try:
            store.delete(vector_ids, task=task_id)
        except ShardStoreError:  # the shard's IDs are unreadable, but deleting all videos does not need them
            if not whole:
                raise
            store.clear(task_id)


def _delete_events(session: Session, task_id: str, videos: set[str]) -> None:
    events = session.scalars(
        select(Event).where(Event.task_id == task_id, Event.kind.in_(("rejected", "log")))
    )
    for event in events:
        if event.data.get("video_id") in videos:
            session.delete(event)
    session.flush()


@dataclass(frozen=True)
class StorageUsage:
    """What a task occupies in the index: vectors including deleted ones, and bytes of segments and tombstones."""

    task_id: str
    name: str
    vectors: int
    deleted: int
    shards: int  # more than one after a partial upgrade
    segments: int
    bytes: int

    @property
    def is_compactable(self) -> bool:
        """Whether compaction would change the shard."""
        return self.deleted > 0 or self.segments > self.shards


def storage_usage(task: str | None = None) -> list[StorageUsage]:
    """Measure the storage of each task, or of one by ID or name (raise NotFound), in learned order."""
    manifest = index_manifest.read_manifest()
    with session_scope() as session:
        if task is None:
            names = dict(session.execute(select(Task.id, Task.name)).all())
        else:
            named = find_task(session, task)
            names = {named.id: named.name} if named else {}
    chosen = [name for name in manifest.shards if task_of(name) == name and (task is None or name in names)]
    if task is not None and not chosen:
        raise NotFound(f"No task {task!r} has a shard.")
    return [_storage_usage(manifest, task_id, names.get(task_id, task_id)) for task_id in chosen]


def compact(task_id: str) -> StorageUsage:
    """Copy a task's remaining vectors into one new segment, without affecting searches; raise NotFound.

    A task without vectors keeps an empty shard and its position. Processes may still be reading the replaced segments,
    so these stay for an hour, until the next :func:`sweep_index`. An interrupted compaction can be repeated.
    """
    (before,) = storage_usage(task_id)
    with unavailable_if_failing(f"Task {before.name!r} can't be compacted"):
        manifest = library_store(settings()).compact(before.task_id)
    # Also when repeated: the previous process may have died just before this line.
    update_shard_rows(manifest, [before.task_id], "shard.compact")
    return _storage_usage(manifest, before.task_id, before.name)


def sweep_index() -> bool:
    """Delete files that the index has not referred to for an hour; False while another writer holds its lock.

    Nothing is deleted during training, because its worker reads the snapshot that it started with.
    """
    with session_scope() as session:
        if session.scalar(select(exists().where(Task.state.in_(LEARNING_STATES)))):
            return True
    try:
        # Version 1.0.0 kept vectors of captions in it.
        (settings().index_dir / "ledger.npz").unlink(missing_ok=True)
        library_store(settings()).collect_garbage(_LOCK_SECONDS)
    except TimeoutError:
        return False
    except (ShardStoreError, OSError) as error:
        raise Unavailable(f"Unused index files can't be deleted: {error}", 30) from error
    return True


def sweep_frame_caches() -> int:
    """Delete frame caches older than an hour that no unfinished task needs, and return how many.

    A worker deletes its task's frame caches when the task is ready. Others are left by failed and cancelled tasks,
    rejected copies and killed workers.
    """
    old = {path.stem for path in settings().cache_dir.glob("*/*.npy") if _is_old(path)}
    with unavailable_if_failing("Unused frame caches can't be deleted"):
        return delete_unneeded_frames(old)


def sweep_orphan_thumbnails() -> None:
    """Delete thumbnails older than an hour that belong to no video, as killed processes leave them. Lists all files."""
    thumbnails = [path for path in settings().thumbnails_dir.glob("*.jpg") if _is_old(path)]
    # Queried after the listing, so that new videos' files are not taken for orphans.
    with session_scope() as session:
        videos = set(session.scalars(select(Video.id)))
    for path in thumbnails:
        if path.stem not in videos:
            path.unlink(missing_ok=True)


def _is_old(path: Path) -> bool:
    try:
        return path.stat().st_mtime < time.time() - _ABANDONED_SECONDS
    except FileNotFoundError:  # deleted by another process
        return False


def update_shard_rows(manifest: Manifest, tasks: Iterable[str], action: str) -> None:
    """Update the catalog rows of tasks' rewritten shards, with an audit log entry for each. Idempotent."""
    with session_scope(write=True) as session:
        for task in tasks:
            shard = manifest.shards[task]
            is_previous = (Shard.task_id == task) & (Shard.id != shard.id)
            previous = session.execute(
                select(Shard.id, Shard.count, Shard.bytes).where(is_previous).with_for_update()
            ).one_or_none()
            if previous is None:
                continue
            session.execute(
                update(Shard).where(is_previous).values(id=shard.id, count=shard.count, bytes=shard.bytes)
            )
            facts = {
                "shard": shard.id,
                "before": previous.id,
                "store": shard.place or "folder",
                "vectors": shard.count,
                "bytes": shard.bytes,
                "bytes_before": previous.bytes,
            }
            record_change(session, action, task, facts)


def _storage_usage(manifest: Manifest, task_id: str, name: str) -> StorageUsage:
    keys = manifest.keys_of(task_id)
    segments = [segment for key in keys for segment in manifest.segments(key)]
    tombstones = [manifest.tombstones[key] for key in keys if key in manifest.tombstones]
    return StorageUsage(
        task_id=task_id,
        name=name,
        vectors=sum(segment.count for segment in segments),
        deleted=sum(map(manifest.deleted_count, keys)),
        shards=len(keys),
        segments=len(segments),
        bytes=sum(segment.bytes for segment in segments) + sum(entry.bytes for entry in tombstones),
    )
