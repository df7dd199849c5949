"""Decode untrusted files with PyAV, only in the child process, to upright pictures and squares that a model reads."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from fractions import Fraction
from typing import Any, BinaryIO, cast

import av
import numpy as np
import numpy.typing as npt
from av.container import InputContainer
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter
from av.video.stream import VideoStream
from PIL import Image, ImageOps

from media.errors import MediaError
from media.frame_sampling import StreamExtent, end_tolerance, frames_on_display
from media.video_limits import VIDEO_FORMATS, VideoInfo, VideoLimits

_IDENTITY = (1, 0, 0, 1)


class FrameConverter:
    """Converter of a stream's frames to RGB pictures with square pixels, rotated and mirrored as the file states.

    Transparent areas become black.
    """

    def __init__(self, aspect: Fraction) -> None:
        self._aspect = aspect
        # Shared, because a frame's own reformatter would start a thread per core each time.
        self._reformatter = VideoReformatter()
        self._matrix: tuple[int, ...] | None = None

    def convert(self, frame: VideoFrame) -> Image.Image:
        """Convert a frame to a picture."""
        if self._matrix is None:
            # Only once, because reading side data puts a frame into a reference cycle, which keeps its memory.
            self._matrix = _display_matrix(frame)
        image = self._to_rgb(frame)
        if self._aspect != 1:
            width = max(1, round(image.width * self._aspect))
            image = image.resize((width, image.height), Image.Resampling.BICUBIC)
        if self._matrix == _IDENTITY:
            return image
        return Image.fromarray(_rotate(np.asarray(image), *self._matrix))

    def _to_rgb(self, frame: VideoFrame) -> Image.Image:
        if not any(component.is_alpha for component in frame.format.components):
            return Image.fromarray(self._pixels(frame, "rgb24"))
        layered = Image.fromarray(self._pixels(frame, "rgba"))
        image = Image.new("RGB", layered.size)
        image.paste(layered, mask=layered.getchannel("A"))
        return image

    def _pixels(self, frame: VideoFrame, pixel_format: str) -> npt.NDArray[np.uint8]:
        reformatted = self._reformatter.reformat(frame, format=pixel_format, threads=1)
        return np.asarray(reformatted.to_ndarray(), np.uint8)


def crop_square(image: Image.Image, size: int) -> npt.NDArray[np.uint8]:
    """Resize the short side to ``size`` (bicubic) and crop the center: ``uint8 [size, size, 3]``."""
    return np.asarray(ImageOps.fit(image, (size, size), Image.Resampling.BICUBIC), np.uint8)


def _display_matrix(frame: VideoFrame) -> tuple[int, ...]:
    """Read a, b, c and d of a frame's display matrix.

    The matrix maps a stored position (x, y) to the displayed position (a·x + c·y, b·x + d·y); its nine numbers are
    a, b, u, c, d, v, x, y, w (ISO/IEC 14496-12, "matrix" in the track header).
    """
    try:
        numbers = np.frombuffer(bytes(cast(Any, frame.side_data)["DISPLAYMATRIX"]), np.int32)
    except KeyError:
        return _IDENTITY
    return tuple(int(numbers[place]) for place in (0, 1, 3, 4))


def _rotate(pixels: npt.NDArray[np.uint8], a: int, b: int, c: int, d: int) -> npt.NDArray[np.uint8]:
    """Apply a display matrix, rounded to the nearest of the eight rotations and reflections."""
    if abs(a) + abs(d) >= abs(b) + abs(c):
        mirrored, flipped = a < 0, d < 0
    else:
        pixels = pixels.transpose(1, 0, 2)
        mirrored, flipped = c < 0, b < 0
    pixels = pixels[:, ::-1] if mirrored else pixels
    pixels = pixels[::-1] if flipped else pixels
    return np.ascontiguousarray(pixels)


# No protocol is accepted: the library reads bytes and cannot open anything by itself.
_FORMATS = ",".join(VIDEO_FORMATS)
_PICTURE_FORMATS = "png_pipe,jpeg_pipe,webp_pipe,bmp_pipe"
_KNOWN_FORMATS = "mp4, mov, mkv, webm, avi, gif, mpeg, ts, flv, wmv, ogv, mxf"  # listed in messages
_KNOWN_PICTURE_FORMATS = "jpeg, png, webp, bmp"
_MIN_DURATION = 1e-3  # seconds, for a single frame without a length
_DURATION_IN_HEADER = ("matroska", "flv")  # other formats derive the duration from the last packet


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
    """Decode the frames on display at given times.

    Args:
        times: Returns ascending times in seconds since the first frame, given the duration.
        receive: Called with the upright RGB images, one at a time since several large ones may not fit into memory.
        pictures: Whether to accept a single picture as a video of one frame.

    Raises:
        MediaError: The video cannot be used; some images may have been received already.
    """
    try:
        with ExitStack() as stack:
            container = stack.enter_context(_open_container(file, name, pictures))
            stream = _video_stream(container, name)
            aspect = _aspect(stream)
            _check_size(stream.codec_context.width, stream.codec_context.height, aspect, name, limits)
            extent = _stated_extent(container, stream, size_bytes)
            if extent is None:
                extent = _measured_extent(container, stream, name)
                # Open again, because raw streams cannot be rewound.
                container = stack.enter_context(_open_container(file, name, pictures))
                stream = _video_stream(container, name)
            if extent.duration > limits.max_seconds:
                raise MediaError(
                    f"{name} lasts {extent.duration:.0f} s; at most {limits.max_seconds:.0f} s are accepted; split it"
                )
            stream.codec_context.thread_count = 1
            converter, image, converted = FrameConverter(aspect), None, None
            for frame in frames_on_display(container, stream, extent, times(extent.duration), name):
                if image is None or frame is not converted:
                    # Check again, because the size may change within a stream.
                    _check_size(frame.width, frame.height, aspect, name, limits)
                    image, converted = converter.convert(frame), frame
                receive(image)
            if image is None:
                raise MediaError(f"{name} has no decodable frame; it is damaged; export it again")
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
        raise _damage_error(name, error) from error
    except OSError as error:
        if error.errno != errno.EINVAL:  # raised by a seek before the start of the file
            raise
        raise _damage_error(name, error) from error


def _open_container(file: BinaryIO, name: str, pictures: bool) -> InputContainer:
    file.seek(0)
    formats, known = _FORMATS, _KNOWN_FORMATS
    if pictures:
        formats, known = f"{formats},{_PICTURE_FORMATS}", f"{known}, {_KNOWN_PICTURE_FORMATS}"
    try:
        return av.open(
            file,
            mode="r",
            options={"format_whitelist": formats, "protocol_whitelist": "none"},
            metadata_errors="replace",
        )
    except av.ArgumentError as error:
        raise MediaError(
            f"{name} is not in an accepted video format ({known}); playlists are not followed; export it, "
            "for example as mp4"
        ) from error


def _video_stream(container: InputContainer, name: str) -> VideoStream:
    streams = [s for s in container.streams.video if not (s.disposition & av.stream.Disposition.attached_pic)]
    if streams:
        if streams[0].codec_context is None:
            raise MediaError(f"{name} has its video in an unknown codec; export it, for example as mp4")
        return streams[0]
    if container.streams.audio:
        raise MediaError(f"{name} has no video stream, only audio; supply a file with a video track")
    raise MediaError(f"{name} has no video stream; supply a file with a video track")


def _aspect(stream: VideoStream) -> Fraction:
    """Read the width over height of a stored pixel; implausible values count as square."""
    aspect = stream.sample_aspect_ratio or stream.codec_context.sample_aspect_ratio or Fraction(1)
    return aspect if Fraction(1, 100) < aspect < 100 else Fraction(1)


def _check_size(width: int, height: int, aspect: Fraction, name: str, limits: VideoLimits) -> None:
    if width <= 0 or height <= 0:
        raise MediaError(f"{name} does not state the size of its frames; it is damaged; export it again")
    if width * height * max(aspect, Fraction(1)) > limits.max_pixels:
        raise MediaError(
            f"{name} has frames of {round(width * aspect)}x{height}, more than {limits.max_pixels} pixels; "
            "scale it down"
        )


def _stated_extent(container: InputContainer, stream: VideoStream, size_bytes: int) -> StreamExtent | None:
    """Read the extent from the header; None if it states none, or more frames than the file has bytes."""
    if stream.frames > size_bytes:
        return None
    if not (stream.duration and stream.duration > 0 and stream.time_base and stream.frames > 0):
        return None
    duration = float(stream.duration * stream.time_base)
    if container.format.name == "avi" and stream.average_rate:
        # The library derives the duration from the file's bytes; the header states the number of frames.
        duration = max(duration, float(stream.frames / stream.average_rate))
    return StreamExtent(duration, stream.frames, stream.start_time)


def _measured_extent(container: InputContainer, stream: VideoStream, name: str) -> StreamExtent:
    """Measure the extent by reading all packets without decoding them."""
    stamps: list[tuple[int, int]] = []
    lengths: list[Fraction] = []
    first, last = float("inf"), 0.0  # start and end over all streams, in seconds
    base = stream.time_base or Fraction(1, 25)
    step = 1 / (stream.average_rate or Fraction(25))
    for packet in container.demux():
        length = packet.duration or 0
        if packet.pts is not None and packet.time_base:
            begins, ends = packet.pts * packet.time_base, (packet.pts + length) * packet.time_base
            first, last = min(first, float(begins)), max(last, float(ends))
        if packet.stream.index == stream.index and packet.size:
            lengths.append(length * base or step)
            if packet.pts is not None:
                stamps.append((packet.pts, length))
    if not lengths:
        raise MediaError(f"{name} has no frames; it is damaged or empty; export it again")
    if not stamps:  # a raw stream: the codec states the frame rate
        return StreamExtent(float(sum(lengths)), len(lengths), None)
    start = min(stamp for stamp, _ in stamps)
    duration = max(float((max(stamp + length for stamp, length in stamps) - start) * base), _MIN_DURATION)
    if container.duration and container.format.name.split(",")[0] in _DURATION_IN_HEADER:
        stated = container.duration / av.time_base
        if stated - (last - first) > end_tolerance(stream, stated):  # no packet reaches the stated end
            duration = stated
    return StreamExtent(duration, len(lengths), start)


def _damage_error(name: str, error: BaseException) -> MediaError:
    words = getattr(error, "strerror", None) or type(error).__name__
    return MediaError(
        f"{name} cannot be decoded ({words}); it is damaged or not a video; export it again, for example as mp4"
    )
