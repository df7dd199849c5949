"""Which frame is on display at given moments: by reading through, or by jumping in long videos."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

import av
from av.container import InputContainer
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from media.errors import MediaError

__all__ = ["StreamExtent", "end_tolerance", "frames_on_display"]

_JUMP_BEYOND = 60.0  # seconds of duration; shorter videos are read through, which is exact and fast enough
_NEAR = 2.0  # seconds; to decode as much costs about what a jump costs
_STEPS_BACK = (0.0, 10.0, 60.0)  # seconds before the wanted moment; not every container jumps to a key frame


class StreamExtent(NamedTuple):
    """How a stream lies in time."""

    duration: float  # seconds
    frames: int
    start: int | None  # time stamp of the first frame, in units of the stream; None where frames carry none


class _Shown(NamedTuple):
    frame: VideoFrame
    begins: float  # seconds since the start of the stream
    ends: float


def end_tolerance(stream: VideoStream, duration: float) -> float:
    """Seconds of the end that may be missing: headers are often off by a frame or two, and a little in long videos."""
    return min(1.0, max(0.1, 2 / float(stream.average_rate or 25), 0.05 * duration))


def frames_on_display(
    container: InputContainer, stream: VideoStream, extent: StreamExtent, times: Sequence[float], name: str
) -> Iterator[VideoFrame]:
    """For each of the rising ``times`` (seconds since the first frame), the frame on display then.

    Raises:
        MediaError: the stream ends before one of them.
    """
    if extent.duration > _JUMP_BEYOND and extent.start is not None:
        yield from _by_jumping(container, stream, extent, times, name)
    else:
        yield from _by_reading(container, stream, extent, times, name)


def _by_reading(
    container: InputContainer, stream: VideoStream, extent: StreamExtent, times: Sequence[float], name: str
) -> Iterator[VideoFrame]:
    """One pass through all frames."""
    waiting = list(reversed(times))
    shown: _Shown | None = None
    for following in _timed(container, stream, extent):
        while shown is not None and waiting and following.begins > waiting[-1]:
            waiting.pop()
            yield shown.frame
        if not waiting:
            return
        shown = following
    if shown is None:
        raise MediaError(f"{name} holds no frame that can be decoded; it is damaged; export it again")
    if waiting[0] - shown.ends > end_tolerance(stream, extent.duration):
        there = max(shown.ends, 0.0)
        raise MediaError(
            f"{name} breaks off after {there:.1f} of {extent.duration:.1f} s; it is truncated; copy it again"
        )
    for _ in waiting:
        yield shown.frame


def _by_jumping(
    container: InputContainer, stream: VideoStream, extent: StreamExtent, times: Sequence[float], name: str
) -> Iterator[VideoFrame]:
    """For each moment a jump to before it, then forward; no jump where forward alone is the shorter way.

    Where jumps fail, the rest is read through.
    """
    place: _Place | None = None
    for done, target in enumerate(times):
        near = place is not None and target - place.shown.ends <= max(_NEAR, place.walked)
        if place is None or not near or not place.forward(target):
            place = _jump(container, stream, extent, target)
        if place is None:
            container.seek(0)
            yield from _by_reading(container, stream, extent, times[done:], name)
            return
        yield place.shown.frame


class _Place:
    """Somewhere in a stream: the frame on display there, and the way forward.

    Args:
        ahead: frames from here on.
        end_tolerance: seconds of the end that may be missing.

    Attributes:
        walked: seconds that were decoded to get here from where the last jump had led.
    """

    def __init__(self, first: _Shown, ahead: Iterator[_Shown], end_tolerance: float) -> None:
        self.shown = first
        self.walked = 0.0
        self._landed = first.begins
        self._ahead = ahead
        self._next = next(ahead, None)
        self._slack = end_tolerance

    def land(self, target: float) -> bool:
        """Go forward from where a jump led."""
        there = self.forward(target)
        self.walked = target - self._landed
        return there

    def forward(self, target: float) -> bool:
        """Go on to a later moment; False where the stream ends before it."""
        while self._next is not None and self._next.begins <= target:
            self.shown, self._next = self._next, next(self._ahead, None)
        return self._next is not None or target - self.shown.ends <= self._slack


def _jump(
    container: InputContainer, stream: VideoStream, extent: StreamExtent, target: float
) -> _Place | None:
    """The place at ``target``; None where no jump led to it."""
    for back in _STEPS_BACK:
        jump = max(target - back, 0.0) / float(stream.time_base or Fraction(1, 1000))
        try:
            container.seek((extent.start or 0) + int(jump), stream=stream)
        except av.FFmpegError:
            break
        ahead = _timed(container, stream, extent)
        first = next(ahead, None)
        if first is None or first.begins > target:
            continue  # landed too late: step back
        place = _Place(first, ahead, end_tolerance(stream, extent.duration))
        if place.land(target):
            return place
    return None


def _timed(container: InputContainer, stream: VideoStream, extent: StreamExtent) -> Iterator[_Shown]:
    """Frames in order of display; damaged packets are passed over."""
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
            yield _Shown(frame, begins, expected)
