"""The files that belong to videos: uploads, thumbnails and cached frames."""

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


def delete_video_files(session: Session, gone: Sequence[tuple[str, str, str | None]]) -> None:
    """Remove the files of videos that are ours, and no other video's.

    Args:
        gone: id, URI and content hash of videos without a row.
    """
    contents = [content for _, _, content in gone if content]
    uploads = [uri for _, uri, _ in gone if uri.startswith(library_paths.UPLOAD_SCHEME)]
    # No index is on either: one look for many.
    needed = {
        value
        for column, values in ((Video.content_hash, contents), (Video.uri, uploads))
        for chunk in id_chunks(values)
        for value in session.scalars(select(column).where(column.in_(chunk)))
    }
    for video, _, _ in gone:
        library_paths.thumbnail_path(video).unlink(missing_ok=True)
    for content in contents:
        for path in settings().cache_dir.glob(f"*/{content}.npy") if content not in needed else ():
            path.unlink(missing_ok=True)
    for uri in uploads:
        if uri not in needed:
            with suppress(MediaError):  # it is gone already, or names nothing of ours
                path = library_paths.resolve_video_path(uri)
                path.unlink(missing_ok=True)
                _drop_empty(path.parent)


def _drop_empty(folder: Path) -> None:
    """Remove the folders of an upload of which nothing is left: their names are the user's too."""
    uploads = settings().uploads_dir.resolve()
    while uploads in folder.parents:
        try:
            folder.rmdir()
        except OSError:  # something is in it
            return
        folder = folder.parent
