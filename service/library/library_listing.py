"""List tasks, releases, shards and videos in keyset pages; look up details, files and subtitles of single videos."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Select, and_, or_, select, true
from sqlalchemy.orm import Session

from cinestrata_schemas.choice_types import SubtitleFormat, TextSource
from cinestrata_schemas.library import ReleasePage, ReleaseSummary, ShardPage, ShardSummary
from cinestrata_schemas.tasks import TaskDetails
from cinestrata_schemas.videos import Cue, SourceState, VideoDetails, VideoMoment, VideoPage, VideoSummary
from media import MediaError
from service.catalog.database import session_scope
from service.catalog.domain_videos import in_domain, moment_spans, splits_of
from service.catalog.keyset_paging import KeysetOrders, contains_text
from service.catalog.tables import Reading, Release, Shard, Task, Video, to_response
from service.catalog.task_names import read_task_names, require_task
from service.catalog.video_texts import read_texts
from service.core import list_parameters
from service.core.errors import NotFound
from service.core.media_urls import media_urls
from service.core.text_rules import name_key
from service.library.library_status import shard_faults
from service.library.recall_matrix import last_served_order
from service.storage import index_manifest, library_files
from service.storage.index_manifest import published_manifest
from service.tasks.lifecycle.state_machine import learns
from service.tasks.task_storage import task_details

_TASK_ORDERS = KeysetOrders(
    {
        "position": Task.position,
        "name": Task.name_key,
        "created": Task.created_at,
        "learned": Task.learned_order,
    },
    unique=Task.position,
)
_RELEASE_ORDERS = KeysetOrders(
    {"learned": Release.learned_order, "created": Release.created_at, "bytes": Release.bytes},
    unique=Release.learned_order,
)

_SHARD_ORDERS = KeysetOrders(
    {"created": Shard.created_at, "count": Shard.count, "bytes": Shard.bytes}, unique=Shard.id
)
_VIDEO_ORDERS = KeysetOrders(
    {"added": Video.vector_id, "id": Video.id, "duration": Video.duration, "bytes": Video.bytes},
    unique=Video.vector_id,
)
_NO_LIMIT = 2**31  # rows


class TaskPage(NamedTuple):
    """A page of tasks."""

    tasks: list[TaskDetails]
    next_cursor: str | None


def list_tasks(wanted: list_parameters.TaskFilters) -> TaskPage:
    """List a page of tasks, by the parameters of ``GET /tasks``; raise NotFound for an unknown domain."""
    query = select(Task)
    if wanted.state:
        query = query.where(Task.state.in_(wanted.state))
    if wanted.kind is not None:
        kinds = {"domain": Task.target_id.is_(None), "append": ~learns(), "upgrade": Task.upgrades}
        query = query.where(kinds[wanted.kind])
    if wanted.method is not None:
        query = query.where(Task.method == wanted.method)
    if wanted.text:
        words = name_key(wanted.text).split()
        by_name = and_(true(), *(Task.name_key.contains(word, autoescape=True) for word in words))
        named = select(Task.id).where(or_(by_name, contains_text(wanted.text, [Task.id, Task.slug])))
        query = query.where(or_(Task.id.in_(named), Task.target_id.in_(named)))
    with session_scope() as session:
        if wanted.searched is not None:
            query = query.where(_is_searched(session) if wanted.searched else ~_is_searched(session))
        if wanted.into is not None:
            query = query.where(Task.target_id == require_task(session, wanted.into).id)
        page = _TASK_ORDERS.read_page(session, query, wanted.sort, wanted.cursor, wanted.limit or _NO_LIMIT)
        return TaskPage(task_details(session, page.rows), page.next_cursor)


def _is_searched(session: Session) -> ColumnElement[bool]:
    """Build the condition for learned domains that the served release searches."""
    last = last_served_order(session)
    return and_(
        Task.state == "ready",
        Task.learned_order.is_not(None),
        *(() if last is None else (Task.learned_order <= last,)),
    )


def list_releases(wanted: list_parameters.ReleaseFilters) -> ReleasePage:
    """List a page of releases, by the parameters of ``GET /releases``; raise NotFound for an unknown task."""
    served = index_manifest.read_manifest().served
    query = select(Release).filter_by(**wanted.model_dump(include={"kind", "method"}, exclude_none=True))
    if wanted.current is not None:
        query = query.where(Release.id == (served or "") if wanted.current else Release.id != (served or ""))
    with session_scope() as session:
        if wanted.task is not None:
            query = query.where(Release.task_id == require_task(session, wanted.task).id)
        page = _RELEASE_ORDERS.read_page(session, query, wanted.sort, wanted.cursor, wanted.limit)
        names = read_task_names(session, (release.task_id for release in page.rows))
    releases = [
        to_response(
            ReleaseSummary,
            release,
            task=names[release.task_id],
            current=release.id == served,
            calibration_error=(release.metrics or {}).get("calibration_error"),
        )
        for release in page.rows
    ]
    return ReleasePage(releases=releases, next_cursor=page.next_cursor)


def list_shards(wanted: list_parameters.ShardFilters, degraded: Mapping[str, str] | None = None) -> ShardPage:
    """List a page of published shards, by the parameters of ``GET /shards``; ``degraded`` as for the status."""
    manifest, errors = published_manifest()
    query = select(Shard)
    if wanted.text:
        query = query.where(
            Shard.task_id.in_(select(Task.id).where(contains_text(wanted.text, [Task.name, Task.id])))
        )
    with session_scope() as session:
        page = _SHARD_ORDERS.read_page(session, query, wanted.sort, wanted.cursor, wanted.limit)
        names = read_task_names(session, (shard.task_id for shard in page.rows))
    faults = shard_faults(page.rows, manifest, errors) | dict(degraded or {})
    return ShardPage(
        shards=[
            to_response(
                ShardSummary,
                shard,
                task=names[shard.task_id],
                release=shard.release_id,
                deleted=manifest.deleted_count(shard.task_id),
                degraded=faults.get(shard.task_id),
            )
            for shard in page.rows
        ],
        next_cursor=page.next_cursor,
    )


def list_videos(wanted: list_parameters.VideoFilters) -> VideoPage:
    """List a page of videos, by the parameters of ``GET /videos``; raise NotFound for an unknown task."""
    query = select(Video)
    if wanted.status is not None:
        query = query.where(Video.status == wanted.status)
    if wanted.split is not None:
        query = query.where(Video.effective_split.in_(splits_of(wanted.split)))
    if wanted.text:
        query = query.where(contains_text(wanted.text, [Video.id, Video.uri, Video.reason], [Video.captions]))
    with session_scope() as session:
        if wanted.task is not None:
            query = _of_domain(session, query, wanted.task)
        page = _VIDEO_ORDERS.read_page(session, query, wanted.sort, wanted.cursor, wanted.limit)
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
            Cue.model_construct(**cue._asdict(), id=cue.id) for cue in read_texts(session, video.vector_id)
        ],
        readings=[
            to_response(SourceState, row)
            for row in session.scalars(
                select(Reading).where(Reading.video_vector_id == video.vector_id).order_by(Reading.source)
            )
        ],
        moments=[VideoMoment(start=start, end=end) for start, end in moment_spans(session, video.vector_id)],
    )


def video_links(video: Video) -> dict[str, Any]:
    """Name the addresses and the metadata of a video, which its row has under other names."""
    thumbnail, stream = media_urls(video.id)
    return {"metadata": video.extra, "thumbnail_url": thumbnail, "stream_url": stream}


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


def write_subtitles(video_id: str, form: SubtitleFormat, sources: Collection[TextSource]) -> str:
    """Write the texts of some sources, in order of time; raise NotFound. Markup is written as text."""
    mark, header = (",", "") if form == "srt" else (".", "WEBVTT\n\n")
    cues = [cue for cue in get_video(video_id).transcript if cue.source in sources]
    blocks = [
        f"{number}\n{_clock(cue.start, mark)} --> {_clock(cue.end, mark)}\n{_escape(cue.text, form)}\n\n"
        for number, cue in enumerate(cues, 1)
    ]
    return header + "".join(blocks)


def _clock(seconds: float, mark: str) -> str:
    millis = round(seconds * 1000)
    hours, minutes, rest = millis // 3_600_000, millis // 60_000 % 60, millis % 60_000
    return f"{hours:02}:{minutes:02}:{rest // 1000:02}{mark}{rest % 1000:03}"


def _escape(text: str, form: SubtitleFormat) -> str:
    if form == "srt":  # which has no escapes: the arrow alone would begin another cue
        return text.replace("-->", "->")
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
