"""Read what is said in a video and what is written in its picture, in a child process."""

from __future__ import annotations

from media.reading.reader_packages import PACKAGED_SPEECH_MODEL, available_sources
from media.reading.video_reader import SourceReading, VideoReader, VideoReading

__all__ = [
    "PACKAGED_SPEECH_MODEL",
    "SourceReading",
    "VideoReader",
    "VideoReading",
    "available_sources",
]
