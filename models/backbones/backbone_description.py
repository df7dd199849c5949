"""Facts about a backbone, and texts as arrays of token IDs, in a module that imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class FrameSpec(NamedTuple):
    """Frames that a backbone reads from a video."""

    frames: int  # frames per video
    # Side of the square to which frames are cropped, bicubic; or height, width, resize mode (crop, squash or pad), and
    # interpolation (by Pillow's name).
    size: int | tuple[int, int, str, str]

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of a frame, pixels."""
        return (self.size, self.size) if isinstance(self.size, int) else self.size[:2]


class TextBackground(NamedTuple):
    """Distribution of generic texts in the coordinates of the joint space that the towers fill."""

    mean: npt.NDArray[np.float32]  # [D]
    precision: npt.NDArray[np.float32]  # inverse of the regularized covariance, [D, D]


TokenIds = npt.NDArray[np.int64]


def pad_texts(texts: Sequence[TokenIds], padding: int = 0) -> TokenIds:
    """Stack the token IDs of texts as ``[n, L]``, padded to the longest text."""
    ids = np.full((len(texts), max(map(len, texts), default=0)), padding, np.int64)
    for row, text in zip(ids, texts, strict=True):
        row[: len(text)] = text
    return ids
