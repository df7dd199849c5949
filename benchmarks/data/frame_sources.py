"""Decode a video's frames, from a file or a part of it.

Files of published data sets are trusted, so they are decoded without the isolation that uploads need. This module does
not import torch, because many small processes import it.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt

from media import FrameSize, MediaError, VideoLimits, sample_times
from media.media_paths import staged_path
from media.pyav_decoding import fit_picture, open_video

Frames = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class FileFrames:
    """Frames of a video file, or of a part of it in seconds."""

    path: Path
    span: tuple[float, float] | None = None

    @property
    def key(self) -> str:
        """Digest of the file's name, size and modification time, and of the part; the file is not read."""
        stat = self.path.stat()
        parts = (self.path.name, str(stat.st_size), str(stat.st_mtime_ns), repr(self.span))
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]

    def frames(self, count: int, size: FrameSize) -> Frames:
        """Decode ``uint8 [count, H, W, 3]`` at the midpoints of equal intervals of the part; raise MediaError."""
        name = self.path.name
        try:
            with self.path.open("rb") as file, ExitStack() as stack:
                video = open_video(stack, file, self.path.stat().st_size, name, VideoLimits())
                pictures = video.pictures(self._times(video.extent.duration, count))
                return np.stack([fit_picture(picture, size) for picture in pictures])
        except av.FFmpegError as error:
            raise MediaError(f"{name} cannot be decoded ({error.strerror})") from error

    def _times(self, duration: float, count: int) -> list[float]:
        """Choose sample times in the part; it is cut at the end of the file, since annotations are rounded."""
        begin, end = self.span or (0.0, duration)
        begin = min(begin, duration)
        return [begin + time for time in sample_times(max(min(end, duration) - begin, 0.0), count)]


def write_frames(work: tuple[FileFrames, Path], count: int, size: FrameSize) -> str:
    """Write a video's frames to a ``.npy`` file atomically; returns the error, or an empty string."""
    frame_source, path = work
    try:
        frames = frame_source.frames(count, size)
    except (MediaError, OSError) as error:
        return str(error)
    staged = staged_path(path, os.getpid())
    try:
        np.save(staged, frames, allow_pickle=False)
        staged.replace(path)
    finally:
        staged.unlink(missing_ok=True)
    return ""
