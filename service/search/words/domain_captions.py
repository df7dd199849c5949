"""A snapshot's videos by task, the videos without captions, and caption statistics of the domains."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from index.arrays import Ids
from index.vector_ids import find_ids
from index.words.word_evidence import CaptionStatistics
from index.words.word_index import WordIndex

_MAX_SPARSITY = 16  # table entries per video; more widely scattered IDs are searched instead
_FREE_ENTRIES = 1 << 20
_RECOUNTED = 50  # recount once one in this many library texts has changed


class VideoTasks:
    """Maps videos to the indices of their tasks.

    Args:
        videos: Each of T tasks' video vector IDs, without moments; a video belongs to one task.

    Attributes:
        videos: ``int64 [n]``, ascending; vector IDs of all videos.
        by_task: ``int64 [n]``; vector IDs task by task, ascending within each; task t starts at ``starts[t]``.
        counts: ``int64 [T]``; number of videos in each task.
    """

    def __init__(self, videos: Sequence[Ids]) -> None:
        ids: Ids = np.concatenate([np.empty(0, np.int64), *videos])
        self.by_task = ids
        self.starts: Ids = np.cumsum([0, *(len(ids_of_task) for ids_of_task in videos)], dtype=np.int64)
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

    def rows(self, ids: Ids) -> npt.NDArray[np.int64]:
        """Find the rows in ``by_task`` of those IDs that it contains."""
        return self._order[find_ids(self.videos, ids)[1]]

    def locate(self, ids: Ids) -> npt.NDArray[np.int32]:
        """Find the index of each video's task, ``int32 [len(ids)]``; -1 for unknown IDs."""
        if self._table is not None:
            entries = ids - self._first
            last = len(self._table) - 1
            return self._table[np.where((entries < 0) | (entries > last), last, entries)]
        is_stored, rows = find_ids(self.videos, ids)
        indices = np.full(len(ids), -1, np.int32)
        indices[is_stored] = self._tasks[rows]
        return indices


class DomainCaptions:
    """What word evidence needs to know about the captions of a snapshot's tasks. Immutable.

    Args:
        words: Words of the library.
        videos: Videos of the snapshot's tasks.
        statistics: Caption statistics; counted if None.
        counted: Number of library texts when the statistics were counted; None: that of ``words``.

    Attributes:
        statistics: Caption statistics of the T tasks.
        uncaptioned_counts: Number of videos without captions in each task, ``[T]``.
    """

    def __init__(
        self,
        words: WordIndex,
        videos: VideoTasks,
        statistics: CaptionStatistics | None = None,
        counted: int | None = None,
    ) -> None:
        self.version = words.captioned_version
        self._counted = words.documents if counted is None else counted
        self._videos = videos
        self._is_captioned = words.captioned(videos.by_task)
        sums = np.concatenate([[0], np.cumsum(~self._is_captioned)])
        self.uncaptioned_counts: npt.NDArray[np.int64] = np.diff(sums[videos.starts])
        self.statistics = statistics or self._count(words)

    def uncaptioned(self, task: int) -> Ids:
        """Find the videos without captions in the task at an index: vector IDs, ascending."""
        if not self.uncaptioned_counts[task]:
            return self._videos.by_task[:0]
        rows = slice(self._videos.starts[task], self._videos.starts[task + 1])
        return self._videos.by_task[rows][~self._is_captioned[rows]]

    def are_captioned(self, videos: Ids, tasks: npt.NDArray[np.integer]) -> npt.NDArray[np.bool_]:
        """Check whether each video of the snapshot has a caption, given the indices of their tasks."""
        are_captioned = self.uncaptioned_counts[tasks] == 0
        (unknown,) = np.nonzero(~are_captioned)
        are_captioned[unknown] = self._is_captioned[self._videos.rows(videos[unknown])]
        return np.asarray(are_captioned)

    def updated(self, words: WordIndex) -> DomainCaptions:
        """Update the facts to new words; statistics are kept until enough texts were added or removed."""
        if abs(words.documents - self._counted) * _RECOUNTED > self._counted:
            return DomainCaptions(words, self._videos)
        if words.captioned_version == self.version:
            return self
        return DomainCaptions(words, self._videos, statistics=self.statistics, counted=self._counted)

    def _count(self, words: WordIndex) -> CaptionStatistics:
        captions, lengths = words.count_captions(self._videos.locate, len(self._videos.counts))
        uncaptioned = self.uncaptioned_counts.astype(np.float64)
        return CaptionStatistics(
            int(captions.sum()),
            lengths / np.maximum(captions, 1),
            self._videos.counts - uncaptioned,
            uncaptioned,
        )
