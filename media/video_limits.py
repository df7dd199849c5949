"""What is known of a video, when it is sampled, and how much of one is accepted."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from media.errors import MediaError

__all__ = ["VideoInfo", "VideoLimits", "moment_windows", "sample_times"]


@dataclass(frozen=True)
class VideoLimits:
    """What a single video may cost."""

    max_bytes: int = 4 * 1024**3
    max_seconds: float = 4 * 3600.0
    max_pixels: int = 8192 * 8192  # of one frame, as stored and as displayed
    timeout_seconds: float = 120.0  # wall time for everything done to it
    memory_bytes: int = 2 * 1024**3  # address space of the child

    def admit(self, path: Path, name: str) -> int:
        """The size of a file in bytes, before any of it is read.

        Args:
            name: what to call it in an error.

        Raises:
            MediaError: it is no file, empty or too large.
            OSError: it is not there, or cannot be looked at.
        """
        if path.exists() and not path.is_file():
            raise MediaError(f"{name} is no file but a folder, pipe or device; give a video file")
        size = path.stat().st_size
        if not size:
            raise MediaError(f"{name} is empty (0 bytes); copy it again")
        if size > self.max_bytes:
            raise MediaError(f"{name} is {size} bytes; at most {self.max_bytes} are accepted; shorten it")
        return size


@dataclass(frozen=True)
class VideoInfo:
    """A video that was decoded.

    Attributes:
        content_hash: SHA-256 of the file, hexadecimal.
        width, height: as displayed: pixels after rotation and aspect ratio.
        fps: mean frames per second; 0 where the file does not say.
        duration: seconds.
        frames: as the container counts them, or as they were found.
    """

    content_hash: str
    bytes: int
    container: str
    codec: str
    width: int
    height: int
    fps: float
    duration: float
    frames: int


def sample_times(duration: float, count: int) -> list[float]:
    """Mid-points of ``count`` equal intervals of ``duration`` seconds, counted from the first frame.

    The sample of a mid-point is the frame on display then: the last one that begins at or before it. So what
    is sampled depends on time alone, and not on how many frames a file spends on it; a video of fewer frames
    than samples repeats them, down to a video of a single frame.
    """
    return [(index + 0.5) / count * duration for index in range(count)]


def moment_windows(duration: float, seconds: float, overlap: float, most: int) -> list[tuple[float, float]]:
    """The moments of a long video: moment_windows of equal length that cover it, each from its start to its end in seconds.

    As many as are needed if none is longer than ``seconds``, and no more than ``most``, which makes them longer. Every
    window shares ``overlap`` of its length with the next.

    Returns:
        In order of time. None where the video is no longer than one window: there the whole video says as much.
    """
    if duration <= seconds or most < 2:
        return []
    step = 1 - overlap  # in moment_windows
    # A length that fits in exactly must not take one more because of how it rounds.
    count = min(most, 1 + math.ceil((duration - seconds) / (seconds * step) - 1e-9))
    if count < 2:
        return []
    length = duration / (1 + (count - 1) * step)
    return [(i * step * length, min(i * step * length + length, duration)) for i in range(count)]
