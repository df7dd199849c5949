"""Opening a stranger's file with PyAV, and taking pictures out of it. Runs in the child process only."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from fractions import Fraction
from typing import BinaryIO

import av
from av.container import InputContainer
from av.video.stream import VideoStream
from PIL import Image

from media.errors import MediaError
from media.frame_images import FrameConverter
from media.frame_sampling import StreamExtent, end_tolerance, frames_on_display
from media.video_limits import VideoInfo, VideoLimits

__all__ = ["decode"]

# Containers that hold their video themselves. Playlists and scripts (HLS, DASH, concat, SDP …) name other files to be
# opened and are left out, and so is every protocol: the library is given bytes to read, and can open nothing itself.
_FORMATS = (
    "mov,mp4,3gp,3g2,mj2,matroska,webm,avi,gif,apng,mpegts,mpeg,mpegvideo,flv,asf,ogg,ivf,nut,mxf,dv,rm,"
    "h264,hevc,m4v,obu,yuv4mpegpipe"
)
# Single pictures, which are read from the bytes too. A picture is a video of one frame.
_PICTURES = "png_pipe,jpeg_pipe,webp_pipe,bmp_pipe"
_KINDS = "mp4, mov, mkv, webm, avi, gif, mpeg, ts, flv, wmv, ogv, mxf"  # of these, what people know by name
_PICTURE_KINDS = "jpeg, png, webp, bmp"
_INSTANT = 1e-3  # seconds that a single frame without a length is on display
_TELL_THEIR_LENGTH = ("matroska", "flv")  # in the header, and not by looking for the last packet


def decode(
    file: BinaryIO,
    *,
    name: str,
    content_hash: str,
    size_bytes: int,
    times: Callable[[float], Sequence[float]],
    limits: VideoLimits,
    receive: Callable[[Image.Image], None],
    pictures: bool = False,
) -> VideoInfo:
    """Facts of a video; ``receive`` gets upright RGB images, the one on display at each of its ``times``.

    With ``pictures``, single pictures count as videos of one frame.

    Images are handed on one by one, because some large ones would not fit in memory together.

    Args:
        times: rising seconds since the first frame, told the duration.

    Raises:
        MediaError: says what is wrong with the file and what to do. Some images may have been received by then.
    """
    try:
        with ExitStack() as stack:
            container = stack.enter_context(_opened(file, name, pictures))
            stream = _video_stream(container, name)
            aspect = _aspect(stream)
            _check_size(stream.codec_context.width, stream.codec_context.height, aspect, name, limits)
            extent = _told(container, stream)
            if extent is None:
                extent = _measured(container, stream, name)
                container = stack.enter_context(
                    _opened(file, name, pictures)
                )  # afresh: raw streams cannot be rewound
                stream = _video_stream(container, name)
            if extent.duration > limits.max_seconds:
                raise MediaError(
                    f"{name} lasts {extent.duration:.0f} s; at most {limits.max_seconds:.0f} s are accepted; split it"
                )
            stream.codec_context.thread_count = 1
            upright, image, converted = FrameConverter(aspect), None, None
            for frame in frames_on_display(container, stream, extent, times(extent.duration), name):
                if image is None or frame is not converted:
                    _check_size(frame.width, frame.height, aspect, name, limits)  # may change in mid-stream
                    image, converted = upright(frame), frame
                receive(image)
            if image is None:
                raise MediaError(f"{name} holds no frame that can be decoded; it is damaged; export it again")
            return VideoInfo(
                content_hash=content_hash,
                bytes=size_bytes,
                container=container.format.name.split(",")[0],
                codec=stream.codec_context.name,
                width=image.width,
                height=image.height,
                fps=float(stream.average_rate or 0),
                duration=extent.duration,
                frames=extent.frames,
            )
    except (av.FFmpegError, ValueError, EOFError) as error:
        if isinstance(error, (MediaError, MemoryError)):
            raise
        raise _damaged(name, error) from error
    except OSError as error:
        if error.errno != errno.EINVAL:  # what a leap to before the start of a file gives
            raise
        raise _damaged(name, error) from error


def _opened(file: BinaryIO, name: str, pictures: bool) -> InputContainer:
    file.seek(0)
    formats, kinds = (
        (f"{_FORMATS},{_PICTURES}", f"{_KINDS}, {_PICTURE_KINDS}") if pictures else (_FORMATS, _KINDS)
    )
    try:
        return av.open(
            file,
            mode="r",
            options={"format_whitelist": formats, "protocol_whitelist": "none"},
            metadata_errors="replace",
        )
    except av.ArgumentError as error:
        raise MediaError(
            f"{name} is not a video of an accepted kind ({kinds}); playlists are not followed; export it, "
            "for example as mp4"
        ) from error


def _video_stream(container: InputContainer, name: str) -> VideoStream:
    pictures = [
        s for s in container.streams.video if not (s.disposition & av.stream.Disposition.attached_pic)
    ]
    if pictures:
        if pictures[0].codec_context is None:
            raise MediaError(f"{name} holds its video in an unknown codec; export it, for example as mp4")
        return pictures[0]
    if container.streams.audio:
        raise MediaError(f"{name} has no video stream: it holds audio only; supply a file with a video track")
    raise MediaError(f"{name} has no video stream; supply a file with a video track")


def _aspect(stream: VideoStream) -> Fraction:
    """Width over height of a stored pixel; nonsense counts as square."""
    aspect = stream.sample_aspect_ratio or stream.codec_context.sample_aspect_ratio or Fraction(1)
    return aspect if Fraction(1, 100) < aspect < 100 else Fraction(1)


def _check_size(width: int, height: int, aspect: Fraction, name: str, limits: VideoLimits) -> None:
    if width <= 0 or height <= 0:
        raise MediaError(f"{name} does not say how large its frames are; it is damaged; export it again")
    if width * height * max(aspect, Fraction(1)) > limits.max_pixels:
        raise MediaError(
            f"{name} has frames of {round(width * aspect)}x{height}, more than {limits.max_pixels} pixels; "
            "scale it down"
        )


def _told(container: InputContainer, stream: VideoStream) -> StreamExtent | None:
    """The extent as the header tells it, if it does."""
    if not (stream.duration and stream.duration > 0 and stream.time_base and stream.frames > 0):
        return None
    duration = float(stream.duration * stream.time_base)
    if container.format.name == "avi" and stream.average_rate:
        # What the library tells was cut to the bytes that are there; the header knows how many frames there were.
        duration = max(duration, float(stream.frames / stream.average_rate))
    return StreamExtent(duration, stream.frames, stream.start_time)


def _measured(container: InputContainer, stream: VideoStream, name: str) -> StreamExtent:
    """The extent as all packets tell it, which are read but not decoded."""
    stamps: list[tuple[int, int]] = []
    lengths: list[Fraction] = []
    everything = (float("inf"), 0.0)  # seconds at which the streams, taken together, begin and end
    base = stream.time_base or Fraction(1, 25)
    step = 1 / (stream.average_rate or Fraction(25))
    for packet in container.demux():
        length = packet.duration or 0
        if packet.pts is not None and packet.time_base:
            begins, ends = packet.pts * packet.time_base, (packet.pts + length) * packet.time_base
            everything = (min(everything[0], float(begins)), max(everything[1], float(ends)))
        if packet.stream.index == stream.index and packet.size:
            lengths.append(length * base or step)
            if packet.pts is not None:
                stamps.append((packet.pts, length))
    if not lengths:
        raise MediaError(f"{name} holds no frames; it is damaged or empty; export it again")
    if not stamps:  # a raw stream: frames follow each other at the rate that the codec states
        return StreamExtent(float(sum(lengths)), len(lengths), None)
    start = min(stamp for stamp, _ in stamps)
    duration = max(float((max(stamp + length for stamp, length in stamps) - start) * base), _INSTANT)
    if container.duration and container.format.name.split(",")[0] in _TELL_THEIR_LENGTH:
        told = container.duration / av.time_base
        if told - (everything[1] - everything[0]) > end_tolerance(
            stream, told
        ):  # nothing reaches the announced end
            duration = told
    return StreamExtent(duration, len(lengths), start)


def _damaged(name: str, error: BaseException) -> MediaError:
    words = getattr(error, "strerror", None) or type(error).__name__
    return MediaError(
        f"{name} cannot be decoded ({words}); it is damaged or not a video; export it again, for example as mp4"
    )
