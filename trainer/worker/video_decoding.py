"""Decode a task's videos during a job: missing frame caches, and moments of long videos."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sqlalchemy import select
from torch import Tensor

from index.arrays import Ids, Vectors
from media import MediaError, VideoDecoder, VideoLimits, content_hash, frame_cache_path, moment_windows
from models.backbones.backbone import Backbone
from service.catalog.domain_videos import drop_moments, replace_moments
from service.catalog.tables import Video
from service.core import request_limits
from service.core.settings import settings
from service.storage.video_access import local_video
from service.tasks.lifecycle import Claim
from trainer.errors import FramesMissing
from trainer.task_data import TaskData, clips_without_frames
from trainer.video_embedding import LongVideo, embed_moments
from trainer.worker.catalog_reader import video_uris

MAX_MOMENTS = 512  # per video; longer videos have longer moments
MOMENT_OVERLAP = 0.5  # share of its length that a moment shares with the next


def restore_task_frames(claim: Claim, task: TaskData, backbone: Backbone) -> None:
    """Decode the task's videos whose frames are missing from the cache or broken; without any, start no decoder.

    Raises:
        FramesMissing: A video is gone, cannot be decoded, or differs from the accepted one.
    """
    uris, cache = video_uris(task.task_id), settings().cache_dir
    frames, size = backbone.spec
    missing = clips_without_frames([clip for clip in task.clips if clip.id in uris], frames, size)
    if not missing:
        return
    total = len(missing)
    with VideoDecoder(VideoLimits(max_bytes=request_limits.MAX_VIDEO_BYTES)) as decoder:
        for number, clip in enumerate(missing):
            claim.progress("decoding", number / total, done=number, total=total)
            try:
                with local_video(uris[clip.id]) as path:
                    if frame_cache_path(cache, frames, size, content_hash(path)) != clip.frames_path:
                        raise FramesMissing(
                            f"video {clip.id!r}: the file differs from the accepted one; restore the accepted file, or "
                            "add the domain again"
                        )
                    clip.frames_path.unlink(missing_ok=True)
                    decoder.decode(path, frames=frames, size=size, name=clip.id, cache=cache)
            except (MediaError, OSError) as error:
                raise FramesMissing(
                    f"video {clip.id!r}: its decoded frames are gone, and it cannot be decoded again: {error}"
                ) from error


def plan_moments(claim: Claim) -> list[tuple[LongVideo, str]]:
    """Divide the task's long videos into moments, and record them in the catalog.

    Returns:
        The videos with moments and their URIs, in vector ID order.
    """
    query = (
        select(Video.id, Video.vector_id, Video.content_hash, Video.duration, Video.uri)
        .where(
            Video.task_id == claim.task.id,
            Video.status == "accepted",
            Video.duration > settings().moment_seconds,
        )
        .order_by(Video.vector_id)
    )
    length, overlap, maximum = settings().moment_seconds, MOMENT_OVERLAP, MAX_MOMENTS
    videos: list[tuple[LongVideo, str]] = []
    with claim.transaction() as session:
        for name, vector_id, content, duration, uri in session.execute(query):
            spans = moment_windows(duration or 0.0, length, overlap, maximum)
            if spans:
                videos.append((LongVideo(name, vector_id, content or "", tuple(spans)), uri))
        replace_moments(session, claim.task.id, {video.vector_id: video.spans for video, _ in videos})
    return videos


def embed_task_moments(
    claim: Claim, encode: Callable[[Tensor], Tensor], backbone: Backbone
) -> Iterator[tuple[Ids, Vectors]]:
    """Plan the moments of the task's long videos, then yield the IDs and vectors ``[n, dim]`` of each video's moments.

    If a video cannot be decoded, its moments are removed from the catalog. A new attempt replaces all moments of the
    previous one, so that the catalog lists exactly the published moments.
    """
    videos = plan_moments(claim)
    uris = {video.vector_id: uri for video, uri in videos}
    total = sum(len(video.spans) for video, _ in videos)

    def skip(video: LongVideo, reason: str) -> None:
        with claim.transaction() as session:
            drop_moments(session, video.vector_id)
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
