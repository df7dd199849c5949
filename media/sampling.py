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

__all__ = ["Extent", "frames_on_display", "slack"]

_JUMP_BEYOND = 60.0  # seconds of duration; shorter videos are read through, which is exact and fast enough
_STEPS_BACK = (0.0, 10.0, 60.0)  # seconds before the wanted moment; not every container jumps to a key frame


class Extent(NamedTuple):
    """How a stream lies in time."""

    duration: float  # seconds
    frames: int
    start: int | None  # time stamp of the first frame, in units of the stream; None where frames carry none


class _Shown(NamedTuple):
    frame: VideoFrame
    begins: float  # seconds since the start of the stream
    ends: float


def slack(stream: VideoStream, duration: float) -> float:
    """Seconds of the end that may be missing: headers are often off by a frame or two, and a little in long videos."""
    return min(1.0, max(0.1, 2 / float(stream.average_rate or 25), 0.05 * duration))


def frames_on_display(
    container: InputContainer, stream: VideoStream, extent: Extent, times: Sequence[float], name: str
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
    container: InputContainer, stream: VideoStream, extent: Extent, times: Sequence[float], name: str
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
    if waiting[0] - shown.ends > slack(stream, extent.duration):
        there = max(shown.ends, 0.0)
        raise MediaError(
            f"{name} breaks off after {there:.1f} of {extent.duration:.1f} s; it is truncated; copy it again"
        )
    for _ in waiting:
        yield shown.frame


def _by_jumping(
    container: InputContainer, stream: VideoStream, extent: Extent, times: Sequence[float], name: str
) -> Iterator[VideoFrame]:
    """For each moment a jump to before it, then forward. Where jumps fail or do not pay, the rest is read through."""
    for done, target in enumerate(times):
        frame, walked = _jump(container, stream, extent, target)
        left = len(times) - done
        if frame is not None:
            yield frame
            left -= 1
        if left and (frame is None or walked * left > extent.duration):
            container.seek(0)
            yield from _by_reading(container, stream, extent, times[-left:], name)
            return


def _jump(
    container: InputContainer, stream: VideoStream, extent: Extent, target: float
) -> tuple[VideoFrame | None, float]:
    """The frame on display at ``target``, None where no jump led to it; and the seconds decoded to get there."""
    for back in _STEPS_BACK:
        jump = max(target - back, 0.0) / float(stream.time_base or Fraction(1, 1000))
        try:
            container.seek((extent.start or 0) + int(jump), stream=stream)
        except av.FFmpegError:
            break
        shown: _Shown | None = None
        landed = target
        for following in _timed(container, stream, extent):
            if following.begins > target:
                if shown is None:
                    break  # landed too late: step back
                return shown.frame, target - landed
            if shown is None:
                landed = following.begins
            shown = following
        else:
            if shown is not None and target - shown.ends <= slack(stream, extent.duration):
                return shown.frame, target - landed
    return None, 0.0


def _timed(container: InputContainer, stream: VideoStream, extent: Extent) -> Iterator[_Shown]:
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
