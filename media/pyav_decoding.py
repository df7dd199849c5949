"""Decode untrusted files with PyAV, only in the child process, to upright pictures and frames that a model reads.

The frames on display at given times are found by reading all frames or, in long videos, by seeking.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from fractions import Fraction
from typing import Any, BinaryIO, NamedTuple, cast

import av
import numpy as np
import numpy.typing as npt
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter
from av.video.stream import VideoStream
from PIL import Image, ImageOps

from media.errors import MediaError
from media.file_texts import read_file_texts
from media.media_paths import FrameSize
from media.video_limits import VIDEO_FORMATS, VideoInfo, VideoLimits

_IDENTITY = (1, 0, 0, 1)
_MAX_RESIZED = 8  # pixels of a resized picture, as a multiple of those that its crop leaves


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


def fit_picture(image: Image.Image, size: FrameSize) -> npt.NDArray[np.uint8]:
    """Resize a picture to a frame ``uint8 [H, W, 3]``: crop its center, squash it, or pad it with black."""
    if isinstance(size, int):
        return np.asarray(ImageOps.fit(image, (size, size), Image.Resampling.BICUBIC), np.uint8)
    height, width, mode, interpolation = size
    shape, method = (width, height), Image.Resampling[interpolation.upper()]
    if mode == "squash":
        return np.asarray(image.resize(shape, method), np.uint8)
    if mode == "pad":
        return np.asarray(ImageOps.pad(image, shape, method, color=0), np.uint8)
    # As models' libraries do: resize to whole pixels, then crop. For a narrow strip, that would take much memory.
    whole = int if height == width else round
    resized_width = max(width, whole(height * image.width / image.height))
    resized_height = max(height, whole(width * image.height / image.width))
    if resized_width * resized_height > _MAX_RESIZED * width * height:
        return np.asarray(ImageOps.fit(image, shape, method), np.uint8)
    left, top = round((resized_width - width) / 2), round((resized_height - height) / 2)
    resized = image.resize((resized_width, resized_height), method)
    return np.asarray(resized.crop((left, top, left + width, top + height)), np.uint8)


def _display_matrix(frame: VideoFrame) -> tuple[int, ...]:
    """Read a, b, c and d of a frame's display matrix.

    The matrix maps a stored position (x, y) to the displayed position (a·x + c·y, b·x + d·y); its nine numbers are
    a, b, u, c, d, v, x, y, w (ISO/IEC 14496-12, "matrix" in the track header).
    """
    try:
        numbers = np.frombuffer(bytes(cast(Any, frame.side_data)["DISPLAYMATRIX"]), np.int32)
    except KeyError:
        return _IDENTITY
    return tuple(int(numbers[index]) for index in (0, 1, 3, 4))


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


_SEEK_ABOVE_SECONDS = 60.0  # shorter videos are read completely, which is exact and fast enough
_NEAR_SECONDS = 2.0  # decoding this much takes about as long as a seek
_SEEK_MARGINS = (0.0, 10.0, 60.0)  # seconds before the target, since not every container seeks to a key frame


class StreamExtent(NamedTuple):
    """A stream's extent in time."""

    duration: float  # seconds
    frames: int
    start: int | None  # timestamp of the first frame, in units of the stream; None without timestamps


class _TimedFrame(NamedTuple):
    frame: VideoFrame
    begins: float  # seconds since the start of the stream
    ends: float


def _end_tolerance(stream: VideoStream, duration: float) -> float:
    """Compute how many seconds may be missing at the end.

    Headers are often off by a frame or two, and by more in long videos.
    """
    return min(1.0, max(0.1, 2 / float(stream.average_rate or 25), 0.05 * duration))


def _frames_by_reading(video: OpenVideo, times: Sequence[float]) -> Iterator[VideoFrame]:
    """Yield the frames on display in one pass over all frames; raise MediaError if the stream ends before a time."""
    pending = list(reversed(times))
    current: _TimedFrame | None = None
    for following in _timed_frames(video):
        while current is not None and pending and following.begins > pending[-1]:
            pending.pop()
            yield current.frame
        if not pending:
            return
        current = following
    if current is None:
        raise MediaError(f"{video.name} has no decodable frame; it is damaged; export it again")
    duration = video.extent.duration
    if pending[0] - current.ends > _end_tolerance(video.stream, duration):
        end = max(current.ends, 0.0)
        raise MediaError(
            f"{video.name} breaks off after {end:.1f} of {duration:.1f} s; it is truncated; copy it again"
        )
    for _ in pending:
        yield current.frame


def _frames_by_seeking(video: OpenVideo, times: Sequence[float]) -> Iterator[VideoFrame]:
    """Yield the frames on display, seeking to each time unless decoding forward is faster.

    If a seek fails, find the remaining frames by reading.
    """
    cursor: _StreamCursor | None = None
    decoded = 0.0  # seconds that were decoded between the frame that the last seek led to and its target
    for done, target in enumerate(times):
        near = cursor is not None and target - cursor.current.ends <= max(_NEAR_SECONDS, decoded)
        if cursor is None or not near or not cursor.advance(target):
            cursor, decoded = _seek(video, target)
        if cursor is None:
            video.container.seek(0)
            yield from _frames_by_reading(video, times[done:])
            return
        yield cursor.current.frame


class _StreamCursor:
    """A position in a stream, with the frame on display there; tolerates a few missing seconds at the end."""

    def __init__(self, first: _TimedFrame, following: Iterator[_TimedFrame], tolerance: float) -> None:
        self.current = first
        self._following = following
        self._next = next(following, None)
        self._tolerance = tolerance

    def advance(self, target: float) -> bool:
        """Move forward to a later time; False if the stream ends before it."""
        while self._next is not None and self._next.begins <= target:
            self.current, self._next = self._next, next(self._following, None)
        return self._next is not None or target - self.current.ends <= self._tolerance


def _seek(video: OpenVideo, target: float) -> tuple[_StreamCursor | None, float]:
    """Seek to a time; returns the cursor (None if no seek leads there) and the seconds decoded to reach the time."""
    stream, extent = video.stream, video.extent
    for margin in _SEEK_MARGINS:
        offset = max(target - margin, 0.0) / float(stream.time_base or Fraction(1, 1000))
        try:
            video.container.seek((extent.start or 0) + int(offset), stream=stream)
        except av.FFmpegError:
            break
        following = _timed_frames(video)
        first = next(following, None)
        if first is None or first.begins > target:
            continue  # the seek led past the target: use a larger margin
        cursor = _StreamCursor(first, following, _end_tolerance(stream, extent.duration))
        if cursor.advance(target):
            return cursor, target - first.begins
    return None, 0.0


def intact_frames(container: InputContainer, stream: VideoStream | AudioStream) -> Iterator[Any]:
    """Decode a stream's frames in order, skipping damaged packets."""
    for packet in container.demux(stream):
        try:
            frames = packet.decode()
        except av.InvalidDataError:
            continue
        yield from frames


def _timed_frames(video: OpenVideo) -> Iterator[_TimedFrame]:
    """Yield the frames in display order, skipping damaged packets."""
    stream, extent = video.stream, video.extent
    base = float(stream.time_base or Fraction(1, 25))
    step = 1 / float(stream.average_rate or 25)
    expected = 0.0
    for frame in intact_frames(video.container, stream):
        length = (frame.duration or 0) * base
        if frame.pts is None or extent.start is None:
            begins, expected = expected, expected + (length or step)
        else:
            begins = (frame.pts - extent.start) * base
            expected = begins + length
        yield _TimedFrame(frame, begins, expected)


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
            video = open_video(stack, file, size_bytes, name=name, limits=limits, pictures=pictures)
            stream, image = video.stream, None
            for image in video.pictures(times(video.extent.duration)):
                receive(image)
            if image is None:
                raise MediaError(f"{name} has no decodable frame; it is damaged; export it again")
            container = video.container
            if container.streams.subtitles:  # read from the beginning
                container = stack.enter_context(_open_container(file, name, pictures))
            return VideoInfo(
                content_hash=content_hash,
                bytes=size_bytes,
                container=container.format.name.split(",")[0],
                codec=stream.codec_context.name,
                width=image.width,
                height=image.height,
                fps=float(stream.average_rate or 0),
                duration=video.extent.duration,
                frames=video.extent.frames,
                texts=read_file_texts(container, video.start, video.extent.duration),
            )
    except (MediaError, MemoryError):
        raise
    except (av.FFmpegError, ValueError, EOFError, OSError) as error:
        is_seek = isinstance(error, OSError) and error.errno == errno.EINVAL  # before the start of the file
        if not (is_seek or isinstance(error, av.FFmpegError | ValueError | EOFError)):
            raise
        words = getattr(error, "strerror", None) or type(error).__name__
        raise MediaError(
            f"{name} cannot be decoded ({words}); it is damaged or not a video; export it again, for example as mp4"
        ) from error


class OpenVideo(NamedTuple):
    """An open file, its stream of pictures, the width over height of a stored pixel, and the stream's extent."""

    name: str
    limits: VideoLimits
    container: InputContainer
    stream: VideoStream
    aspect: Fraction
    extent: StreamExtent

    @property
    def start(self) -> float:
        """Time of the first frame in the file, in seconds."""
        return float((self.extent.start or 0) * (self.stream.time_base or 0))

    def pictures(self, times: Sequence[float]) -> Iterator[Image.Image]:
        """Yield the upright RGB picture on display at each of ascending times in seconds since the first frame.

        It is the same object while it does not change. Raise MediaError if the stream ends before a time.
        """
        converter, image, converted = FrameConverter(self.aspect), None, None
        is_long = self.extent.duration > _SEEK_ABOVE_SECONDS and self.extent.start is not None
        for frame in _frames_by_seeking(self, times) if is_long else _frames_by_reading(self, times):
            if image is None or frame is not converted:
                # Check again, because the size may change within a stream.
                _check_size(frame.width, frame.height, self.aspect, name=self.name, limits=self.limits)
                image, converted = converter.convert(frame), frame
            yield image


def open_video(
    stack: ExitStack, file: BinaryIO, size_bytes: int, name: str, limits: VideoLimits, pictures: bool = False
) -> OpenVideo:
    """Open a video and check its limits; raise MediaError or an error of PyAV."""
    container = stack.enter_context(_open_container(file, name, pictures))
    stream = _video_stream(container, name)
    aspect = _aspect(stream)
    _check_size(stream.codec_context.width, stream.codec_context.height, aspect, name=name, limits=limits)
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
    return OpenVideo(name, limits, container, stream, aspect=aspect, extent=extent)


def _open_container(file: BinaryIO, name: str, pictures: bool) -> InputContainer:
    file.seek(0)
    formats, listed = _FORMATS, _KNOWN_FORMATS
    if pictures:
        formats, listed = f"{formats},{_PICTURE_FORMATS}", f"{listed}, {_KNOWN_PICTURE_FORMATS}"
    try:
        return av.open(
            file,
            mode="r",
            options={"format_whitelist": formats, "protocol_whitelist": "none"},
            metadata_errors="replace",
        )
    except av.ArgumentError as error:
        raise MediaError(
            f"{name} is not in an accepted video format ({listed}); playlists are not followed; export it, "
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
    times: list[tuple[int, int]] = []
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
                times.append((packet.pts, length))
    if not lengths:
        raise MediaError(f"{name} has no frames; it is damaged or empty; export it again")
    if not times:  # a raw stream: the codec states the frame rate
        return StreamExtent(float(sum(lengths)), len(lengths), None)
    start = min(time for time, _ in times)
    duration = max(float((max(time + length for time, length in times) - start) * base), _MIN_DURATION)
    if container.duration and container.format.name.split(",")[0] in _DURATION_IN_HEADER:
        stated = container.duration / av.time_base
        if stated - (last - first) > _end_tolerance(stream, stated):  # no packet reaches the stated end
            duration = stated
    return StreamExtent(duration, len(lengths), start)
