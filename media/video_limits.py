"""Accepted containers and their media types, limits and facts of videos, and the times at which they are sampled."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path, PurePath

from media.errors import MediaError
from media.timed_texts import FileTexts

# Self-contained formats, by FFmpeg's names. Playlists and scripts (HLS, DASH, concat, SDP …) refer to other files and
# are not accepted.
VIDEO_FORMATS: dict[str, tuple[str, ...]] = {
    "mov,mp4,3gp,3g2,mj2": (".mp4", ".m4v", ".mov", ".qt", ".f4v", ".3gp", ".3g2", ".mj2"),
    "matroska,webm": (".mkv", ".mk3d", ".webm"),
    "avi": (".avi", ".divx"),
    "gif": (".gif",),
    "apng": (".apng",),  # also found in .png files, which are mostly pictures
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

# What counts as a video in a folder, bucket or archive. A manifest may name files with any suffix.
VIDEO_SUFFIXES = frozenset(suffix for suffixes in VIDEO_FORMATS.values() for suffix in suffixes)


@dataclass(frozen=True)
class VideoLimits:
    """Limits on a video and on the process that decodes it."""

    max_bytes: int = 4 * 1024**3
    max_seconds: float = 4 * 3600.0
    max_pixels: int = 8192 * 8192  # maximum number of pixels in a frame, both stored and displayed
    timeout_seconds: float = 120.0  # maximum wall time per request to the decoder
    memory_bytes: int = 2 * 1024**3  # maximum address space of the decoder process

    def check_file(self, path: Path, name: str) -> int:
        """Check that a file is regular, neither empty nor too large; return its size; raise MediaError, OSError."""
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
    """Facts about a decoded video."""

    content_hash: str  # SHA-256 of the file, hexadecimal
    bytes: int
    container: str
    codec: str
    width: int  # displayed size in pixels, after rotation and aspect ratio
    height: int
    fps: float  # mean frames per second; 0 if the file does not state it
    duration: float  # seconds
    frames: int  # as stated by the container or, without that, counted
    texts: FileTexts | None = None  # what the file carries besides; None for a picture


def sample_times(duration: float, count: int) -> list[float]:
    """Compute the midpoints of ``count`` equal intervals, in seconds since the first frame.

    A midpoint's sample is the frame on display then: the last one that begins at or before it. Samples depend only on
    time, not on the frame rate. A video with fewer frames than samples repeats them.
    """
    return [(index + 0.5) / count * duration for index in range(count)]


def moment_windows(
    duration: float, seconds: float, overlap: float, max_windows: int
) -> list[tuple[float, float]]:
    """Divide a long video into moments: windows of equal length that cover it, and share a part of it with the next.

    A window is longer than ``seconds`` only if ``max_windows`` of this length do not cover the video. Returns the start
    and end of each in seconds; none for a video no longer than one window, whose own vector covers the same time.
    """
    if duration <= seconds or max_windows < 2:
        return []
    step = 1 - overlap  # in windows
    # The tolerance keeps rounding from adding a window when the duration fits exactly.
    count = min(max_windows, 1 + math.ceil((duration - seconds) / (seconds * step) - 1e-9))
    if count < 2:
        return []
    length = duration / (1 + (count - 1) * step)
    return [(i * step * length, min(i * step * length + length, duration)) for i in range(count)]


# Media types by FFmpeg's name for the container. The tables of machines differ, and browsers go by the type: Firefox
# plays no ``video/quicktime``, although most of these files contain the streams of an MP4.
_TYPES = {
    "mov": "video/quicktime",
    "matroska": "video/x-matroska",
    "avi": "video/x-msvideo",
    "gif": "image/gif",
    "apng": "image/apng",
    "mpegts": "video/mp2t",
    "mpeg": "video/mpeg",
    "mpegvideo": "video/mpeg",
    "flv": "video/x-flv",
    "asf": "video/x-ms-wmv",
    "ogg": "video/ogg",
}
# Types of these containers with codecs (or decoders, by FFmpeg's names) that an MP4 or a WebM may contain.
_AV1 = ("av1", "libdav1d")
_MP4_CODECS = ("h264", "hevc", "vp9", "mpeg4", "mpeg2video", "h263", "mjpeg", *_AV1)
_WEB_TYPES = {"mov": ("video/mp4", _MP4_CODECS), "matroska": ("video/webm", ("vp8", "vp9", *_AV1))}


def media_type(name: str, container: str | None, codec: str | None) -> str:
    """Return a video file's media type; without a container and a codec, that of most files with such a name."""
    if container is None:
        suffix = PurePath(name).suffix.lower()
        container = next(
            (names.split(",")[0] for names, suffixes in VIDEO_FORMATS.items() if suffix in suffixes), ""
        )
    web_type, codecs = _WEB_TYPES.get(container, ("", ()))
    if web_type and (codec is None or codec in codecs):
        return web_type
    return _TYPES.get(container, "application/octet-stream")
