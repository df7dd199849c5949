"""The videos of tasks, for the jobs: rows, captions and vector IDs, missing frames, and moments of long videos."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
from sqlalchemy import ColumnElement, case, func, select
from torch import Tensor

from cinestrata_schemas.choice_types import LEARNED_SPLITS
from index.arrays import Ids, Vectors
from media import MediaError, VideoDecoder, VideoLimits, content_hash, frame_cache_path, moment_windows
from models.backbones.backbone import Backbone
from service.catalog.database import id_chunks, session_scope
from service.catalog.domain_videos import delete_moments, moment_spans, replace_moments
from service.catalog.tables import Moment, Task, Video
from service.core import request_limits
from service.core.errors import DomainChanged
from service.core.settings import settings
from service.search.catalog_texts import read_positive_texts
from service.storage.library_files import check_video_uri, local_video
from service.tasks.lifecycle import Claim
from trainer.errors import FramesMissing
from trainer.evaluation.confidence_fitting import MAX_CAPTIONS
from trainer.published_library import Library
from trainer.release_calibration import AppendedCaptions, LibraryCaptions
from trainer.task_data import Clip, TaskData, clips_without_frames, draw_sample
from trainer.task_pipeline import HeldOutVideos
from trainer.video_embedding import LongVideo, embed_moments

MAX_TASK_QUERIES = 2000  # in an evaluation; bounds the standard error of a recall by 1.1 %

_Item = TypeVar("_Item")
_IS_DERIVED = func.coalesce(Task.held_out, "") == "derived"  # whether the test split is


def load_task(claim: Claim, backbone: Backbone) -> TaskData:
    """Load the accepted videos of a claimed task, for an upgrade its domain's, with a backbone's frames, by ID."""
    domain, upgrades = claim.task.learned_id, claim.task.upgrades
    with session_scope() as session:
        name = session.scalars(select(Task.name).where(Task.id == domain)).one()
    return TaskData(domain, name, load_clips(domain, backbone, upgrades=upgrades))


def load_clips(
    task_id: str, backbone: Backbone, first_id: int = 0, last_id: int | None = None, *, upgrades: bool = False
) -> tuple[Clip, ...]:
    """Load a task's accepted videos within a range of vector IDs, in ID order.

    Texts that people have confirmed become captions of training videos; those of held-out videos stay unseen.

    Args:
        backbone: Determines the frame files.
        last_id: Last vector ID; None: no limit.
        upgrades: Whether appended videos become training videos.
    """
    frames, size = backbone.spec
    split: ColumnElement[Any] = Video.effective_split.expression
    if upgrades:
        split = case((split == "appended", "train"), else_=split)
    query = (
        select(
            Video.id,
            Video.vector_id,
            Video.copy_of,
            Video.content_hash,
            Video.captions,
            split.label("effective_split"),
        )
        .where(Video.task_id == task_id, Video.status == "accepted", Video.vector_id >= first_id)
        .order_by(Video.vector_id)
    )
    if last_id is not None:
        query = query.where(Video.vector_id <= last_id)
    with session_scope() as session:
        # Columns instead of objects, since a task may have 100,000 videos.
        rows = session.execute(query).all()
        trained = [row.copy_of or row.vector_id for row in rows if row.effective_split in LEARNED_SPLITS]
        confirmed = read_positive_texts(session, trained)
        return tuple(
            Clip(
                id=video,
                vector_id=vector_id,
                frames_path=frame_cache_path(settings().cache_dir, frames, size, content or ""),
                captions=tuple(dict.fromkeys([*captions, *confirmed.get(original or vector_id, ())])),
                split=use,
            )
            for video, vector_id, original, content, captions, use in rows
        )


def remaining_videos(task: TaskData) -> TaskData:
    """Leave out the videos that were deleted since the task was loaded."""
    with session_scope() as session:
        remaining = set(session.scalars(select(Video.vector_id).where(Video.task_id == task.task_id)))
    return TaskData(
        task.task_id, task.name, tuple(clip for clip in task.clips if clip.vector_id in remaining)
    )


@contextmanager
def restarted_without_deleted_videos(task: TaskData) -> Iterator[None]:
    """Give the task back if frames are missing because videos were deleted; the next attempt skips them."""
    try:
        yield
    except FramesMissing as error:
        if len(remaining_videos(task).clips) < len(task.clips):
            raise DomainChanged("Videos of the task were deleted; it starts again without them.") from error
        raise


def training_video_ids(library: Library) -> dict[str, Ids]:
    """Look up the vector IDs of each published task's training videos, by task ID."""
    query = select(Video.task_id, Video.vector_id).where(
        Video.status == "accepted",
        Video.effective_split.in_(LEARNED_SPLITS),
        Video.task_id.in_(library.manifest.shards),
    )
    with session_scope() as session:
        by_task = _by_task(
            (task, vector_id) for task, vector_id in session.execute(query.order_by(Video.vector_id))
        )
    return {task: np.array(ids, np.int64) for task, ids in by_task.items()}


def held_out_videos(task_id: str) -> dict[str, HeldOutVideos]:
    """Read the held-out videos, or the fold, of this task and all learned ones, by task ID."""
    held_out: dict[str, HeldOutVideos] = {}
    for split, limit in (("test", MAX_TASK_QUERIES), ("fold", None)):  # a fold is a sample already
        rows = _captioned_videos(task_id, Video.effective_split == split)
        by_task = _by_task((task, (vector_id, captions)) for task, vector_id, captions in rows)
        held_out |= {task: HeldOutVideos.from_captions(videos, limit) for task, videos in by_task.items()}
    return held_out


def library_captions(
    task: Task, domain: str, tasks: Collection[str], unpublished: str | None = None
) -> LibraryCaptions:
    """Read the captions that calibrate a domain's release, with those of videos appended to ``tasks``.

    Calibration does not use videos that a user holds out, and must not find both a video and its original. The videos
    of an ``unpublished`` append count too, although they do not belong to its domain yet.
    """
    rows = _captioned_videos(domain, (Video.effective_split == "test") & ~_IS_DERIVED)
    by_task = _by_task((held_out, vector_id) for held_out, vector_id, _ in rows)
    if task.relearns_id is not None:
        with session_scope() as session:
            originals = session.scalars(select(Video.copy_of).where(Video.task_id == task.id))
            by_task.setdefault(task.relearns_id, []).extend(filter(None, originals))
    excluded = {held_out: np.array(ids, np.int64) for held_out, ids in by_task.items()}
    return LibraryCaptions(excluded, _unlearned_captions(domain), _appended_captions(tasks, unpublished))


def _unlearned_captions(task_id: str) -> dict[str, list[tuple[int, str]]]:
    """Sample vector IDs and captions of videos that were not learned, by task ID; the size is fixed over all tasks.

    They are validation videos, and test videos that no user has chosen.
    """
    is_derived = (Video.effective_split == "test") & _IS_DERIVED
    videos = _captioned_videos(task_id, (Video.effective_split == "val") | is_derived)
    captions = [(task, vector_id, text) for task, vector_id, texts in videos for text in texts]
    sample = draw_sample(captions, MAX_CAPTIONS)
    return _by_task((task, (vector_id, text)) for task, vector_id, text in sample)


def _appended_captions(tasks: Collection[str], unpublished: str | None) -> dict[str, AppendedCaptions]:
    """Read the captions of training and appended videos, for tasks with appended videos, by task ID."""
    is_appended = (Video.effective_split == "appended") | (Video.task_id == unpublished)
    domain = func.coalesce(Task.target_id, Task.id)
    accepted = select(domain, Video.vector_id, Video.captions).join(Task).where(Video.status == "accepted")
    learned: dict[str, list[str]] = {}
    appended: dict[str, list[tuple[int, str]]] = {}
    with session_scope() as session:
        for task, vector_id, texts in session.execute(accepted.where(is_appended).order_by(Video.vector_id)):
            if task in tasks:
                appended.setdefault(task, []).extend((vector_id, text) for text in texts)
        for chunk in id_chunks([task for task, texts in appended.items() if texts]):
            training = accepted.where(Video.task_id.in_(chunk), Video.effective_split.in_(LEARNED_SPLITS))
            for task, _, texts in session.execute(training):
                learned.setdefault(task, []).extend(texts)
    return {task: AppendedCaptions(learned.get(task, []), texts) for task, texts in appended.items() if texts}


def learned_captions(task_id: str) -> list[str]:
    """Read the captions of a task's training videos."""
    query = select(Video.captions).where(
        Video.task_id == task_id, Video.status == "accepted", Video.effective_split.in_(LEARNED_SPLITS)
    )
    with session_scope() as session:
        return [text for captions in session.scalars(query) for text in captions]


def _by_task(rows: Iterable[tuple[str, _Item]]) -> dict[str, list[_Item]]:
    grouped: dict[str, list[_Item]] = {}
    for task, item in rows:
        grouped.setdefault(task, []).append(item)
    return grouped


def _captioned_videos(task_id: str, condition: ColumnElement[bool]) -> list[tuple[str, int, list[str]]]:
    """Read task ID, vector ID and captions of the videos that fulfill a condition, in a task and all learned tasks."""
    query = (
        select(Video.task_id, Video.vector_id, Video.captions)
        .join(Task)
        .where(Video.status == "accepted", condition, Task.learned_order.is_not(None) | (Task.id == task_id))
        .order_by(Video.vector_id)
    )
    with session_scope() as session:
        return [(task, vector_id, captions) for task, vector_id, captions in session.execute(query)]


MAX_MISSING = 5  # videos named in a message
MAX_MOMENTS = 512  # per video; longer videos have longer moments
MOMENT_OVERLAP = 0.5  # share of its length that a moment shares with the next


def restore_task_frames(claim: Claim, task: TaskData, backbone: Backbone) -> TaskData:
    """Decode the task's videos whose frames are missing from the cache or broken; without any, start no decoder.

    Returns the task, for a partial upgrade without the videos that cannot be decoded. Otherwise, raises FramesMissing
    if a video is gone, cannot be decoded, or differs from the accepted one; of several, the message names the first.
    All files in the media folder are looked up before any is decoded, which may take hours.
    """
    with session_scope() as session:
        query = select(Video.id, Video.uri).where(Video.task_id == task.task_id)
        uris = {video: uri for video, uri in session.execute(query)}
    frames, size = backbone.spec
    cache = settings().cache_dir
    missing = clips_without_frames([clip for clip in task.clips if clip.id in uris], frames, size)
    partial = claim.task.partial
    problems: dict[str, str] = {}  # by video ID
    # The moments of videos whose frames are cached are decoded later.
    for clip in [clip for clip in task.clips if clip.id in uris] if partial else missing:
        try:
            check_video_uri(uris[clip.id])
        except MediaError as error:
            problems[clip.id] = _cannot_decode(clip, error)
    if problems and not partial:
        raise _missing_frames(problems)
    if not (missing := [clip for clip in missing if clip.id not in problems]):
        return _without_clips(task, problems)
    total = len(missing)
    with VideoDecoder(VideoLimits(max_bytes=request_limits.MAX_VIDEO_BYTES)) as decoder:
        for number, clip in enumerate(missing):
            claim.progress("decoding", number / total, done=number, total=total)
            try:
                with local_video(uris[clip.id]) as path:
                    if frame_cache_path(cache, frames, size, content_hash(path)) != clip.frames_path:
                        problems[clip.id] = (
                            f"video {clip.id!r}: the file differs from the accepted one; restore the accepted file, or "
                            "add the domain again"
                        )
                        continue
                    clip.frames_path.unlink(missing_ok=True)
                    decoder.decode(path, frames=frames, size=size, name=clip.id, cache=cache)
            except (MediaError, OSError) as error:
                problems[clip.id] = _cannot_decode(clip, error)
                if partial and not isinstance(error, MediaError | FileNotFoundError):  # such as a full disk
                    raise FramesMissing(problems[clip.id]) from error
            if len(problems) >= MAX_MISSING and not partial:
                break
    if problems and not partial:
        raise _missing_frames(problems)
    return _without_clips(task, problems)


def _without_clips(task: TaskData, videos: Collection[str]) -> TaskData:
    return TaskData(task.task_id, task.name, tuple(clip for clip in task.clips if clip.id not in videos))


def _missing_frames(problems: dict[str, str]) -> FramesMissing:
    """Create the error that names the first videos."""
    reasons = list(problems.values())
    if (others := len(reasons) - MAX_MISSING) > 0:
        reasons[MAX_MISSING:] = [f"the same with {others} other video{'s' if others > 1 else ''}"]
    return FramesMissing("; ".join(reasons))


def _cannot_decode(clip: Clip, error: Exception) -> str:
    return f"video {clip.id!r}: its decoded frames are gone, and it cannot be decoded again: {error}"


def plan_moments(claim: Claim, task: TaskData) -> list[tuple[LongVideo, str]]:
    """Divide a task's long videos into moments, and record them in the catalog; an upgrade keeps its domain's. Returns
    the videos with moments and their URIs, in vector ID order.
    """
    query = (
        select(Video.id, Video.vector_id, Video.content_hash, Video.duration, Video.uri)
        .where(Video.task_id == claim.task.learned_id, Video.status == "accepted")
        .order_by(Video.vector_id)
    )
    if claim.task.upgrades:
        query = query.where(Video.vector_id.in_(select(Moment.video_vector_id)))
    else:
        query = query.where(Video.duration > settings().moment_seconds)
    embedded = {clip.vector_id for clip in task.clips}  # a partial upgrade leaves some where they are
    length, overlap, maximum = settings().moment_seconds, MOMENT_OVERLAP, MAX_MOMENTS
    videos: list[tuple[LongVideo, str]] = []
    with claim.transaction() as session:
        for name, vector_id, content, duration, uri in session.execute(query):
            if claim.task.upgrades:
                spans = moment_spans(session, vector_id) if vector_id in embedded else ()
            else:
                spans = moment_windows(duration or 0.0, length, overlap, maximum)
            if spans:
                videos.append((LongVideo(name, vector_id, content or "", tuple(spans)), uri))
        if not claim.task.upgrades:
            replace_moments(session, claim.task.id, {video.vector_id: video.spans for video, _ in videos})
    return videos


def embed_task_moments(
    claim: Claim, task: TaskData, encode: Callable[[Tensor], Tensor], backbone: Backbone
) -> Iterator[tuple[Ids, Vectors]]:
    """Plan the moments of the task's long videos, then yield the IDs and vectors ``[n, dim]`` of each video's moments.

    If a video cannot be decoded, its moments are removed from the catalog. A new attempt replaces all moments of the
    previous one, so that the catalog lists exactly the published moments. An upgrade keeps the moments of its domain,
    and raises FramesMissing if a video cannot be decoded.
    """
    videos = plan_moments(claim, task)
    uris = {video.vector_id: uri for video, uri in videos}
    total = sum(len(video.spans) for video, _ in videos)

    def skip(video: LongVideo, reason: str) -> None:
        if claim.task.upgrades:
            raise FramesMissing(f"video {video.id!r}: its moments cannot be decoded again: {reason}")
        with claim.transaction() as session:
            delete_moments(session, video.vector_id)
            if session.get(Video, video.vector_id) is None:  # deleted meanwhile: no log entry
                return
        message = f"Video {video.id!r} is searchable as a whole, but not by its moments: {reason}"
        claim.log(message, video_id=video.id)

    if videos:
        yield from embed_moments(
            encode,
            [video for video, _ in videos],
            *backbone.spec,
            open_video=lambda video: local_video(uris[video.vector_id]),
            # One file per claim, since a worker that lost its lease may still write to its own.
            scratch=settings().checkpoints_dir / claim.task.id / f"moments-{claim.token}.npy",
            limits=VideoLimits(max_bytes=request_limits.MAX_VIDEO_BYTES),
            on_skip=skip,
            report=lambda done: claim.progress("moments", done / total, done=done, total=total),
        )
