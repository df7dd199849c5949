"""Restoration of missing frame caches: the frame cache may be deleted at any time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from media import MediaError, VideoDecoder, VideoLimits, content_hash, frame_cache_path
from trainer.errors import FramesMissing
from trainer.task_data import Clip, clips_without_frames


def restore_frames(
    clips: Sequence[Clip],
    frames: int,
    size: int,
    *,
    cache: Path,
    open_video: Callable[[Clip], AbstractContextManager[Path]],
    limits: VideoLimits,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Decode the videos whose frame cache is missing or broken; without such videos no decoder is started.

    Args:
        clips: Clips whose ``frames_path`` is the place of their accepted content in ``cache``.
        frames: Frames per video.
        size: Height and width of a frame in pixels.
        cache: Folder of the frame cache.
        open_video: Context manager of a clip's video file; may raise MediaError.
        report: Called with the number of restored and of missing videos before each video.

    Raises:
        FramesMissing: A video is gone, cannot be decoded, or differs from the accepted one.
    """
    missing = clips_without_frames(clips, frames, size)
    if not missing:
        return
    with VideoDecoder(limits) as decoder:
        for number, clip in enumerate(missing):
            report(number, len(missing))
            try:
                with open_video(clip) as path:
                    if frame_cache_path(cache, frames, size, content_hash(path)) != clip.frames_path:
                        raise FramesMissing(
                            f"video {clip.id!r}: the file differs from the accepted one; restore that file, or post "
                            "the task again"
                        )
                    clip.frames_path.unlink(missing_ok=True)
                    decoder.decode(path, frames=frames, size=size, name=clip.id, cache=cache)
            except (MediaError, OSError) as error:
                raise FramesMissing(
                    f"video {clip.id!r}: its decoded frames are gone, and it cannot be decoded again: {error}"
                ) from error
