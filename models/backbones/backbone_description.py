"""Facts about a backbone, in a module that imports no torch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class FrameSpec(NamedTuple):
    """Frames that a backbone reads from a video."""

    frames: int  # frames per video
    size: int  # side of the square frame, pixels


class TextBackground(NamedTuple):
    """Distribution of generic texts in the joint space, without its reserved coordinates."""

    mean: npt.NDArray[np.float32]  # [D]
    precision: npt.NDArray[np.float32]  # inverse of the regularized covariance, [D, D]
