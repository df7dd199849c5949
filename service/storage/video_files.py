"""Deletion of the files of videos: uploads, thumbnails and frame caches."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from media.errors import MediaError
from service.catalog.database import id_chunks
from service.catalog.tables import Video
from service.core.settings import settings
from service.storage import library_paths

__all__ = ["delete_video_files"]


def delete_video_files(session: Session, deleted: Sequence[tuple[str, str, str | None]]) -> None:
    """Delete the files of deleted videos that belong to the library and to no other video.

    Args:
        session: Transaction in which the rows of the videos are deleted.
        deleted: Id, URI and content hash of each deleted video.
    """
    contents = [content for _, _, content in deleted if content]
    uploads = [uri for _, uri, _ in deleted if uri.startswith(library_paths.UPLOAD_SCHEME)]
    # Neither column has an index, so one query covers many values.
    needed = {
        value
        for column, values in ((Video.content_hash, contents), (Video.uri, uploads))
        for chunk in id_chunks(values)
        for value in session.scalars(select(column).where(column.in_(chunk)))
    }
    for video, _, _ in deleted:
        library_paths.thumbnail_path(video).unlink(missing_ok=True)
    for content in contents:
        for path in settings().cache_dir.glob(f"*/{content}.npy") if content not in needed else ():
            path.unlink(missing_ok=True)
    for uri in uploads:
        if uri not in needed:
            with suppress(MediaError):  # deleted already, or outside the uploads folder
                path = library_paths.resolve_video_path(uri)
                path.unlink(missing_ok=True)
                _drop_empty(path.parent)


def _drop_empty(folder: Path) -> None:
    """Delete empty folders of an upload: their names are user data, too."""
    uploads = settings().uploads_dir.resolve()
    while uploads in folder.parents:
        try:
            folder.rmdir()
        except OSError:  # not empty
            return
        folder = folder.parent
