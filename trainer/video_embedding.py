"""Embedding of a task's videos into the vectors of its shard."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor

from trainer.task_data import Clip, chunks, load_frames

_BATCH = 32  # fixed, so that repeated runs give the same bits


def embed_clips(
    encode: Callable[[Tensor], Tensor],
    clips: Sequence[Clip],
    *,
    report: Callable[[int], None] = lambda done: None,
) -> npt.NDArray[np.float32]:
    """Unit vectors ``[n, dim]`` of the clips, in their order.

    Args:
        encode: Video encoder, ``uint8 [n, M, H, W, 3]`` to ``[n, dim]``.
        clips: Clips with cached frames.
        report: Called with the number of embedded videos after each batch.

    Raises:
        FramesMissing: The frames of a video are gone; the message names the video.
    """
    parts: list[npt.NDArray[np.float32]] = []
    done = 0
    for chunk in chunks(clips, _BATCH):
        parts.append(encode(load_frames(chunk)).float().cpu().numpy())
        done += len(chunk)
        report(done)
    return np.concatenate(parts)


class MemoryShard:
    """Vectors by id, in memory.

    Args:
        ids: Vector ids ``int64 [n]``.
        vectors: Vectors ``float32 [n, dim]``.
    """

    def __init__(self, ids: npt.NDArray[np.int64], vectors: npt.NDArray[np.float32]) -> None:
        self.ids = ids
        self._vectors = vectors
        self._rows = {int(video): row for row, video in enumerate(ids)}

    def vectors(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Vectors of these ids, ``float32 [len(ids), dim]``."""
        return self._vectors[[self._rows[int(video)] for video in ids]]
