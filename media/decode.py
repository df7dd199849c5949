"""Decoding with PyAV: which frames, turned upright, at which size. Runs in the child process only."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import BinaryIO

import av
import numpy as np
import numpy.typing as npt
from av.container import InputContainer
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from PIL import Image, ImageOps

from media.errors import MediaError
from media.facts import Limits, VideoInfo

__all__ = ["decode", "sample_times", "square"]

# Containers that hold their video themselves. Playlists and scripts (HLS, DASH, concat …) name other files to be opened
# and are left out, and so is every protocol: nothing but the given file is ever read.
_FORMATS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,gif,mpegts,mpeg,mpegvideo,flv,asf,ogg,ivf,nut,mxf,wmv,"
    "h264,hevc,m4v,vob,dv,rm,apng,webp_pipe,gif_pipe"
)
_SEEK_BEYOND_SECONDS = 60.0  # of duration: shorter videos are decoded through, which is exact and fast enough

_LOST_SECONDS = 1.0  # of the end that may be missing before a video counts as truncated
_STEPS_BACK = (0.0, 10.0, 60.0)  # seconds; not every container can jump to a key frame


def sample_times(duration: float, count: int) -> list[float]:
    """Mid-points of ``count`` equal intervals of ``duration`` seconds."""
    return [(index + 0.5) / count * duration for index in range(count)]


def decode(
    file: BinaryIO, *, name: str, content_hash: str, size_bytes: int, frames: int, limits: Limits
) -> tuple[VideoInfo, list[Image.Image]]:
    """Facts of a video, and ``frames`` upright RGB images at the mid-points of equal intervals of time.

    Of each interval the frame on display at its mid-point is taken, so a variable frame rate does not matter.
    A video of fewer frames repeats them.

    Raises:
        MediaError: says what is wrong with the file and what to do.
    """
    try:
        with av.open(
            file,
            mode="r",
            options={"format_whitelist": _FORMATS, "protocol_whitelist": "none"},
            metadata_errors="replace",
        ) as container:
            stream = _video_stream(container, name)
            _check_size(stream, name, limits)
            stream.codec_context.thread_count = 1
            duration, counted = _extent(container, stream, file, name)
            if duration > limits.max_seconds:
                raise MediaError(
                    f"{name} lasts {duration:.0f} s; at most {limits.max_seconds:.0f} s are accepted; split it"
                )
            chosen = _choose(container, stream, sample_times(duration, frames), duration, name)
            images = [_upright(frame, stream) for frame in chosen]
            codec = stream.codec_context.name
            fps = float(stream.average_rate or 0)
            info = VideoInfo(
                content_hash=content_hash,
                bytes=size_bytes,
                container=container.format.name.split(",")[0],
                codec=codec,
                width=images[0].width,
                height=images[0].height,
                fps=fps,
                duration=duration,
                frames=counted,
            )
            return info, images
    except (av.FFmpegError, ValueError, EOFError, MemoryError) as error:
        if isinstance(error, MediaError):
            raise
        raise MediaError(
            f"{name} cannot be decoded ({_words(error)}); it is damaged or not a video; "
            "export it again, for example as mp4"
        ) from error


def square(image: Image.Image, size: int) -> npt.NDArray[np.uint8]:
    """Short side to ``size`` (bicubic), centre crop: ``uint8 [size, size, 3]``."""
    return np.asarray(ImageOps.fit(image, (size, size), Image.Resampling.BICUBIC), np.uint8)


def _video_stream(container: InputContainer, name: str) -> VideoStream:
    pictures = [
        s for s in container.streams.video if not (s.disposition & av.stream.Disposition.attached_pic)
    ]
    if pictures:
        return pictures[0]
    if container.streams.audio:
        raise MediaError(f"{name} has no video stream, it holds audio only; give a file with a video track")
    raise MediaError(f"{name} has no video stream; give a file with a video track")


def _check_size(stream: VideoStream, name: str, limits: Limits) -> None:
    width, height = stream.codec_context.width, stream.codec_context.height
    if width <= 0 or height <= 0:
        raise MediaError(f"{name} does not say how large its frames are; it is damaged; export it again")
    if width * height > limits.max_pixels:
        raise MediaError(
            f"{name} has frames of {width}x{height}, more than {limits.max_pixels} pixels; scale it down"
        )


def _extent(container: InputContainer, stream: VideoStream, file: BinaryIO, name: str) -> tuple[float, int]:
    """Duration in seconds and number of frames, read from the packets where the header does not tell."""
    if stream.duration and stream.time_base and stream.frames:
        return float(stream.duration * stream.time_base), stream.frames
    end, start, count, last = 0.0, None, 0, 0.0
    base = float(stream.time_base or Fraction(1, 25))
    for packet in container.demux(stream):
        if packet.pts is None:
            continue
        count += 1
        moment = packet.pts * base
        start = moment if start is None else min(start, moment)
        last = (packet.duration or 0) * base
        end = max(end, moment + last)
    if not count:
        raise MediaError(f"{name} holds no frames; it is damaged or empty; export it again")
    container.seek(0)
    return max(end - (start or 0.0), last, 1e-3), count


def _choose(
    container: InputContainer, stream: VideoStream, times: list[float], duration: float, name: str
) -> list[VideoFrame]:
    if duration > _SEEK_BEYOND_SECONDS:
        return _by_seeking(container, stream, times, name)
    return _by_reading(container, stream, times, duration, name)


def _by_reading(
    container: InputContainer, stream: VideoStream, times: list[float], duration: float, name: str
) -> list[VideoFrame]:
    """One pass through all frames."""
    chosen: list[VideoFrame] = []
    shown: VideoFrame | None = None
    ended = 0.0
    base = float(stream.time_base or Fraction(1, 25))
    for frame, moment in _timed(container, stream):
        ended = moment + (frame.duration or 0) * base
        while shown is not None and len(chosen) < len(times) and moment > times[len(chosen)]:
            chosen.append(shown)
        shown = frame
        if len(chosen) == len(times):
            break
    if shown is None:
        raise MediaError(f"{name} holds no frame that can be decoded; it is damaged; export it again")
    if len(chosen) < len(times) and times[-1] - ended > _LOST_SECONDS:
        raise MediaError(
            f"{name} breaks off after {ended:.1f} of {duration:.1f} s; it is truncated; copy it again"
        )
    return chosen + [shown] * (len(times) - len(chosen))


def _by_seeking(
    container: InputContainer, stream: VideoStream, times: list[float], name: str
) -> list[VideoFrame]:
    """For each moment a jump to before it, then forward."""
    chosen: list[VideoFrame] = []
    for target in times:
        for back in (*_STEPS_BACK, target):
            shown, moment = _after_jump(container, stream, max(target - back, 0.0), target)
            if shown is not None and moment <= target:
                break
        if shown is None:
            raise MediaError(f"{name} breaks off before {target:.1f} s; it is truncated; copy it again")
        chosen.append(shown)
    return chosen


def _after_jump(
    container: InputContainer, stream: VideoStream, jump: float, target: float
) -> tuple[VideoFrame | None, float]:
    """The last frame up to ``target``, or the first of all where there is none, and its time."""
    container.seek(
        (stream.start_time or 0) + int(jump / (stream.time_base or Fraction(1, 1000))), stream=stream
    )
    shown, at = None, 0.0
    for frame, moment in _timed(container, stream):
        if shown is not None and moment > target:
            break
        shown, at = frame, moment
        if at > target:
            break
    return shown, at


def _timed(container: InputContainer, stream: VideoStream) -> Iterator[tuple[VideoFrame, float]]:
    """Frames with their time since the start of the stream, in order of display; damaged packets are passed over."""
    base = float(stream.time_base or Fraction(1, 25))
    start = stream.start_time
    step = 1 / float(stream.average_rate or 25)
    previous = -step
    for packet in container.demux(stream):
        try:
            frames = packet.decode()
        except av.InvalidDataError:
            continue
        for frame in frames:
            if frame.pts is None:
                moment = previous + step
            else:
                if start is None:
                    start = frame.pts
                moment = (frame.pts - start) * base
            previous = moment
            yield frame, moment


def _upright(frame: VideoFrame, stream: VideoStream) -> Image.Image:
    """RGB, square pixels, rotated as the file asks, transparency on black."""
    if "a" in frame.format.name and any(c.is_alpha for c in frame.format.components):
        layered = Image.fromarray(frame.to_ndarray(format="rgba"))
        image = Image.new("RGB", layered.size)
        image.paste(layered, mask=layered.getchannel("A"))
    else:
        image = Image.fromarray(frame.to_ndarray(format="rgb24"))
    aspect = stream.sample_aspect_ratio or stream.codec_context.sample_aspect_ratio or Fraction(1)
    if aspect != 1 and 0 < aspect < 100:
        image = image.resize(
            (max(1, round(image.width * float(aspect))), image.height), Image.Resampling.BICUBIC
        )
    if frame.rotation % 360:
        image = image.rotate(frame.rotation, expand=True)
    return image


def _words(error: BaseException) -> str:
    return getattr(error, "strerror", None) or type(error).__name__
