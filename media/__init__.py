"""Turn videos into frames: paths, hashes, decoding in a child process, thumbnails and the frame cache."""

from __future__ import annotations

from media.errors import DecoderUnavailable, MediaError, UndecidedVideo
from media.media_paths import FrameSize, content_hash, frame_cache_path, frame_shape, load_frames, resolve_uri
from media.video_decoder import VideoDecoder
from media.video_limits import VideoInfo, VideoLimits, moment_windows, sample_times

__all__ = [
    "DecoderUnavailable",
    "FrameSize",
    "MediaError",
    "UndecidedVideo",
    "VideoDecoder",
    "VideoInfo",
    "VideoLimits",
    "content_hash",
    "frame_cache_path",
    "frame_shape",
    "load_frames",
    "moment_windows",
    "resolve_uri",
    "sample_times",
]
