"""Deletion of the files of videos: uploads, thumbnails and frame caches.

Only jobs of the task itself read the frame caches of its videos: the learning job and the append job. A retry and a
relearned domain decode their videos again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence, Set
from contextlib import suppress
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from media.errors import MediaError
from service.catalog.database import id_chunks, session_scope
from service.catalog.tables import ACTIVE_STATES, Task, Video
from service.core.settings import settings
from service.storage import library_paths

__all__ = ["delete_unneeded_frames", "delete_video_files"]


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


def delete_video_files(session: Session, deleted: Sequence[tuple[str, str, str | None]]) -> None:
    """Delete the files of deleted videos that belong to the library and to no other video.

    Args:
        session: Transaction in which the rows of the videos are deleted.
        deleted: Id, URI and content hash of each deleted video.
    """
    contents = [content for _, _, content in deleted if content]
    uploads = [uri for _, uri, _ in deleted if uri.startswith(library_paths.UPLOAD_SCHEME)]
    needed = {
        value
        for chunk in id_chunks(contents)
        for value in session.scalars(select(Video.content_hash).where(Video.content_hash.in_(chunk)))
    }
    needed |= _used_uploads(session, set(uploads))
    for video, _, _ in deleted:
        library_paths.thumbnail_path(video).unlink(missing_ok=True)
    _delete_frames(content for content in contents if content not in needed)
    for uri in uploads:
        if uri not in needed:
            with suppress(MediaError):  # deleted already, or outside the uploads folder
                path = library_paths.resolve_video_path(uri)
                path.unlink(missing_ok=True)
                _drop_empty(path.parent)


def _used_uploads(session: Session, uris: Set[str]) -> set[str]:
    """Return those of the URIs of uploads that videos have."""
    if not uris:
        return set()
    # The URI has no index: one pass over all videos, while the transaction locks out other writers of SQLite.
    stored = session.scalars(
        select(Video.uri)
        .where(Video.uri.startswith(library_paths.UPLOAD_SCHEME))
        .execution_options(yield_per=10_000)
    )
    return {uri for uri in stored if uri in uris}


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
