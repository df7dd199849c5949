"""An inverted index of videos' texts, in memory or mapped from word files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from index.arrays import Ids
from index.words.segment_merging import merge_small
from index.words.text_analysis import COMPOUND, QueryUnit, split_words
from index.words.unit_matching import (
    EXACT,
    OTHER_FORM,
    LiveSegment,
    SegmentSearch,
    UnitForms,
    merge_segments_of,
    remove_videos,
)
from index.words.word_forms import ALL_STOP_WORDS, is_correctable, present_languages, spelling_neighbors
from index.words.word_segment import ROW, Document, TextKind, build_segment

__all__ = ["TextKind", "VideoText", "WordIndex", "WordMatches"]

# A unit in more than this share of the documents, and in more than this many, selects no documents.
COMMON_SHARE = 0.05
COMMON_DOCUMENTS = 1000
# Together, the units select at most this many documents, rarest first: a query with many frequent words selects the
# texts with its rarer words.
SELECTED_DOCUMENTS = 10_000
_MAX_SUGGESTED = 1000  # terms per segment that are compared for suggestions
_VIDEOS_OF_A_SEGMENT = 1 << 16  # indexed at once
_VIDEOS_OF_A_PART = 1 << 20


class VideoText(NamedTuple):
    """One text of a video.

    Attributes:
        field: Metadata field that the text comes from.
        votes: For relevance feedback: callers with a positive verdict, less those with a negative one.
    """

    kind: TextKind
    text: str
    field: str | None = None
    votes: int = 0


@dataclass(frozen=True, eq=False)
class WordMatches:
    """Documents, that is, single texts of videos, that contain units of a query.

    By default, they are all documents with a unit that is not common, or only those with the rarest such units if they
    exceed ``SELECTED_DOCUMENTS``. If every unit that occurs is common, they are all documents with the rarest one. A
    document has the strengths of all units. Other documents of its video, which are not listed, may contain more units;
    ``WordIndex.containing`` considers them all.
    """

    videos: Ids  # [documents]
    kinds: npt.NDArray[np.uint8]  # [documents], TextKind
    votes: npt.NDArray[np.int16]  # [documents], of relevance feedback
    lengths: npt.NDArray[np.int32]  # [documents], number of words
    strengths: npt.NDArray[np.float32]  # [documents, units]: 1 exact, 0.9 same stem, 0 absent
    frequencies: npt.NDArray[np.int64]  # [units], how many documents in the index contain each unit
    documents: int  # in the index

    def select(self, selected: npt.NDArray[np.bool_]) -> WordMatches:
        """Keep the documents for which ``selected`` is true."""
        if selected.all():
            return self
        return replace(
            self,
            videos=self.videos[selected],
            kinds=self.kinds[selected],
            votes=self.votes[selected],
            lengths=self.lengths[selected],
            strengths=self.strengths[selected],
        )


class WordIndex:
    """An inverted index of videos' texts; immutable and thread-safe.

    A change returns a new index that shares its memory with the previous one, except for a small segment and the flags
    of replaced documents. Segments are merged as they grow, so a text is copied a logarithmic number of times. Texts
    without words are not stored.
    """

    def __init__(self, segments: tuple[LiveSegment, ...], videos: int, captioned_version: int = 0) -> None:
        self.segments = segments
        self.videos = videos  # with at least one text
        self.documents = sum(map(len, segments))
        self.captioned_version = captioned_version  # changes with the answers of ``captioned``

    @classmethod
    def empty(cls) -> WordIndex:
        """Start without texts."""
        return cls((), 0)

    def replace(self, texts: Iterable[tuple[int, Sequence[VideoText]]]) -> WordIndex:
        """Replace all texts of videos; a video without texts is removed. If a video repeats, its last texts count."""
        index, changed = self, False
        remaining = iter(texts)
        while chunk := dict(islice(remaining, _VIDEOS_OF_A_SEGMENT)):
            index, changed = index._replace(chunk), True
        if changed:
            for segment in index.segments:
                for language in index._languages:
                    segment.segment.stem_order(language)  # now, rather than during a search
        return index

    def compacted(self) -> WordIndex:
        """Copy the segments with texts that were replaced, without these."""
        return WordIndex(
            merge_small(self.segments, merge_segments_of, compact=True), self.videos, self.captioned_version
        )

    def _replace(self, texts: Mapping[int, Sequence[VideoText]]) -> WordIndex:
        changed = np.fromiter(texts, dtype=np.int64, count=len(texts))
        was_captioned = self.captioned(changed)
        segments, removed = remove_videos(self.segments, changed)
        added = build_segment(
            [
                Document(video, text.kind, text.text, text.votes)
                for video, group in texts.items()
                for text in group
            ]
        )
        if len(added):
            segments = (*segments, LiveSegment.of(added))
        videos = self.videos - removed + len(added.videos.ids)
        index = WordIndex(merge_small(segments, merge_segments_of), videos, self.captioned_version)
        index.captioned_version += bool((was_captioned != index.captioned(changed)).any())
        return index

    def lookup(
        self,
        units: Sequence[QueryUnit],
        select: Callable[[npt.NDArray[np.int64], int], Sequence[int]] | None = None,
    ) -> WordMatches:
        """Find the documents that contain units of a query; see ``WordMatches``.

        Args:
            select: Given the units' frequencies and the number of all documents, returns the units of which a document
                must contain one; None selects those that are not common.
        """
        searches = self._searches(units)
        frequencies = np.array(
            [sum(search.count(unit) for search in searches) for unit in range(len(units))], dtype=np.int64
        )
        if select is not None:
            selecting = select(frequencies, self.documents)
        else:
            # Those whose documents the matches contain completely, rarest first.
            order = [unit for unit in np.argsort(frequencies, kind="stable").tolist() if frequencies[unit]]
            limit = max(COMMON_DOCUMENTS, int(COMMON_SHARE * self.documents))
            sums = np.cumsum(frequencies[order])
            selecting = [
                unit
                for unit, together in zip(order, sums, strict=True)
                if frequencies[unit] <= limit and together <= SELECTED_DOCUMENTS
            ] or order[:1]
        rows, strengths = [np.empty(0, dtype=ROW)], [np.empty((0, len(units)), dtype=np.float32)]
        if selecting:
            parts = [search.select(selecting) for search in searches]
            rows = [
                live.segment.rows.take(documents)
                for live, (documents, _) in zip(self.segments, parts, strict=True)
            ]
            strengths = [strength for _, strength in parts]
        # Joining rows takes long, even a single part, and most indexes have a single segment.
        joined = np.concatenate(rows) if len(rows) > 1 else rows[0]
        return WordMatches(
            videos=np.ascontiguousarray(joined["video"]),
            kinds=joined["kind"].astype(np.uint8),
            votes=np.ascontiguousarray(joined["votes"]),
            lengths=np.ascontiguousarray(joined["length"]),
            strengths=np.concatenate(strengths),
            frequencies=frequencies,
            documents=self.documents,
        )

    def containing(self, units: Sequence[QueryUnit]) -> Ids:
        """Find the videos whose texts together contain all units, ascending; none without units."""
        if not units:
            return np.empty(0, dtype=np.int64)
        videos = [search.videos() for search in self._searches(units)]
        return np.sort(np.concatenate([np.empty(0, dtype=np.int64), *videos]))

    def captioned(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """Check whether each video has a caption, ``bool [ids]``."""
        captioned = np.zeros(len(ids), dtype=np.bool_)
        for live in self.segments:
            videos = live.segment.videos
            numbers, indices = videos.find(ids)
            has_captions = videos.captions[numbers] > 0
            captioned[indices[has_captions & live.alive[videos.starts[numbers]]]] = True
        return captioned

    def captions(self) -> Iterator[tuple[Ids, npt.NDArray[np.int32], npt.NDArray[np.int32]]]:
        """Yield the captioned videos in parts: their IDs, and how many captions, and words in them, each has."""
        for live in self.segments:
            videos = live.segment.videos
            for start in range(0, len(videos.ids), _VIDEOS_OF_A_PART):
                rows = slice(start, start + _VIDEOS_OF_A_PART)
                is_counted = live.alive[videos.starts[:-1][rows]] & (videos.captions[rows] > 0)
                ids, captions, words = videos.ids[rows], videos.captions[rows], videos.caption_words[rows]
                yield ids[is_counted], captions[is_counted], words[is_counted]

    def between(self, starts: Ids, ends: Ids) -> Ids:
        """List the IDs in disjoint ranges, each from its start to before its end, that have or had texts."""
        ids = [live.segment.videos.between(starts, ends) for live in self.segments]
        return np.concatenate([np.empty(0, dtype=np.int64), *ids])

    def expand(self, unit: QueryUnit) -> set[tuple[frozenset[str], ...]]:
        """Find the spellings of a unit: for each of a spelling's adjacent words, the terms that match it."""
        dropped = {COMPOUND + term for term in unit.joined}  # texts with these have the parts
        return {
            tuple(
                frozenset(live.segment.terms.bytes_of(term).decode() for term, _ in words) - dropped
                for words in spelling
            )
            for live, search in zip(self.segments, self._searches([unit]), strict=True)
            for spelling in search.spellings[0]
        }

    def suggest(self, prefix: str, count: int) -> list[tuple[str, int]]:
        """Complete a word to terms, with the number of documents that contain each, most frequent first."""
        words = split_words(prefix)
        if len(words) != 1 or count < 1:
            return []
        starts = [(mark + words[0][0].removeprefix(COMPOUND)).encode() for mark in ("", COMPOUND)]
        ranges = [(live, live.segment.terms.with_prefix(start)) for live in self.segments for start in starts]
        taken = 2 * count
        while True:
            terms: set[bytes] = set()
            bound = 0  # on the frequency of a term that is not taken
            for live, matches in ranges:
                frequencies = live.segment.counts[matches.start : matches.stop]
                best = np.argsort(-frequencies, kind="stable")
                names = (live.segment.terms.bytes_of(matches.start + int(row)) for row in best[:taken])
                terms.update(name.removeprefix(COMPOUND.encode()) for name in names)
                bound += int(frequencies[best[taken]]) if taken < len(best) else 0
            totals = {term: self._frequency(term) for term in terms}
            ranked = sorted((-total, term) for term, total in totals.items() if total)[:count]
            is_full = len(ranked) == count and -ranked[-1][0] > bound  # of equally frequent terms, the first
            if not bound or is_full or taken > _MAX_SUGGESTED:
                return [(term.decode(), -total) for total, term in ranked]
            taken *= 4

    def correct(self, term: str) -> str | None:
        """Correct a term that no text contains to the most frequent term at one typing error.

        None if the term is right, or no term is so close.
        """
        if not is_correctable(term) or self.contains(term):
            return None
        neighbors = [word.encode() for word in spelling_neighbors(term)]
        possible = np.zeros(len(neighbors), dtype=np.bool_)
        for live in self.segments:
            for prefix in (b"", COMPOUND.encode()):
                possible |= live.segment.terms.may_contain([prefix + word for word in neighbors])
        frequencies = {
            neighbors[row]: self._frequency(neighbors[row]) for row in np.flatnonzero(possible).tolist()
        }
        best = min(frequencies, key=lambda word: (-frequencies[word], word), default=b"")
        return best.decode() if frequencies.get(best) else None

    @cached_property
    def _languages(self) -> tuple[str, ...]:
        counts = np.zeros(len(ALL_STOP_WORDS), dtype=np.int64)
        for live in self.segments:
            counts += live.stop_counts
        return present_languages(counts.tolist(), self.documents)

    def _searches(self, units: Sequence[QueryUnit]) -> list[SegmentSearch]:
        """Create a search of each segment for the forms of each word of units."""
        # The joined terms that texts may have, as they are or as compounds, also in the singular or plural.
        names = [
            (term, (mark + form).encode())
            for term in dict.fromkeys(term for unit in units for term in unit.joined)
            for form in (term, term.removesuffix("s"), f"{term}s")
            for mark in ("", COMPOUND)
        ]
        encoded = [name for _, name in names]
        checks = [live.segment.terms.may_contain(encoded) for live in self.segments if names]
        stored = {term for (term, _), *has in zip(names, *checks, strict=True) if any(has)}

        # In a text with several forms of a word, the last one counts.
        forms: list[UnitForms] = []
        for unit in units:
            compounds = [(term, EXACT) for term in unit.joined if term.startswith(COMPOUND)]
            joined = [
                (term.removeprefix(COMPOUND), OTHER_FORM)
                for term in unit.joined
                if term in stored or term.startswith(COMPOUND)
            ]
            if unit.is_phrase:
                forms.append(
                    ([[[(word, EXACT)] for word in unit.terms], *([[term]] for term in joined)], None)
                )
                continue
            (word,) = unit.terms
            if "german" in self._languages and (umlauts := re.sub("([aou])e", r"\1", word)) != word:
                joined.append((umlauts, OTHER_FORM))  # "Muenchen" finds "München"
            # A text with a compound has its parts, too: it counts more if the query has the compound, and less if not.
            others = [(COMPOUND + term, OTHER_FORM) for term, _ in joined]
            typed = (word, OTHER_FORM if compounds else EXACT)
            forms.append(([[[*joined, typed, *others, *compounds]]], None if compounds else word))
        return [SegmentSearch(live, forms, self._languages) for live in self.segments]

    def contains(self, term: str) -> bool:
        """Check whether a text has a folded word, or another form of it."""
        return any(search.count(0) for search in self._searches([QueryUnit((term,), False, 0, 0)]))

    def _frequency(self, term: bytes) -> int:
        """Count the documents with a term or its compound."""
        total = 0
        for live in self.segments:
            indices = map(live.segment.terms.find, (term, COMPOUND.encode() + term))
            total += live.count([(index, EXACT) for index in indices if index >= 0])
        return total
