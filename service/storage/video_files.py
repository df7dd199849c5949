"""Deletion of the files of videos: uploads, thumbnails and frame caches.

The transaction that deletes videos stores which files are to be deleted (table ``file_removals``). They are deleted
after its commit, since writers of SQLite wait for each other. The maintenance of a worker continues after a kill.

Only jobs of the task itself read the frame caches of its videos: the learning job and the append job. A retry and a
relearned domain decode their videos again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import structlog
from sqlalchemy import ColumnElement, delete, insert, select
from sqlalchemy.orm import Session

from media.errors import MediaError
from service.catalog.database import id_chunks, session_scope
from service.catalog.tables import ACTIVE_STATES, FileRemoval, Task, Video
from service.core.settings import settings
from service.storage import library_paths

__all__ = ["delete_unneeded_frames", "register_removals", "remove_deleted_files"]

_BATCH = 5000  # deleted videos between two transactions

log = structlog.get_logger(__name__)


def delete_unneeded_frames(contents: Collection[str]) -> int:
    """Delete the frame caches of contents that no video of an unfinished task has. Idempotent.

    A job whose frame cache is deleted before the catalog has the content of its video decodes the video again.

    Args:
        contents: Content hashes of videos.

    Returns:
        Number of deleted files.

    Raises:
        Unavailable: The catalog is unreachable.
        OSError: A file cannot be deleted.
    """
    deleted = 0
    for chunk in id_chunks(sorted(contents)):
        # One query for each chunk: an unfinished task may have stored the same content since the last one.
        query = select(Video.content_hash).join(Task)
        with session_scope() as session:
            needed = set(
                session.scalars(query.where(Video.content_hash.in_(chunk), Task.state.in_(ACTIVE_STATES)))
            )
        deleted += _delete_frames(content for content in chunk if content not in needed)
    return deleted


def register_removals(session: Session, videos: ColumnElement[bool]) -> None:
    """Store that the files of videos are to be deleted, in the transaction that deletes the videos.

    Args:
        session: The transaction, before the rows are deleted.
        videos: Condition of the videos.
    """
    deleted = select(Video.id, Video.uri, Video.content_hash).where(videos)
    session.execute(insert(FileRemoval).from_select(["video_id", "uri", "content_hash"], deleted))


def remove_deleted_files() -> dict[str, str]:
    """Delete the files of deleted videos that belong to the library and to no other video.

    No transaction is open while files are deleted. A repetition continues after a kill.

    Returns:
        Errors of the files that cannot be deleted, by the id of their video. A later call tries again.

    Raises:
        Unavailable: The catalog is unreachable.
    """
    failed: dict[str, str] = {}
    last = 0
    while True:
        with session_scope() as session:
            found = session.scalars(
                select(FileRemoval).where(FileRemoval.id > last).order_by(FileRemoval.id).limit(_BATCH)
            ).all()
            if not found:
                return failed
            last = found[-1].id
            needed = _needed_files(session, FileRemoval.id.between(found[0].id, last))
        caches = list(settings().cache_dir.iterdir()) if settings().cache_dir.is_dir() else []
        removed = []
        for removal in found:
            try:
                _delete_files(removal, needed, caches)
                removed.append(removal.id)
            except OSError as error:
                failed[removal.video_id] = str(error)
        with session_scope(write=True) as session:
            for chunk in id_chunks(removed):
                session.execute(delete(FileRemoval).where(FileRemoval.id.in_(chunk)))
        if failed:
            log.warning("files_not_deleted", videos=len(failed), reason=next(iter(failed.values())))


def _needed_files(session: Session, batch: ColumnElement[bool]) -> set[str]:
    """Return the ids, URIs and contents of a batch of removals that videos of the catalog have."""
    needed: set[str] = set()
    for column, removed in (
        (Video.id, FileRemoval.video_id),  # an id may be used again
        (Video.content_hash, FileRemoval.content_hash),
        (Video.uri, FileRemoval.uri),  # has no index: one pass over the videos for each batch
    ):
        of_batch = select(removed).where(batch, removed.is_not(None))
        if removed is FileRemoval.uri:
            of_batch = of_batch.where(removed.startswith(library_paths.UPLOAD_SCHEME))
            if session.scalars(of_batch.limit(1)).first() is None:
                continue
        needed.update(filter(None, session.scalars(select(column).where(column.in_(of_batch)))))
    return needed


def _delete_files(removal: FileRemoval, needed: Collection[str], caches: Sequence[Path]) -> None:
    if removal.video_id not in needed:
        library_paths.thumbnail_path(removal.video_id).unlink(missing_ok=True)
    if removal.content_hash is not None and removal.content_hash not in needed:
        for folder in caches:
            (folder / f"{removal.content_hash}.npy").unlink(missing_ok=True)
    if removal.uri.startswith(library_paths.UPLOAD_SCHEME) and removal.uri not in needed:
        with suppress(MediaError):  # deleted already, or outside the uploads folder
            path = library_paths.resolve_video_path(removal.uri)
            path.unlink(missing_ok=True)
            _drop_empty(path.parent)


def _delete_frames(contents: Iterable[str]) -> int:
    """Delete the frame caches of contents, in all numbers and sizes of frames; returns their number."""
    caches = settings().cache_dir
    folders = list(caches.iterdir()) if caches.is_dir() else []
    paths = [
        path for content in contents for folder in folders if (path := folder / f"{content}.npy").exists()
    ]
    for path in paths:
        path.unlink(missing_ok=True)
    return len(paths)


def _drop_empty(folder: Path) -> None:
    """Delete empty folders of an upload: their names are user data, too."""
    uploads = settings().uploads_dir.resolve()
    while uploads in folder.parents:
        try:
            folder.rmdir()
        except OSError:  # not empty
            return
        folder = folder.parent
