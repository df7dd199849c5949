"""List videos in keyset pages; look up details, files and URLs of single videos."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from cinestrata_schemas.videos import Cue, VideoDetails, VideoMoment, VideoPage, VideoSummary
from media import MediaError
from service.catalog.database import session_scope
from service.catalog.domain_videos import in_domain, moment_spans, read_transcript, splits_of
from service.catalog.keyset_paging import KeysetOrders, contains_text
from service.catalog.tables import Task, Video, to_response
from service.catalog.task_names import require_task
from service.core.errors import NotFound
from service.core.settings import settings
from service.storage import library_files

_ORDERS = KeysetOrders(
    {"added": Video.vector_id, "id": Video.id, "duration": Video.duration, "bytes": Video.bytes},
    unique=Video.vector_id,
)


def list_videos(
    task: str | None = None,
    *,
    status: str | None = None,
    split: str | None = None,
    text: str | None = None,
    sort: str = "added",
    cursor: str | None = None,
    limit: int = 100,
) -> VideoPage:
    """List a page of videos, by the parameters of ``GET /videos``; raise NotFound for an unknown task."""
    query = select(Video)
    if status is not None:
        query = query.where(Video.status == status)
    if split is not None:
        query = query.where(Video.effective_split.in_(splits_of(split)))
    if text:
        query = query.where(contains_text(text, [Video.id, Video.uri, Video.reason], [Video.captions]))
    with session_scope() as session:
        if task is not None:
            query = _of_domain(session, query, task)
        page = _ORDERS.read_page(session, query, sort=sort, cursor=cursor, limit=limit)
        copied = [video.copy_of for video in page.rows if video.copy_of is not None]
        replaced = select(Video.vector_id, Video.id).where(Video.vector_id.in_(copied))
        originals = {vector_id: video for vector_id, video in session.execute(replaced)}
    videos = [
        to_response(VideoSummary, video, **video_links(video), replaces=originals.get(video.copy_of or 0))
        for video in page.rows
    ]
    return VideoPage(videos=videos, next_cursor=page.next_cursor)


def _of_domain(session: Session, query: Select[Any], name_or_id: str) -> Select[Any]:
    """Restrict a query to the videos in a task and in appends to its domain."""
    task_id = require_task(session, name_or_id).id
    appends = select(Task.id).where(Task.target_id == task_id)
    if session.scalars(appends.limit(1)).first() is None:
        return query.where(Video.task_id == task_id)  # rows come in index order
    return query.where(in_domain(task_id))


def get_video(video_id: str) -> VideoDetails:
    """Look up a video's details; raise NotFound."""
    with session_scope() as session:
        return read_video(session, video_id)


def read_video(session: Session, video_id: str) -> VideoDetails:
    """Read a video's details in a session; raise NotFound."""
    row = session.execute(select(Video, Task.name).join(Task).where(Video.id == video_id)).one_or_none()
    if row is None:
        raise _no_video(video_id)
    video, task = row
    return to_response(
        VideoDetails,
        video,
        **video_links(video),
        task=task,
        transcript=[
            Cue.model_construct(start=start, end=end, text=text)
            for start, end, text in read_transcript(session, video.vector_id)
        ],
        moments=[VideoMoment(start=start, end=end) for start, end in moment_spans(session, video.vector_id)],
    )


def video_links(video: Video) -> dict[str, Any]:
    """Name the addresses and the metadata of a video, which its row has under other names."""
    return {
        "metadata": video.extra,
        "thumbnail_url": thumbnail_url(video.id),
        "stream_url": stream_url(video.id),
    }


def thumbnail_url(video_id: str) -> str:
    """Build the URL path of a thumbnail."""
    return f"{settings().root_path}/videos/{video_id}/thumbnail"


def stream_url(video_id: str, moment: VideoMoment | None = None) -> str:
    """Build the URL path of a video's stream; a moment becomes a media fragment, so players play only that part."""
    fragment = f"#t={moment.start:.2f},{moment.end:.2f}" if moment else ""
    return f"{settings().root_path}/videos/{video_id}/stream{fragment}"


def thumbnail_path(video_id: str) -> Path:
    """Find the thumbnail file of a video; raise NotFound, also if it is rejected or not probed yet."""
    video_file(video_id)  # a requested ID becomes a path only if the catalog has it
    path = library_files.thumbnail_path(video_id)
    if not path.is_file() or not path.stat().st_size:  # a power cut may leave an empty file
        raise NotFound(f"Video {video_id!r} has no thumbnail: it hasn't been probed yet, or was rejected.")
    return path


def stream_path(video_id: str) -> Path:
    """Find a video's file; raise NotFound."""
    try:
        return library_files.resolve_video_path(video_file(video_id)[0])
    except (MediaError, OSError) as error:
        raise NotFound(
            f"The file of video {video_id!r} no longer exists, so the video can't be played. An accepted "
            "video stays searchable; a rejected video's upload is removed when its task ends."
        ) from error


def video_file(video_id: str) -> tuple[str, str | None, str | None]:
    """Look up a video's URI in the catalog, which may contain a token, its container and its codec; raise NotFound."""
    query = select(Video.uri, Video.container, Video.codec).where(Video.id == video_id)
    with session_scope() as session:
        row = session.execute(query).one_or_none()
    if row is None:
        raise _no_video(video_id)
    return row.uri, row.container, row.codec


def _no_video(video_id: str) -> NotFound:
    return NotFound(f"There is no video {video_id!r}.")
