"""Caption statistics of a snapshot's domains, and the videos that have no caption."""

from __future__ import annotations

from threading import Lock
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from index.arrays import Ids
from index.words.word_index import WordIndex
from models.routing.word_evidence import CaptionStatistics
from service.search.words.video_positions import VideoPositions

_RECOUNTED = 50  # recount once one in this many library texts has changed


class DomainCaptions:
    """What word evidence needs to know about the captions of a snapshot's tasks. Immutable.

    Args:
        words: Words of the library.
        positions: Videos of the snapshot's tasks.
        statistics: Caption statistics; counted if None.
        is_captioned: Whether each video of ``positions.by_task`` has a caption; looked up if None.
        counted: Number of library texts when the statistics were counted; None: that of ``words``.

    Attributes:
        statistics: Caption statistics of the T tasks.
        uncaptioned_counts: Number of videos without captions in each task, ``[T]``.
    """

    def __init__(
        self,
        words: WordIndex,
        positions: VideoPositions,
        statistics: CaptionStatistics | None = None,
        is_captioned: npt.NDArray[np.bool_] | None = None,
        counted: int | None = None,
    ) -> None:
        self.version = words.captioned_version
        self._counted = words.documents if counted is None else counted
        self._positions = positions
        self._is_captioned = words.captioned(positions.by_task) if is_captioned is None else is_captioned
        sums = np.concatenate([[0], np.cumsum(~self._is_captioned)])
        self.uncaptioned_counts: npt.NDArray[np.int64] = np.diff(sums[positions.starts])
        self.statistics = statistics or self._count(words)

    @classmethod
    def unknown(cls, positions: VideoPositions) -> DomainCaptions:
        """Create empty facts, for searches without words."""
        zeros = np.zeros(len(positions.starts) - 1)
        captions = np.zeros(len(positions.by_task), np.bool_)
        return cls(WordIndex.empty(), positions, CaptionStatistics(0, zeros, zeros, zeros), captions)

    def uncaptioned(self, position: int) -> Ids:
        """Find the videos without captions in the task at a position: vector IDs, ascending."""
        if not self.uncaptioned_counts[position]:
            return self._positions.by_task[:0]
        own = slice(self._positions.starts[position], self._positions.starts[position + 1])
        return self._positions.by_task[own][~self._is_captioned[own]]

    def are_captioned(self, videos: Ids, positions: npt.NDArray[np.integer]) -> npt.NDArray[np.bool_]:
        """Check whether each video has a caption.

        Args:
            videos: Vector IDs of videos in the snapshot.
            positions: Positions of their tasks.
        """
        found = self.uncaptioned_counts[positions] == 0
        (unknown,) = np.nonzero(~found)
        found[unknown] = self._is_captioned[self._positions.places(videos[unknown])]
        return np.asarray(found)

    def updated(self, words: WordIndex) -> DomainCaptions:
        """Update the facts to a new state of the words.

        Statistics are kept until enough texts were added or removed.
        """
        if abs(words.documents - self._counted) * _RECOUNTED > self._counted:
            return DomainCaptions(words, self._positions)
        if words.captioned_version == self.version:
            return self
        is_captioned = None
        if words.captioned_version == self.version + 1:
            is_captioned = self._is_captioned.copy()
            places = self._positions.places(words.newly_changed)
            is_captioned[places] = ~is_captioned[places]
        return DomainCaptions(words, self._positions, self.statistics, is_captioned, self._counted)

    def _count(self, words: WordIndex) -> CaptionStatistics:
        captions, lengths = words.count_captions(self._positions.locate, len(self._positions.counts))
        uncaptioned = self.uncaptioned_counts.astype(np.float64)
        return CaptionStatistics(
            int(captions.sum()),
            lengths / np.maximum(captions, 1),
            self._positions.counts - uncaptioned,
            uncaptioned,
        )


class CaptionsOfSnapshots:
    """Caches caption facts for every snapshot in use. Thread-safe."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[VideoPositions, DomainCaptions] = WeakKeyDictionary()
        self._lock = Lock()

    def of(self, words: WordIndex, positions: VideoPositions) -> DomainCaptions:
        """Get the facts for a snapshot's videos."""
        with self._lock:
            known = self._known.get(positions)
            current = DomainCaptions(words, positions) if known is None else known.updated(words)
            if current is not known:
                self._known[positions] = current
            return current
