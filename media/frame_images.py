"""From a decoded frame to the picture a person sees, and to the square a model sees."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter
from PIL import Image, ImageOps

__all__ = ["FrameConverter", "crop_square"]

_Pixels = npt.NDArray[np.uint8]
_AS_STORED = (1, 0, 0, 1)


class FrameConverter:
    """Makes pictures of the frames of one stream: RGB, square pixels, turned and mirrored as the file asks.

    What is transparent lies on black.
    """

    def __init__(self, aspect: Fraction) -> None:
        """``aspect`` is the width over the height of a stored pixel."""
        self._aspect = aspect
        # One for all frames: a frame's own would start a thread for each core, each time.
        self._reformatter = VideoReformatter()
        self._matrix: tuple[int, ...] | None = None

    def __call__(self, frame: VideoFrame) -> Image.Image:
        """The picture of a frame."""
        if self._matrix is None:  # read once: side data tie a frame into a cycle, which keeps its memory
            self._matrix = _display_matrix(frame)
        image = self._flat(frame)
        if self._aspect != 1:
            width = max(1, round(image.width * self._aspect))
            image = image.resize((width, image.height), Image.Resampling.BICUBIC)
        return (
            image
            if self._matrix == _AS_STORED
            else Image.fromarray(_turned(np.asarray(image), *self._matrix))
        )

    def _flat(self, frame: VideoFrame) -> Image.Image:
        if not any(part.is_alpha for part in frame.format.components):
            return Image.fromarray(self._pixels(frame, "rgb24"))
        layered = Image.fromarray(self._pixels(frame, "rgba"))
        image = Image.new("RGB", layered.size)
        image.paste(layered, mask=layered.getchannel("A"))
        return image

    def _pixels(self, frame: VideoFrame, layout: str) -> _Pixels:
        return np.asarray(self._reformatter.reformat(frame, format=layout, threads=1).to_ndarray(), np.uint8)


def crop_square(image: Image.Image, size: int) -> _Pixels:
    """Short side to ``size`` (bicubic), centre crop: ``uint8 [size, size, 3]``."""
    return np.asarray(ImageOps.fit(image, (size, size), Image.Resampling.BICUBIC), np.uint8)


def _display_matrix(frame: VideoFrame) -> tuple[int, ...]:
    """a, b, c, d of the matrix that a frame shall be displayed with.

    It takes a stored place (x, y) to the displayed (a·x + c·y, b·x + d·y); its nine numbers are
    a, b, u, c, d, v, x, y, w (ISO/IEC 14496-12, "matrix" of the track header).
    """
    try:
        numbers = np.frombuffer(bytes(cast(Any, frame.side_data)["DISPLAYMATRIX"]), np.int32)
    except KeyError:
        return _AS_STORED
    return tuple(int(numbers[place]) for place in (0, 1, 3, 4))


def _turned(pixels: _Pixels, a: int, b: int, c: int, d: int) -> _Pixels:
    """Apply a display matrix, rounded to the nearest of the eight ways a picture can lie."""
    if abs(a) + abs(d) >= abs(b) + abs(c):
        mirrored, flipped = a < 0, d < 0
    else:
        pixels = pixels.transpose(1, 0, 2)
        mirrored, flipped = c < 0, b < 0
    pixels = pixels[:, ::-1] if mirrored else pixels
    pixels = pixels[::-1] if flipped else pixels
    return np.ascontiguousarray(pixels)
