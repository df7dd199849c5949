"""Find the frames on display at given times, by reading all frames or, in long videos, by seeking."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

import av
from av.container import InputContainer
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from media.errors import MediaError

_SEEK_ABOVE_SECONDS = 60.0  # shorter videos are read completely, which is exact and fast enough
_NEAR_SECONDS = 2.0  # decoding this much takes about as long as a seek
_SEEK_MARGINS = (0.0, 10.0, 60.0)  # seconds before the target, since not every container seeks to a key frame


class StreamExtent(NamedTuple):
    """A stream's extent in time.

    Attributes:
        duration: Seconds.
        start: Timestamp of the first frame, in units of the stream; None if frames have no timestamps.
    """

    duration: float
    frames: int
    start: int | None


class _TimedFrame(NamedTuple):
    frame: VideoFrame
    begins: float  # seconds since the start of the stream
    ends: float


def end_tolerance(stream: VideoStream, duration: float) -> float:
    """Compute how many seconds may be missing at the end.

    Headers are often off by a frame or two, and by more in long videos.
    """
    return min(1.0, max(0.1, 2 / float(stream.average_rate or 25), 0.05 * duration))


def frames_on_display(
    container: InputContainer, stream: VideoStream, extent: StreamExtent, times: Sequence[float], name: str
) -> Iterator[VideoFrame]:
    """Yield the frame on display at each time.

    Args:
        times: Ascending times in seconds since the first frame.

    Raises:
        MediaError: The stream ends before one of the times.
    """
    if extent.duration > _SEEK_ABOVE_SECONDS and extent.start is not None:
        yield from _frames_by_seeking(container, stream, extent, times, name)
    else:
        yield from _frames_by_reading(container, stream, extent, times, name)


def _frames_by_reading(
    container: InputContainer, stream: VideoStream, extent: StreamExtent, times: Sequence[float], name: str
) -> Iterator[VideoFrame]:
    """Yield the frames on display in one pass over all frames."""
    pending = list(reversed(times))
    current: _TimedFrame | None = None
    for following in timed_frames(container, stream, extent):
        while current is not None and pending and following.begins > pending[-1]:
            pending.pop()
            yield current.frame
        if not pending:
            return
        current = following
    if current is None:
        raise MediaError(f"{name} has no decodable frame; it is damaged; export it again")
    if pending[0] - current.ends > end_tolerance(stream, extent.duration):
        end = max(current.ends, 0.0)
        raise MediaError(
            f"{name} breaks off after {end:.1f} of {extent.duration:.1f} s; it is truncated; copy it again"
        )
    for _ in pending:
        yield current.frame


def _frames_by_seeking(
    container: InputContainer, stream: VideoStream, extent: StreamExtent, times: Sequence[float], name: str
) -> Iterator[VideoFrame]:
    """Yield the frames on display, seeking to each time unless decoding forward is faster.

    If a seek fails, find the remaining frames by reading.
    """
    cursor: _StreamCursor | None = None
    for done, target in enumerate(times):
        near = cursor is not None and target - cursor.current.ends <= max(_NEAR_SECONDS, cursor.decoded)
        if cursor is None or not near or not cursor.advance(target):
            cursor = _seek(container, stream, extent, target)
        if cursor is None:
            container.seek(0)
            yield from _frames_by_reading(container, stream, extent, times[done:], name)
            return
        yield cursor.current.frame


class _StreamCursor:
    """A position in a stream.

    Args:
        tolerance: Seconds that may be missing at the end of the stream.

    Attributes:
        current: Frame on display at the position.
        decoded: Seconds that had to be decoded from where the last seek led to its target.
    """

    def __init__(self, first: _TimedFrame, following: Iterator[_TimedFrame], tolerance: float) -> None:
        self.current = first
        self.decoded = 0.0
        self._start = first.begins
        self._following = following
        self._next = next(following, None)
        self._tolerance = tolerance

    def advance_after_seek(self, target: float) -> bool:
        """Move forward from where a seek led; False if the stream ends before the target."""
        reached = self.advance(target)
        self.decoded = target - self._start
        return reached

    def advance(self, target: float) -> bool:
        """Move forward to a later time; False if the stream ends before it."""
        while self._next is not None and self._next.begins <= target:
            self.current, self._next = self._next, next(self._following, None)
        return self._next is not None or target - self.current.ends <= self._tolerance


def _seek(
    container: InputContainer, stream: VideoStream, extent: StreamExtent, target: float
) -> _StreamCursor | None:
    """Seek to a time; None if no seek leads there."""
    for margin in _SEEK_MARGINS:
        offset = max(target - margin, 0.0) / float(stream.time_base or Fraction(1, 1000))
        try:
            container.seek((extent.start or 0) + int(offset), stream=stream)
        except av.FFmpegError:
            break
        following = timed_frames(container, stream, extent)
        first = next(following, None)
        if first is None or first.begins > target:
            continue  # the seek led past the target: use a larger margin
        cursor = _StreamCursor(first, following, end_tolerance(stream, extent.duration))
        if cursor.advance_after_seek(target):
            return cursor
    return None


def timed_frames(
    container: InputContainer, stream: VideoStream, extent: StreamExtent
) -> Iterator[_TimedFrame]:
    """Yield the frames in display order, skipping damaged packets."""
    base = float(stream.time_base or Fraction(1, 25))
    step = 1 / float(stream.average_rate or 25)
    expected = 0.0
    for packet in container.demux(stream):
        try:
            frames = packet.decode()
        except av.InvalidDataError:
            continue
        for frame in frames:
            length = (frame.duration or 0) * base
            if frame.pts is None or extent.start is None:
                begins, expected = expected, expected + (length or step)
            else:
                begins = (frame.pts - extent.start) * base
                expected = begins + length
            yield _TimedFrame(frame, begins, expected)
