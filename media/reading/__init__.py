"""Read what is said in a video and what is written in its picture, in a child process."""

from __future__ import annotations

from media.reading.reader_packages import available_sources
from media.reading.video_reader import SourceReading, VideoReader, VideoReading

__all__ = ["SourceReading", "VideoReader", "VideoReading", "available_sources"]
