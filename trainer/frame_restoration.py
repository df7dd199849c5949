"""Frames that have gone from the cache are decoded again: the cache may be deleted at any time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from media import MediaError, VideoDecoder, VideoLimits, content_hash, frame_cache_path
from trainer.errors import FramesMissing
from trainer.task_data import Clip, clips_without_frames

__all__ = ["restore_frames"]


def restore_frames(
    clips: Sequence[Clip],
    frames: int,
    size: int,
    *,
    cache: Path,
    locate: Callable[[Clip], Path],
    limits: VideoLimits,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Decode what is missing or broken in the frame cache. Without anything to do, nothing is started.

    Args:
        clips: their ``frames_path`` is the place in ``cache`` of the content that was accepted.
        locate: the video file of a clip; may raise MediaError.
        report: called with how many of how many are done, before each.

    Raises:
        FramesMissing: a video is gone, does not decode any more, or is not the one that was accepted.
    """
    lacking = clips_without_frames(clips, frames, size)
    if not lacking:
        return
    with VideoDecoder(limits) as examiner:
        for number, clip in enumerate(lacking):
            report(number, len(lacking))
            try:
                path = locate(clip)
                if frame_cache_path(cache, frames, size, content_hash(path)) != clip.frames_path:
                    raise FramesMissing(
                        f"video {clip.id!r}: the file is not the one that was accepted; put that one back, or post "
                        "the task again"
                    )
                clip.frames_path.unlink(missing_ok=True)
                examiner.decode(path, frames=frames, size=size, name=clip.id, cache=cache)
            except (MediaError, OSError) as error:
                raise FramesMissing(
                    f"video {clip.id!r}: its decoded frames are gone, and it cannot be decoded again: {error}"
                ) from error
