"""Convert decoded frames to upright pictures, and to the squares that a model reads."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter
from PIL import Image, ImageOps

_IDENTITY = (1, 0, 0, 1)


class FrameConverter:
    """Converter of a stream's frames to RGB pictures with square pixels, rotated and mirrored as the file states.

    Transparent areas become black.

    Args:
        aspect: Width over height of a stored pixel.
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
