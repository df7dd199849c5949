"""Containers, facts and limits of videos, and the times at which a video is sampled."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from media.errors import MediaError

# Containers that contain their video, by the names of FFmpeg. Playlists and scripts (HLS, DASH, concat, SDP …) name
# other files and are not accepted.
VIDEO_FORMATS: dict[str, tuple[str, ...]] = {
    "mov,mp4,3gp,3g2,mj2": (".mp4", ".m4v", ".mov", ".qt", ".f4v", ".3gp", ".3g2", ".mj2"),
    "matroska,webm": (".mkv", ".mk3d", ".webm"),
    "avi": (".avi", ".divx"),
    "gif": (".gif",),
    "apng": (".apng",),  # also in .png, which are mostly pictures
    "mpegts": (".ts", ".mts", ".m2ts"),
    "mpeg,mpegvideo": (".mpg", ".mpeg", ".mpe", ".m1v", ".m2v", ".vob"),
    "flv": (".flv",),
    "asf": (".wmv", ".asf"),
    "ogg": (".ogv",),  # .ogg files are mostly audio
    "ivf": (".ivf",),
    "nut": (".nut",),
    "mxf": (".mxf",),
    "dv": (".dv",),
    "rm": (".rm", ".rmvb"),
    "h264": (".h264", ".264"),
    "hevc": (".hevc", ".h265", ".265"),
    "m4v": (),  # .m4v is mostly an MP4
    "obu": (".obu",),
    "yuv4mpegpipe": (".y4m",),
}

# Files that a listing of a folder, bucket or archive takes for videos. A manifest may name files with any ending.
VIDEO_SUFFIXES = frozenset(suffix for suffixes in VIDEO_FORMATS.values() for suffix in suffixes)


@dataclass(frozen=True)
class VideoLimits:
    """Limits of one video, and of the process that decodes it.

    Attributes:
        max_pixels: Maximum number of pixels of one frame, both stored and displayed.
        timeout_seconds: Maximum wall time of one request to the decoder.
        memory_bytes: Maximum address space of the decoder process.
    """

    max_bytes: int = 4 * 1024**3
    max_seconds: float = 4 * 3600.0
    max_pixels: int = 8192 * 8192
    timeout_seconds: float = 120.0
    memory_bytes: int = 2 * 1024**3

    def check_file(self, path: Path, name: str) -> int:
        """Check a file before any of it is read.

        Args:
            path: File of the video.
            name: Name of the video in errors.

        Returns:
            Its size in bytes.

        Raises:
            MediaError: It is not a regular file, empty, or too large.
            OSError: It does not exist, or cannot be accessed.
        """
        if path.exists() and not path.is_file():
            raise MediaError(f"{name} is not a file but a folder, pipe or device; give a video file")
        size = path.stat().st_size
        if not size:
            raise MediaError(f"{name} is empty (0 bytes); copy it again")
        if size > self.max_bytes:
            raise MediaError(f"{name} is {size} bytes; at most {self.max_bytes} are accepted; shorten it")
        return size


@dataclass(frozen=True)
class VideoInfo:
    """Facts of a decoded video.

    Attributes:
        content_hash: SHA-256 of the file, hexadecimal.
        width, height: Displayed size in pixels, after rotation and aspect ratio.
        fps: Mean number of frames per second; 0 if the file does not state it.
        frames: Number of frames that the container states, or that were counted.
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
    """Return the mid-points of ``count`` equal intervals of a duration, in seconds since the first frame.

    The sample of a mid-point is the frame on display then: the last frame that begins at or before it. The samples
    depend on time only, not on the frame rate of the file. A video with fewer frames than samples repeats them.
    """
    return [(index + 0.5) / count * duration for index in range(count)]


def moment_windows(
    duration: float, seconds: float, overlap: float, max_windows: int
) -> list[tuple[float, float]]:
    """Return the moments of a long video: overlapping windows of equal length that cover it.

    Args:
        duration: Duration of the video in seconds.
        seconds: Maximum length of a window, exceeded only if ``max_windows`` of this length do not cover the video.
        overlap: Share of a window's length that it has in common with the next.

    Returns:
        Start and end of each window in seconds, in order of time. None for a video that is no longer than one window,
        since the vector of the whole video then covers the same time.
    """
    if duration <= seconds or max_windows < 2:
        return []
    step = 1 - overlap  # in windows
    # The tolerance keeps rounding from adding a window to a duration that fits exactly.
    count = min(max_windows, 1 + math.ceil((duration - seconds) / (seconds * step) - 1e-9))
    if count < 2:
        return []
    length = duration / (1 + (count - 1) * step)
    return [(i * step * length, min(i * step * length + length, duration)) for i in range(count)]
