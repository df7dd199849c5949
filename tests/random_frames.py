"""Random frames for tests that encode videos."""

from __future__ import annotations

import numpy as np
import torch


def random_frames(seed: int, videos: int = 2, frames: int = 2, size: int = 56) -> torch.Tensor:
    """Return random RGB frames ``uint8 [videos, frames, size, size, 3]``; 56 is the frame size of the ``tiny``
    backbone.
    """
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.integers(0, 256, (videos, frames, size, size, 3), dtype=np.uint8))
