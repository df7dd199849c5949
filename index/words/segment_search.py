"""Search one segment for the units of a query."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from index.arrays import Ids
from index.words.unit_matching import LiveSegment, Occurrences, Spelling, Strengths, distinct
from index.words.word_segment import Documents


class SegmentSearch:
    """Searches a segment for units, and reads each list of documents only once.

    Args:
        units: The spellings of each unit, that of the query first.
    """

    def __init__(self, live: LiveSegment, units: Sequence[Sequence[Spelling]]) -> None:
        self._live = live
        self._units = [spellings[0] for spellings in units]
        self._found: dict[int, Occurrences] = {
            number: live.find_any(spellings) for number, spellings in enumerate(units) if len(spellings) > 1
        }

    def count(self, unit: int) -> int:
        """Count the documents that contain a unit."""
        words = self._units[unit]
        if len(words) == 1 and unit not in self._found and self._live.is_frequent(words[0]):
            return self._live.count(words[0])
        return len(self._find(unit).documents)

    def select(self, units: Sequence[int]) -> tuple[Documents, Strengths]:
        """Find the documents with at least one of the units, and the strength of every unit in them.

        Returns:
            The documents, ascending, and ``float32 [documents, units]``.
        """
        lists = [self._find(unit).documents for unit in units]
        documents = lists[0] if len(lists) == 1 else self._live.union(lists)
        strengths = np.zeros((len(documents), len(self._units)), dtype=np.float32)
        for unit in range(len(self._units)):
            strengths[:, unit] = self._strengths_in(unit, documents)
        return documents, strengths

    def videos(self) -> Ids:
        """Find the videos whose documents together contain all units."""
        order = sorted(range(len(self._units)), key=self.count)
        segment = self._live.segment
        numbers = distinct(segment.owners[self._find(order[0]).documents])
        for unit in order[1:]:
            # A video's documents are either all alive or none is.
            documents = segment.documents_of(numbers)
            numbers = distinct(segment.owners[documents[self._strengths_in(unit, documents) > 0]])
        return segment.videos.ids[numbers]

    def _find(self, unit: int) -> Occurrences:
        found = self._found.get(unit)
        if found is None:
            words = self._units[unit]
            found = self._live.find(words[0]) if len(words) == 1 else self._live.find_phrase(words)
            self._found[unit] = found
        return found

    def _strengths_in(self, unit: int, documents: Documents) -> Strengths:
        """Look up a unit's strength in each of these documents, which are alive, ascending."""
        words = self._units[unit]
        if len(words) == 1 and unit not in self._found:
            return self._live.strengths_in(words[0], documents)
        return self._live.spread(self._find(unit), documents)
