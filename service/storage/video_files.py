"""Delete video files: uploads, thumbnails and frame caches.

The transaction that deletes videos, or ends a task with rejected uploads, stores which files to delete (table
``file_removals``). They are deleted after the commit, because SQLite writers wait for each other. After a kill, a
worker's maintenance continues.

A rejected upload in a ready task needs no file, because it has no vector. In a failed or cancelled task, it needs none
if its content was the reason: a retry would read the same bytes, so the video stays rejected. Where the machine may be
the cause, the file stays for the retry.

Only the task's own jobs (learning and append) read its frame caches. A retry or a relearned domain decodes the videos
again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

import structlog
from sqlalchemy import ColumnElement, delete, insert, or_, select
from sqlalchemy.orm import Session

from media.errors import MediaError
from service.catalog.database import id_chunks, session_scope
from service.catalog.tables import ACTIVE_STATES, FileRemoval, Task, Video
from service.core.settings import settings
from service.storage import library_files
from service.storage.library_files import UPLOAD_FOLDER, UPLOAD_SCHEME

_BATCH = 5000  # deleted videos between two transactions
_FOLDER_PREFIX = "tsk_"  # of upload folders

log = structlog.get_logger(__name__)


def delete_unneeded_frames(contents: Collection[str]) -> int:
    """Delete the frame caches of contents (hashes) that no unfinished task processes, and return how many.

    If a cache is deleted before the catalog has its video's content, the job decodes the video again. Idempotent.
    """
    deleted = 0
    for chunk in id_chunks(sorted(contents)):
        # One query per chunk: an unfinished task may have stored the same content since the last one.
        query = select(Video.content_hash).join(
            Task, (Task.id == Video.task_id) | (Task.upgrades & (Task.target_id == Video.task_id))
        )
        with session_scope() as session:
            needed = set(
                session.scalars(query.where(Video.content_hash.in_(chunk), Task.state.in_(ACTIVE_STATES)))
            )
        folders = _frame_folders()
        deleted += sum(_delete_frames(folders, content) for content in chunk if content not in needed)
    return deleted


def register_removals(session: Session, videos: ColumnElement[bool]) -> None:
    """Schedule videos' files for deletion, in the transaction that deletes the videos, before their rows are gone."""
    deleted = select(Video.id, Video.uri, Video.content_hash).where(videos)
    session.execute(insert(FileRemoval).from_select(["video_id", "uri", "content_hash"], deleted))


def is_removed_upload() -> ColumnElement[bool]:
    """Build the condition for uploads that were rejected for their content, which a retry cannot read again."""
    return _is_rejected_upload() & Video.is_rejection_final


def _is_rejected_upload() -> ColumnElement[bool]:
    return (Video.status == "rejected") & Video.uri.startswith(UPLOAD_SCHEME, autoescape=True)


def register_rejected_uploads(session: Session, task_id: str) -> None:
    """Schedule an ending task's rejected uploads for deletion, except those that a retry reads. Idempotent."""
    register_removals(session, (Video.task_id == task_id) & _is_rejected_upload())


def remove_deleted_files() -> dict[str, str]:
    """Delete the scheduled files that belong to the library and that no other video needs.

    No transaction is open while files are deleted. After a kill, a repeated call continues. Returns errors by video ID,
    for files that cannot be deleted; a later call tries again.
    """
    failed: dict[str, str] = {}
    last = 0
    while True:
        with session_scope() as session:
            removals = session.scalars(
                select(FileRemoval).where(FileRemoval.id > last).order_by(FileRemoval.id).limit(_BATCH)
            ).all()
            if not removals:
                return failed
            last = removals[-1].id
            batch = FileRemoval.id.between(removals[0].id, last)
            needed = _needed_files(session, batch)
            uploads = _unneeded_uploads(session, batch, removals)
        removed, folders = [], _frame_folders()
        for removal in removals:
            try:
                _delete_files(removal, needed, folders, uploads.get(removal.id))
                removed.append(removal.id)
            except OSError as error:
                failed[removal.video_id] = str(error)
        with session_scope(write=True) as session:
            for chunk in id_chunks(removed):
                session.execute(delete(FileRemoval).where(FileRemoval.id.in_(chunk)))
        if failed:
            log.warning("files_not_deleted", videos=len(failed), reason=next(iter(failed.values())))


def _needed_files(session: Session, batch: ColumnElement[bool]) -> set[str]:
    """Find which IDs and contents in a batch of removals are needed by videos in the catalog."""
    needed: set[str] = set()
    for column, removed in (
        (Video.id, FileRemoval.video_id),  # an ID may be used again
        (Video.content_hash, FileRemoval.content_hash),
    ):
        of_batch = select(removed).where(batch, removed.is_not(None))
        needed.update(
            filter(None, session.scalars(select(column).where(column.in_(of_batch), _needs_files())))
        )
    return needed


def _needs_files() -> ColumnElement[bool]:
    """Build the condition for videos whose files stay: all except rejected ones that no retry reads again."""
    is_ready, is_active = (
        Video.task_id.in_(select(Task.id).where(Task.state.in_(states)))
        for states in (("ready",), ACTIVE_STATES)
    )
    return or_(Video.status != "rejected", is_active, ~is_ready & ~Video.is_rejection_final)


def _unneeded_uploads(
    session: Session, batch: ColumnElement[bool], removals: Sequence[FileRemoval]
) -> dict[int, Path]:
    """Find the uploaded files in a batch of removals that no video needs, by removal ID.

    The uploads are below the default media root, so a video may also name them by path, by ``file://`` URI or through a
    link.
    """
    files = {removal.id: path for removal in removals if (path := _uploaded_file(removal.uri))}
    if not files:
        return {}
    is_upload = Video.uri.startswith(UPLOAD_SCHEME)
    of_batch = select(FileRemoval.uri).where(batch, FileRemoval.uri.startswith(UPLOAD_SCHEME))
    contents = select(FileRemoval.content_hash).where(batch, FileRemoval.content_hash.is_not(None))
    root = settings().uploads_dir.resolve()
    other_names = [
        f"{UPLOAD_SCHEME}{files[removal.id].relative_to(root).as_posix()}"
        for removal in removals
        if removal.id in files and not removal.uri.startswith(UPLOAD_SCHEME)
    ]
    # A rejected video has no content hash. Those that may name its file through a link have as many bytes.
    sizes = set()
    for removal in removals:
        if removal.id in files and removal.content_hash is None:
            with suppress(FileNotFoundError):  # another process is removing it
                sizes.add(files[removal.id].stat().st_size)
    conditions = [
        # URIs have no index: one pass over the videos per batch.
        or_(Video.uri.in_(of_batch), ~is_upload & Video.uri.contains(_FOLDER_PREFIX, autoescape=True)),
        Video.content_hash.in_(contents),  # links, whose names are arbitrary
        *map(Video.uri.in_, id_chunks(other_names)),
        *(~is_upload & Video.bytes.in_(chunk) for chunk in id_chunks(sorted(sizes))),
    ]
    needed = set()
    for condition in conditions:
        for uri in session.scalars(select(Video.uri).where(condition, _needs_files())):
            with suppress(MediaError):
                needed.add(library_files.resolve_video_path(uri))
    return {removal: path for removal, path in files.items() if path not in needed}


def _uploaded_file(uri: str) -> Path | None:
    """Find an upload's file, however its URI is written; None if it is already deleted or belongs to a user."""
    is_upload = uri.startswith(UPLOAD_SCHEME)
    if not is_upload and not UPLOAD_FOLDER.search(uri):
        return None
    root = settings().uploads_dir.resolve()
    try:
        path = library_files.resolve_video_path(uri)
    except MediaError:
        return None
    folder = path.relative_to(root).parts[0] if path.is_relative_to(root) else ""
    is_owned = folder.startswith(_FOLDER_PREFIX) if is_upload else UPLOAD_FOLDER.fullmatch(folder)
    return path if is_owned else None


def _delete_files(
    removal: FileRemoval, needed: Collection[str], folders: Sequence[Path], upload: Path | None
) -> None:
    if removal.video_id not in needed:
        library_files.thumbnail_path(removal.video_id).unlink(missing_ok=True)
    if removal.content_hash is not None and removal.content_hash not in needed:
        _delete_frames(folders, removal.content_hash)
    if upload is not None:
        upload.unlink(missing_ok=True)
        _drop_empty(upload.parent)


def _frame_folders() -> list[Path]:
    """List the folders of frame caches, one for each number and size of frames."""
    return list(settings().cache_dir.iterdir()) if settings().cache_dir.is_dir() else []


def _delete_frames(folders: Sequence[Path], content: str) -> int:
    """Delete the frame caches of a content, and return how many."""
    paths = [path for folder in folders if (path := folder / f"{content}.npy").exists()]
    for path in paths:
        path.unlink(missing_ok=True)
    return len(paths)


def _drop_empty(folder: Path) -> None:
    """Delete an upload's empty folders: their names are user data, too."""
    uploads = settings().uploads_dir.resolve()
    while uploads in folder.parents:
        try:
            folder.rmdir()
        except OSError:  # not empty
            return
        folder = folder.parent
