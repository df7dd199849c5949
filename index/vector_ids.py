"""Ids of moments: of the vectors that stand for a part of a video, beside the one that stands for the whole.

A whole video has the id that the catalog gave it, below 2^46. Its moments have ids from 2^62 on, 2^16 for each video.
So an id tells by itself whether it is a moment, and of which video; nobody has to give it out, it comes out the same
whenever a task is done again, and it can belong to no other video, whatever is learned later.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["FIRST_MOMENT_ID", "MAX_MOMENTS_PER_VIDEO", "is_moment", "moment_ids", "video_ids_of"]

Ids = npt.NDArray[np.int64]

_BITS = 16
FIRST_MOMENT_ID = 1 << 62
MAX_MOMENTS_PER_VIDEO = 1 << _BITS  # of one video


def moment_ids(video: int, count: int) -> Ids:
    """``int64 [count]``, ascending: ids of the first moments of a video, in the order of their times.

    Raises:
        ValueError: a video has no such id, or cannot have as many.
    """
    if not 0 <= video < 1 << (62 - _BITS) or not 0 <= count <= MAX_MOMENTS_PER_VIDEO:
        raise ValueError(f"there are no ids for {count} moments of video {video}")
    return np.int64(FIRST_MOMENT_ID + (video << _BITS)) + np.arange(count, dtype=np.int64)


def is_moment(ids: Ids) -> npt.NDArray[np.bool_]:
    """Which ids are of moments, and not of whole videos."""
    return np.asarray(ids >= FIRST_MOMENT_ID)


def video_ids_of(ids: Ids) -> Ids:
    """For each id that of its video: of a moment, the video that it is a part of; of a whole video, itself."""
    return np.where(is_moment(ids), (ids - FIRST_MOMENT_ID) >> _BITS, ids)
