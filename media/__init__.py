"""How a video becomes frames: paths, hashes, decoding in a child process, thumbnails, the frame cache."""

from __future__ import annotations

from media.errors import DecoderUnavailable, MediaError
from media.media_paths import content_hash, frame_cache_path, load_frames, resolve_uri
from media.video_examiner import Examiner, examine
from media.video_limits import Limits, VideoInfo, sample_times, windows

__all__ = [
    "DecoderUnavailable",
    "Examiner",
    "Limits",
    "MediaError",
    "VideoInfo",
    "content_hash",
    "examine",
    "frame_cache_path",
    "load_frames",
    "resolve_uri",
    "sample_times",
    "windows",
]
