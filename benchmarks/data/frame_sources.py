"""Where a video's frames come from: a rendered clip of the video world, a decoded file, or an image.

Files of published data sets are trusted, so they are decoded without the isolation that uploads need. This module does
not import torch, because many small processes import it.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt
from av.container import InputContainer
from av.video.stream import VideoStream
from PIL import Image

from benchmarks.data.world import Clip, render
from media import MediaError, sample_times
from media.frame_sampling import StreamExtent, frames_on_display
from media.media_paths import staged_path
from media.pyav_decoding import FrameConverter, crop_square

Frames = npt.NDArray[np.uint8]
Box = tuple[int, int, int, int]  # left, top, width and height in pixels


@dataclass(frozen=True)
class WorldFrames:
    """Frames of a clip in the video world."""

    clip: Clip

    @property
    def key(self) -> str:
        """Digest of the scene and of the code that renders it."""
        return _digest(_world_code(), repr(self.clip.scene))

    def frames(self, count: int, size: int) -> Frames:
        """Render ``uint8 [count, size, size, 3]`` at the midpoints of equal intervals."""
        return render(self.clip.scene, size=size, times=sample_times(1.0, count))


@dataclass(frozen=True)
class FileFrames:
    """Frames of a video file, or of part of it.

    Attributes:
        span: Start and end of the part in seconds; None for the whole file.
    """

    path: Path
    span: tuple[float, float] | None = None

    @property
    def key(self) -> str:
        """Digest of the file's name, size and modification time, and of the part; the file is not read."""
        stat = self.path.stat()
        return _digest(self.path.name, str(stat.st_size), str(stat.st_mtime_ns), repr(self.span))

    def frames(self, count: int, size: int) -> Frames:
        """Decode ``uint8 [count, size, size, 3]`` at the midpoints of equal intervals of the file or its part.

        Raises:
            MediaError: The file cannot be decoded; the message says why.
        """
        name = self.path.name
        try:
            with av.open(str(self.path), metadata_errors="replace") as container:
                if not container.streams.video:
                    raise MediaError(f"{name} has no video stream")
                extent = _extent(container, container.streams.video[0])
            with av.open(str(self.path), metadata_errors="replace") as container:
                stream = container.streams.video[0]
                stream.codec_context.thread_count = 1  # several processes decode in parallel
                converter = FrameConverter(stream.sample_aspect_ratio or Fraction(1))
                times = self._times(extent.duration, count)
                shown = frames_on_display(container, stream, extent, times, name)
                return np.stack([crop_square(converter.convert(frame), size) for frame in shown])
        except av.FFmpegError as error:
            raise MediaError(f"{name} cannot be decoded ({error.strerror})") from error

    def _times(self, duration: float, count: int) -> list[float]:
        """Choose sample times in the part; it is cut at the end of the file, since annotations are rounded."""
        begin, end = self.span or (0.0, duration)
        begin = min(begin, duration)
        return [begin + time for time in sample_times(max(min(end, duration) - begin, 0.0), count)]


@dataclass(frozen=True)
class ImageFrames:
    """Frames of an image or a region of it, as from a video without motion.

    A whole image is cropped to its center square, like a video's frames. A region is scaled to the square instead,
    because a crop would remove the ends of its object.

    Attributes:
        box: Region in pixels, clipped to the image; None for the whole image.
    """

    path: Path
    box: Box | None = None

    @property
    def key(self) -> str:
        """Digest of the file's name, size and modification time, and of the region; the file is not read."""
        stat = self.path.stat()
        return _digest(self.path.name, str(stat.st_size), str(stat.st_mtime_ns), repr(self.box))

    def frames(self, count: int, size: int) -> Frames:
        """Produce ``uint8 [count, size, size, 3]`` with equal frames.

        Raises:
            MediaError: The image cannot be decoded; the message says why.
        """
        try:
            with Image.open(self.path) as image:
                picture = image.convert("RGB")
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise MediaError(f"{self.path.name} is not an image that can be decoded ({error})") from error
        if self.box is None:
            square = crop_square(picture, size)
        else:
            region = picture.crop(_limited(self.box, picture.width, picture.height))
            square = np.asarray(region.resize((size, size), Image.Resampling.BICUBIC), np.uint8)
        return np.broadcast_to(square, (count, *square.shape))


FrameSource = WorldFrames | FileFrames | ImageFrames


def write_frames(work: tuple[FrameSource, Path], count: int, size: int) -> str:
    """Write a video's frames to a ``.npy`` file atomically; returns the error, or an empty string."""
    frame_source, path = work
    try:
        frames = frame_source.frames(count, size)
    except (MediaError, OSError) as error:
        return str(error)
    staged = staged_path(path, os.getpid())
    try:
        np.save(staged, frames, allow_pickle=False)
        staged.replace(path)
    finally:
        staged.unlink(missing_ok=True)
    return ""


def _extent(container: InputContainer, stream: VideoStream) -> StreamExtent:
    """Read the stream's extent from its header, or else from its packets, without decoding them."""
    if stream.duration and stream.time_base:
        return StreamExtent(float(stream.duration * stream.time_base), stream.frames, stream.start_time)
    stamps = [
        (packet.pts, packet.pts + (packet.duration or 0))
        for packet in container.demux(stream)
        if packet.pts is not None and packet.size
    ]
    if not stamps or not stream.time_base:
        raise MediaError("its frames have no timestamps; convert it to mp4")
    start = min(begin for begin, _ in stamps)
    return StreamExtent(float((max(end for _, end in stamps) - start) * stream.time_base), len(stamps), start)


def _limited(box: Box, width: int, height: int) -> Box:
    """Clip a region to an image: left, upper, right and lower edge, at least one pixel each way."""
    left, top = min(max(box[0], 0), width - 1), min(max(box[1], 0), height - 1)
    right, bottom = min(box[0] + box[2], width), min(box[1] + box[3], height)
    return left, top, max(right, left + 1), max(bottom, top + 1)


@cache
def _world_code() -> str:
    """Digest the source code of the video world."""
    folder = Path(__file__).parent / "world"
    return _digest(*(path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py"))))


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
