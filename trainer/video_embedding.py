"""Every accepted video of a task becomes one vector, once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor

from trainer.task_data import Clip, load_frames

__all__ = ["MemoryShard", "embed_clips"]

_BATCH = 32  # fixed, so that a second run gives the same bits


def embed_clips(
    encode: Callable[[Tensor], Tensor],
    clips: Sequence[Clip],
    *,
    report: Callable[[int], None] = lambda done: None,
) -> npt.NDArray[np.float32]:
    """Unit vectors ``[n, dim]`` of the clips, in their order.

    Args:
        encode: ``uint8 [n, M, H, W, 3]`` to ``[n, dim]``.
        report: called with the number of videos that are done.

    Raises:
        FramesMissing: names the video.
    """
    parts: list[npt.NDArray[np.float32]] = []
    for start in range(0, len(clips), _BATCH):
        chunk = clips[start : start + _BATCH]
        parts.append(encode(load_frames(chunk)).float().cpu().numpy())
        report(start + len(chunk))
    return np.concatenate(parts)


class MemoryShard:
    """Vectors by id, before they are laid down.

    Args:
        ids: ``int64 [n]``.
        vectors: ``float32 [n, dim]``.
    """

    def __init__(self, ids: npt.NDArray[np.int64], vectors: npt.NDArray[np.float32]) -> None:
        self.ids = ids
        self._vectors = vectors
        self._rows = {int(video): row for row, video in enumerate(ids)}

    def vectors(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """``float32 [len(ids), dim]``."""
        return self._vectors[[self._rows[int(video)] for video in ids]]
