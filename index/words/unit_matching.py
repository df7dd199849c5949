"""Segments of a changing index, and search in one of them for the units of a query: words with variants, or phrases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from index.arrays import Ids
from index.words.text_analysis import COMPOUND, WORD_PART
from index.words.word_segment import Documents, Flags, TermTable, WordSegment, merge_segments, run_starts

EXACT = 1.0
OTHER_FORM = 0.9  # the same stem, or another spelling: joined, apart or with a hyphen

# Lists are sorted and searched while they have fewer entries than one per this many documents (measured with a million
# texts); beyond, an array over all documents of the segment is faster.
_FLAGGED_SHARE = 4
_SPREAD_SHARE = 64
_SEARCHED_SHARE = 16  # one list in another
_FREQUENT = 1000
_CACHED_WORDS = 4096
_POSITION_BITS = 16
_MIN_CHARACTERS = 3  # of a word that is split

Strengths = npt.NDArray[np.float32]


Form = tuple[str, float]  # a term that matches a word of a query, and how well
# Spellings of a unit, that of the query first, and the word that texts may spell as several. A spelling has words, and
# each word has forms.
UnitForms = tuple[list[list[list[Form]]], str | None]

Variant = tuple[int, float]  # a term in a segment that matches a word, and how well
Spelling = list[list[Variant]]  # for each word of a phrase, or for one word, the terms that match it
# The documents that contain a unit, ascending, and the best variant's strength in each.
Occurrences = tuple[Documents, Strengths]


@dataclass(frozen=True, eq=False)
class LiveSegment:
    """A segment, and which of its documents are alive; the others were replaced."""

    segment: WordSegment
    alive: Flags
    documents: int  # how many are alive
    stop_counts: npt.NDArray[np.int64]  # documents alive with each word of ALL_STOP_WORDS
    _counts: dict[tuple[int, ...], int] = field(default_factory=dict)
    _variants: dict[tuple[object, ...], dict[int, float]] = field(default_factory=dict)
    _splits: dict[tuple[str, ...], list[Spelling]] = field(default_factory=dict)

    @classmethod
    def of(cls, segment: WordSegment) -> LiveSegment:
        """Start with all documents alive."""
        alive = np.broadcast_to(np.True_, len(segment))  # without memory
        return cls(segment, alive, len(segment), segment.stop_counts())

    def without(self, documents: Documents) -> LiveSegment:
        """Mark documents, which are alive, as replaced."""
        alive = np.array(self.alive)
        alive[documents] = False
        stop_counts = self.stop_counts - self.segment.stop_counts(documents)
        return LiveSegment(self.segment, alive, self.documents - len(documents), stop_counts)

    def __len__(self) -> int:
        return self.documents

    @cached_property
    def replaced(self) -> int:
        """How many documents were replaced."""
        return len(self.segment) - self.documents

    def variants(self, forms: Sequence[Form], languages: tuple[str, ...]) -> list[Variant]:
        """Find the distinct terms that match any form of a word; in a document with several, the last one counts.

        A form matches the terms with its stem in one of the languages, its compound, and last the term itself.
        """
        variants: dict[int, float] = {}
        for form in forms:
            matches = self._variants.get((*form, *languages))
            if matches is None:
                term, strength = form
                stems = [index for language in languages for index in self.segment.same_stem(language, term)]
                matches = dict.fromkeys(
                    [*stems, self.segment.terms.find((COMPOUND + term).encode())], OTHER_FORM
                )
                exact = self.segment.terms.find(term.encode())
                matches.pop(exact, None)
                matches[exact] = strength
                matches.pop(-1, None)
                if len(self._variants) < _CACHED_WORDS:
                    self._variants[(*form, *languages)] = matches
            for index, strength in matches.items():
                variants.pop(index, None)
                variants[index] = strength
        return list(variants.items())

    def splits(self, word: str, languages: tuple[str, ...]) -> list[Spelling]:
        """Find the phrases in live documents that spell a word as several."""
        if not (word.isascii() and word.isalpha()):
            languages = ()
        phrases = self._splits.get((word, *languages))
        if phrases is None:
            phrases = []
            for first, rest in _split_word(word, self.segment.terms):
                last = self.variants([(rest, EXACT)], languages)
                for others in ([last], *self.splits(rest, languages)):
                    phrase = [self.variants([(first, EXACT)], ()), *others]
                    if all(phrase) and len(self.find_phrase(phrase)[0]):
                        phrases.append(phrase)
            if len(self._splits) < _CACHED_WORDS:
                self._splits[(word, *languages)] = phrases
        return phrases

    def count(self, variants: list[Variant]) -> int:
        """Count the live documents that contain a word."""
        if len(variants) == 1 and not self.replaced:
            return int(self.segment.counts[variants[0][0]])
        key = tuple(term for term, _ in variants)
        count = self._counts.get(key)
        if count is None:
            count = len(self.find(variants)[0])
            if len(self._counts) < _CACHED_WORDS:
                self._counts[key] = count
        return count

    def find(self, variants: list[Variant]) -> Occurrences:
        """Find the live documents that contain a word."""
        if not variants:
            return np.empty(0, dtype=np.int32), np.empty(0, dtype=np.float32)
        if len(variants) == 1:
            term, strength = variants[0]
            documents = self.segment.documents[self.segment.entries(term)]
            if len(documents) != self.segment.counts[term]:
                documents = documents[run_starts(documents)]
            if self.replaced:
                documents = documents[self.alive[documents]]
            return documents, np.full(len(documents), strength, dtype=np.float32)
        documents = self.union([self.segment.documents[self.segment.entries(term)] for term, _ in variants])
        documents = documents[self.alive[documents]] if self.replaced else documents
        return documents, self.strengths_in(variants, documents)

    def union(self, lists: list[Documents]) -> Documents:
        """Merge ascending lists into the distinct documents, ascending."""
        if sum(map(len, lists)) * _FLAGGED_SHARE < len(self.alive):
            merged = np.sort(np.concatenate(lists))
            return merged[run_starts(merged)]
        flags = np.zeros(len(self.alive), dtype=np.bool_)
        for documents in lists:
            flags[documents] = True
        return np.flatnonzero(flags).astype(np.int32)

    def spread(self, unit: Occurrences, documents: Documents) -> Strengths:
        """Look up a unit's strength in each of some distinct documents, 0 where it is absent."""
        listed, strengths_of_unit = unit
        if listed is documents:
            return strengths_of_unit
        strengths = np.zeros(len(documents), dtype=np.float32)
        if not len(listed) or not len(documents):
            return strengths
        if (len(listed) + len(documents)) * _SPREAD_SHARE > len(self.alive):
            dense = np.zeros(len(self.alive), dtype=np.float32)
            dense[listed] = strengths_of_unit
            return dense[documents]
        if len(listed) < len(documents):
            indices, hits = _search(documents, listed)
            strengths[indices[hits]] = strengths_of_unit[hits]
        else:
            indices, hits = _search(listed, documents)
            strengths[hits] = strengths_of_unit[indices[hits]]
        return strengths

    def strengths_in(self, variants: list[Variant], documents: Documents) -> Strengths:
        """Look up a word's strength in each of some distinct live documents, 0 where it is absent."""
        strengths = np.zeros(len(documents), dtype=np.float32)
        for term, strength in variants if len(documents) else []:
            listed = self.segment.documents[self.segment.entries(term)]
            if len(listed) < len(documents) and len(listed) * _SPREAD_SHARE < len(self.alive):
                indices, hits = _search(documents, listed)
                strengths[indices[hits]] = strength
            else:
                strengths[self._contained(documents, listed)] = strength
        return strengths

    def _contained(self, documents: Documents, listed: Documents) -> Flags:
        """Check whether each document, which may repeat, is in a list."""
        if len(documents) * _SEARCHED_SHARE < len(listed):
            return _search(listed, documents)[1]
        flags = np.zeros(len(self.alive), dtype=np.bool_)
        flags[listed] = True
        return flags[documents]

    def find_any(self, spellings: Sequence[Spelling]) -> Occurrences:
        """Find the live documents that contain a unit in any spelling; all but the first are other forms."""
        first, *others = [
            self.find(words[0]) if len(words) == 1 else self.find_phrase(words) for words in spellings
        ]
        if not others:
            return first
        documents = self.union([first[0], *(other[0] for other in others)])
        strengths = [np.minimum(self.spread(other, documents), np.float32(OTHER_FORM)) for other in others]
        return documents, np.maximum.reduce([self.spread(first, documents), *strengths])

    def find_phrase(self, words: Sequence[list[Variant]]) -> Occurrences:
        """Find the live documents that contain words side by side.

        A phrase is as strong as its weakest word, at its best position.
        """
        listed = [sum(int(self.segment.counts[term]) for term, _ in variants) for variants in words]
        order = sorted(range(len(words)), key=listed.__getitem__)
        starts, strengths = self._phrase_starts(words[order[0]], order[0], None)
        for offset in order[1:]:
            if not len(starts):
                break
            documents = (starts >> _POSITION_BITS).astype(np.int32)
            documents = documents[run_starts(documents)]
            others, levels = self._phrase_starts(words[offset], offset, documents)
            if not len(others):
                starts = others
                break
            indices = np.minimum(others.searchsorted(starts), len(others) - 1)
            matches = others[indices] == starts
            starts = starts[matches]
            strengths = np.minimum(strengths[matches], levels[indices[matches]])
        documents = (starts >> _POSITION_BITS).astype(np.int32)
        if not len(documents):
            return documents, np.empty(0, dtype=np.float32)
        (first,) = run_starts(documents).nonzero()
        best = np.maximum.reduceat(strengths, first)
        alive = self.alive[documents[first]]
        return documents[first][alive], best[alive]

    def _phrase_starts(
        self, variants: list[Variant], offset: int, within: Documents | None
    ) -> tuple[npt.NDArray[np.int64], Strengths]:
        """List the positions, ascending, at which a phrase would start whose word at ``offset`` is this one."""
        starts: list[npt.NDArray[np.int64]] = [np.empty(0, dtype=np.int64)]
        strengths: list[Strengths] = [np.empty(0, dtype=np.float32)]
        for term, strength in variants:
            entries = self.segment.entries(term)
            documents, positions = self.segment.documents[entries], self.segment.positions[entries]
            selected = positions >= offset
            if within is not None:
                selected &= self._contained(documents, within)
            starts.append(
                (documents[selected].astype(np.int64) << _POSITION_BITS)
                + positions[selected].astype(np.int64)
                - offset
            )
            strengths.append(np.full(len(starts[-1]), strength, dtype=np.float32))
        joined, levels = np.concatenate(starts), np.concatenate(strengths)
        if len(variants) > 1:
            order = np.lexsort((-levels, joined))
            return joined[order], levels[order]
        return joined, levels


def _split_word(word: str, terms: TermTable) -> list[tuple[str, str]]:
    """Split a word in two where the first part is in a table, and the second may be, or may consist of parts."""
    if len(word) < _MIN_CHARACTERS or word.isdigit() or not WORD_PART.match(word):
        return []
    firsts = [word[:end].encode() for end in range(1, len(word) - 1)]
    (ends,) = terms.may_contain(firsts).nonzero()
    splits = [(word[: end + 1], word[end + 1 :]) for end in ends.tolist() if terms.find(firsts[end]) >= 0]
    splits = [split for split in splits if all(map(WORD_PART.match, split))]
    seconds = [name.encode() for _, second in splits for name in (second, second.removesuffix("s"))]
    has = terms.may_contain(seconds).tolist()
    return [
        split
        for split, *has_second in zip(splits, has[::2], has[1::2], strict=True)
        if any(has_second) or min(map(len, split)) >= _MIN_CHARACTERS
    ]


def _search(ascending: Documents, documents: Documents) -> tuple[npt.NDArray[np.int64], Flags]:
    """Find the rows of documents in a non-empty list, and whether each is there."""
    indices = np.minimum(ascending.searchsorted(documents), len(ascending) - 1)
    return indices, np.asarray(ascending[indices] == documents)


class SegmentSearch:
    """Searches a segment for units, and reads each list of documents only once.

    Args:
        units: Forms of each unit.
        languages: Languages whose stems are used.

    Attributes:
        spellings: The spellings of each unit, that of the query first; those of a phrase may be here in part.
    """

    def __init__(self, live: LiveSegment, units: Sequence[UnitForms], languages: tuple[str, ...]) -> None:
        self._live = live
        self.spellings: list[list[Spelling]] = [
            [
                *([live.variants(forms, languages) for forms in words] for words in spellings),
                *(live.splits(word, languages) if word is not None else ()),
            ]
            for spellings, word in units
        ]
        self._occurrences: dict[int, Occurrences] = {}

    def count(self, unit: int) -> int:
        """Count the documents that contain a unit."""
        words, *others = self.spellings[unit]
        if len(words) == 1 and not others:
            # A word may be in so many documents that listing them is expensive.
            listed = sum(int(self._live.segment.counts[term]) for term, _ in words[0])
            if listed > max(_FREQUENT, len(self._live.alive) // _SEARCHED_SHARE):
                return self._live.count(words[0])
        return len(self._find(unit)[0])

    def select(self, units: Sequence[int]) -> tuple[Documents, Strengths]:
        """Find the documents with at least one of the units, and the strength of every unit in them.

        Returns:
            The documents, ascending, and ``float32 [documents, units]``.
        """
        lists = [self._find(unit)[0] for unit in units]
        documents = lists[0] if len(lists) == 1 else self._live.union(lists)
        strengths = np.zeros((len(documents), len(self.spellings)), dtype=np.float32)
        for unit in range(len(self.spellings)):
            strengths[:, unit] = self._strengths_in(unit, documents)
        return documents, strengths

    def videos(self) -> Ids:
        """Find the videos whose documents together contain all units."""
        order = sorted(range(len(self.spellings)), key=self.count)
        segment = self._live.segment
        numbers = segment.owners[self._find(order[0])[0]]
        numbers = numbers[run_starts(numbers)]
        for unit in order[1:]:
            # A video's documents are either all alive or none is.
            documents = segment.documents_of(numbers)
            numbers = segment.owners[documents[self._strengths_in(unit, documents) > 0]]
            numbers = numbers[run_starts(numbers)]
        return segment.videos.ids[numbers]

    def _find(self, unit: int) -> Occurrences:
        occurrences = self._occurrences.get(unit)
        if occurrences is None:
            occurrences = self._occurrences[unit] = self._live.find_any(self.spellings[unit])
        return occurrences

    def _strengths_in(self, unit: int, documents: Documents) -> Strengths:
        """Look up a unit's strength in each of these documents, which are alive, ascending."""
        words, *others = self.spellings[unit]
        if len(words) == 1 and not others and unit not in self._occurrences:
            return self._live.strengths_in(words[0], documents)
        return self._live.spread(self._find(unit), documents)


def remove_videos(segments: tuple[LiveSegment, ...], videos: Ids) -> tuple[tuple[LiveSegment, ...], int]:
    """Mark the documents of distinct videos as replaced.

    Returns:
        The segments, and how many videos had documents.
    """
    changed: list[LiveSegment] = []
    removed = 0
    for live in segments:
        numbers, _ = live.segment.videos.find(videos)
        numbers = numbers[live.alive[live.segment.videos.starts[numbers]]]
        if not len(numbers):
            changed.append(live)
            continue
        removed += len(numbers)
        changed.append(live.without(live.segment.documents_of(numbers)))
    return tuple(changed), removed


def merge_segments_of(parts: Sequence[LiveSegment]) -> LiveSegment:
    """Merge segments into one, without replaced documents."""
    return LiveSegment.of(merge_segments([(live.segment, live.alive) for live in parts]))
