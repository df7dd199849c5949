"""Vector IDs of videos and moments.

Each whole video has an ID, and so has each moment of a long video. A whole video has the ID that the catalog assigned,
below 2^46. Its moments have IDs from 2^62 on, 2^16 for each video. An ID therefore shows whether it belongs to a
moment, and of which video. Moment IDs need no registry, are the same whenever a task is learned again, and can never
belong to another video.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from index.arrays import Ids, Rows


def find_ids(stored: Ids, wanted: Ids) -> tuple[npt.NDArray[np.bool_], Rows]:
    """Find IDs among stored ones.

    Args:
        stored: Distinct IDs, ascending.

    Returns:
        Whether each wanted ID is stored, and the rows in ``stored`` of those that are.
    """
    if not len(stored):
        return np.zeros(len(wanted), np.bool_), np.empty(0, np.int64)
    rows = np.minimum(np.searchsorted(stored, wanted), len(stored) - 1)
    is_stored = np.asarray(stored[rows] == wanted, np.bool_)
    return is_stored, rows[is_stored]


_MOMENT_BITS = 16
FIRST_MOMENT_ID = 1 << 62
MAX_MOMENTS_PER_VIDEO = 1 << _MOMENT_BITS


def moment_ids(video: int, count: int) -> Ids:
    """Compute the IDs of a video's first ``count`` moments, in order of time.

    Returns:
        ``int64 [count]``, ascending.

    Raises:
        ValueError: The video's ID or the count is out of range.
    """
    if not 0 <= video < 1 << (62 - _MOMENT_BITS) or not 0 <= count <= MAX_MOMENTS_PER_VIDEO:
        raise ValueError(f"there are no IDs for {count} moments of video {video}")
    return np.int64(FIRST_MOMENT_ID + (video << _MOMENT_BITS)) + np.arange(count, dtype=np.int64)


def is_moment(ids: Ids) -> npt.NDArray[np.bool_]:
    """Check whether each ID belongs to a moment rather than to a whole video."""
    return np.asarray(ids >= FIRST_MOMENT_ID)


def video_ids_of(ids: Ids) -> Ids:
    """Map each vector ID to its video: a moment's to the video that contains it, a whole video's to itself."""
    return np.where(is_moment(ids), (ids - FIRST_MOMENT_ID) >> _MOMENT_BITS, ids)


def moment_numbers(ids: Ids) -> Ids:
    """Number each moment within its video, from 0."""
    return np.asarray(ids & (MAX_MOMENTS_PER_VIDEO - 1))
