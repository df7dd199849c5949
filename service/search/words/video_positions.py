"""Map each video in a snapshot to its task, as a position."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from index.arrays import Ids
from index.vector_ids import find_ids

_MAX_SPARSITY = 16  # table entries per video; more widely scattered IDs are searched instead
_FREE_ENTRIES = 1 << 20


class VideoPositions:
    """Maps videos to their tasks' positions.

    Args:
        videos: Each task's video vector IDs, without moments; a video belongs to one task.

    Attributes:
        videos: ``int64 [n]``, ascending; vector IDs of all videos.
        by_task: ``int64 [n]``; vector IDs task by task, ascending within each.
        starts: ``int64 [T + 1]``; start of each of T tasks in ``by_task``.
        counts: ``int64 [T]``; number of videos in each task.
    """

    def __init__(self, videos: Sequence[Ids]) -> None:
        ids: Ids = np.concatenate([np.empty(0, np.int64), *videos])
        self.by_task = ids
        self.starts: Ids = np.cumsum([0, *(len(own) for own in videos)], dtype=np.int64)
        self.counts: npt.NDArray[np.int64] = np.diff(self.starts)
        tasks = np.repeat(np.arange(len(videos), dtype=np.int32), self.counts)
        order = np.argsort(ids, kind="stable")
        self._order = order
        self.videos: Ids = ids[order]
        self._tasks = tasks[order]
        self._first = int(self.videos[0]) if len(ids) else 0
        span = int(self.videos[-1]) - self._first + 1 if len(ids) else 0
        self._table: npt.NDArray[np.int32] | None = None
        if span <= _MAX_SPARSITY * len(ids) + _FREE_ENTRIES:
            # The last entry is for all IDs outside the table.
            self._table = np.full(span + 1, -1, np.int32)
            self._table[self.videos - self._first] = self._tasks

    def places(self, ids: Ids) -> npt.NDArray[np.int64]:
        """Find the places in ``by_task`` of those IDs that it contains."""
        return self._order[find_ids(self.videos, ids)[1]]

    def locate(self, ids: Ids) -> npt.NDArray[np.int32]:
        """Find each video's task position, ``int32 [len(ids)]``; -1 for unknown IDs."""
        if self._table is not None:
            places = ids - self._first
            last = len(self._table) - 1
            return self._table[np.where((places < 0) | (places > last), last, places)]
        is_known, places = find_ids(self.videos, ids)
        positions = np.full(len(ids), -1, np.int32)
        positions[is_known] = self._tasks[places]
        return positions
