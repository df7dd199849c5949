"""A segment of the inverted index: immutable arrays over a number of texts.

A *document* is one text of a video: a caption, a name, or a metadata value. A video's documents are in one segment,
side by side. For each term, the segment lists where it occurs: document numbers, ascending, and the positions in them.
A document that repeats a term is listed several times.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt

from index.arrays import Ids
from index.words.text_analysis import COMPOUND, analyze_text
from index.words.word_forms import ALL_STOP_WORDS, stem_words

Documents = npt.NDArray[np.int32]  # document numbers within a segment
Flags = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.int32]  # of terms
_KEY_BYTES = 8
_ENTRIES = 1 << 22  # copied at once when segments are merged
# What a search returns for a document, in one place: a memory access costs more than copying a row.
ROW = np.dtype([("video", np.int64), ("length", np.int32), ("kind", np.int16), ("votes", np.int16)])


class TextKind(IntEnum):
    """Kind of text, in order of preference."""

    CAPTION = 0
    TRANSCRIPT = 1
    SPEECH = 2
    SCREEN = 3
    CONFIRMED = 4
    METADATA = 5
    NAME = 6


class Document(NamedTuple):
    """One text of a video."""

    video: int
    kind: int
    text: str
    votes: int = 0


@dataclass(frozen=True, eq=False)
class TermTable:
    """Distinct terms in ascending order, each identified by its index, in a few arrays.

    Python strings would take ten times the memory. Terms are compared by their UTF-8 bytes, which sort like their code
    points. Each term's first eight bytes also form a number, its key: one binary search in the keys finds a term, or
    all terms with a short prefix.
    """

    content: npt.NDArray[np.uint8]  # the terms in UTF-8, concatenated
    offsets: npt.NDArray[np.uint32]  # [terms + 1], where each term starts
    keys: npt.NDArray[np.uint64]  # [terms], each term's first eight bytes

    @classmethod
    def of(cls, terms: Sequence[bytes]) -> TermTable:
        """Build the table from distinct, sorted terms; none contains a NUL byte."""
        padded = np.array(terms, dtype=np.bytes_) if terms else np.empty(0, dtype="S8")
        return cls._of_padded(padded)

    @classmethod
    def _of_padded(cls, padded: npt.NDArray[np.bytes_]) -> TermTable:
        width = max(padded.dtype.itemsize, _KEY_BYTES)
        matrix = np.ascontiguousarray(padded.astype(f"S{width}")).view(np.uint8).reshape(len(padded), width)
        used = matrix != 0
        offsets = np.zeros(len(padded) + 1, dtype=np.uint32)
        np.cumsum(np.count_nonzero(used, axis=1), out=offsets[1:])
        keys = np.ascontiguousarray(matrix[:, :_KEY_BYTES]).view(">u8").reshape(-1).astype(np.uint64)
        return cls(matrix[used], offsets, keys)

    def __len__(self) -> int:
        return len(self.keys)

    def bytes_of(self, index: int) -> bytes:
        """Look up a term in UTF-8."""
        return self.content[self.offsets[index] : self.offsets[index + 1]].tobytes()

    def all_bytes(self) -> list[bytes]:
        """List all terms in UTF-8, in order."""
        content = self.content.tobytes()
        return [content[start:end] for start, end in pairwise(self.offsets.tolist())]

    def find(self, term: bytes) -> int:
        """Find a term's index; −1 if the table does not contain it."""
        key = np.uint64(_key(term, b"\0"))
        index = int(self.keys.searchsorted(key))
        if len(term) > _KEY_BYTES:
            end = int(self.keys.searchsorted(key, side="right"))
            index = bisect_left(range(end), term, lo=index, key=self.bytes_of)
        return index if index < len(self.keys) and self.bytes_of(index) == term else -1

    def may_contain(self, terms: Sequence[bytes]) -> Flags:
        """Check whether each term may be in the table, judging by its first eight bytes."""
        keys = np.array(terms, dtype=f"S{_KEY_BYTES}").view(f">u{_KEY_BYTES}").astype(np.uint64)
        if not len(self.keys):
            return np.zeros(len(keys), dtype=np.bool_)
        indices = np.minimum(self.keys.searchsorted(keys), len(self.keys) - 1)
        return np.asarray(self.keys[indices] == keys)

    def with_prefix(self, prefix: bytes) -> range:
        """Find the indices of the terms that begin with ``prefix``."""
        start = int(self.keys.searchsorted(np.uint64(_key(prefix, b"\0"))))
        end = int(self.keys.searchsorted(np.uint64(_key(prefix, b"\xff")), side="right"))
        if len(prefix) > _KEY_BYTES:

            def beginning(index: int) -> bytes:
                return self.bytes_of(index)[: len(prefix)]

            start = bisect_left(range(end), prefix, lo=start, key=beginning)
            end = bisect_right(range(end), prefix, lo=start, key=beginning)
        return range(start, end)

    def padded(self) -> npt.NDArray[np.bytes_]:
        """Convert all terms to one array of byte strings."""
        lengths = np.diff(self.offsets)
        width = max(int(lengths.max(initial=0)), _KEY_BYTES)
        matrix = np.zeros((len(self), width), dtype=np.uint8)
        matrix[np.arange(width) < lengths[:, None]] = self.content
        padded: npt.NDArray[np.bytes_] = matrix.view(f"S{width}").reshape(-1)
        return padded

    def select(self, selected: Flags) -> TermTable:
        """Keep the terms for which ``selected`` is true."""
        return self if selected.all() else self._of_padded(self.padded()[selected])


def merge_tables(tables: Sequence[TermTable]) -> tuple[TermTable, list[Indices]]:
    """Unite tables; also return, for each table, the index of each of its terms in the union."""
    joined = np.concatenate([table.padded() for table in tables])
    order = np.argsort(joined, kind="stable")  # a merge of sorted runs
    ordered = joined[order]
    first = np.ones(len(ordered), dtype=np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    indices = np.empty(len(joined), dtype=np.int32)
    indices[order] = np.cumsum(first, dtype=np.int32) - 1
    ends = np.cumsum([len(table) for table in tables])
    return TermTable._of_padded(ordered[first]), np.split(indices, ends[:-1])


def _key(term: bytes, fill: bytes) -> int:
    return int.from_bytes(term[:_KEY_BYTES].ljust(_KEY_BYTES, fill), "big")


class _TermNumbers(dict[str, int]):
    """Numbers terms in order of appearance."""

    def __missing__(self, term: str) -> int:
        number = self[term] = len(self)
        return number


@dataclass(frozen=True, eq=False)
class Videos:
    """The videos in a segment, numbered in the order of their documents."""

    ids: Ids  # [videos]
    starts: npt.NDArray[np.int32]  # [videos + 1], each one's first document
    captions: npt.NDArray[np.int32]  # [videos], number of its captions
    caption_words: npt.NDArray[np.int32]  # [videos], number of words in its captions
    order: npt.NDArray[np.int32] | None  # [videos], numbers by ascending ID; None if they ascend as they are

    @classmethod
    def of(cls, rows: npt.NDArray[np.void]) -> Videos:
        """Collect videos from the row of each document; a video's documents are side by side."""
        (starts,) = run_starts(rows["video"]).nonzero()
        ids = rows["video"][starts]
        is_caption = rows["kind"] == TextKind.CAPTION
        lengths = np.where(is_caption, rows["length"], 0)
        captions, words = (
            np.add.reduceat(column, starts, dtype=np.int32) if len(starts) else np.empty(0, np.int32)
            for column in (is_caption, lengths)
        )
        order = None if (ids[1:] > ids[:-1]).all() else np.argsort(ids).astype(np.int32)
        return cls(ids, np.append(starts, len(rows)).astype(np.int32), captions, words, order)

    def find(self, ids: Ids) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Find the numbers of the videos that are here, and their indices in ``ids``."""
        if not len(self.ids):
            return np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int64)
        indices = np.minimum(self.ids.searchsorted(ids, sorter=self.order), len(self.ids) - 1)
        numbers = indices.astype(np.int32) if self.order is None else self.order[indices]
        matches = np.flatnonzero(self.ids[numbers] == ids)
        return numbers[matches], matches

    def between(self, starts: Ids, ends: Ids) -> Ids:
        """List the IDs in disjoint ranges, each from its start to before its end."""
        first, end = (self.ids.searchsorted(limits, sorter=self.order) for limits in (starts, ends))
        rows = _join_ranges(first, end - first)
        return self.ids[rows if self.order is None else self.order[rows]]


class StemOrder(NamedTuple):
    """Terms of ASCII letters, and compounds of them, ordered by a hash of their stem in one language."""

    hashes: npt.NDArray[np.uint32]  # ascending
    indices: Indices


@dataclass(frozen=True, eq=False)
class WordSegment:
    """Documents, and the positions of each term in them."""

    videos: Videos
    owners: npt.NDArray[np.int32]  # [documents], the number of each one's video, ascending
    rows: npt.NDArray[np.void]  # [documents], of type ROW
    terms: TermTable
    offsets: npt.NDArray[np.uint32]  # [terms + 1], where each term's entries start
    counts: npt.NDArray[np.int32]  # [terms], how many documents contain each
    documents: Documents  # [entries]
    positions: npt.NDArray[np.uint16]  # [entries]
    stems: dict[str, StemOrder] = field(default_factory=dict)  # by language, those computed so far

    def __len__(self) -> int:
        return len(self.owners)

    def entries(self, term: int) -> slice:
        """Locate a term's entries in ``documents`` and ``positions``."""
        return slice(int(self.offsets[term]), int(self.offsets[term + 1]))

    def documents_of(self, numbers: npt.NDArray[np.int32]) -> Documents:
        """List the documents of videos, which are given by number, video after video."""
        starts = self.videos.starts[numbers]
        return _join_ranges(starts, self.videos.starts[numbers + 1] - starts)

    def stem_order(self, language: str) -> StemOrder:
        """Order the terms by their stems in a language; computed once."""
        order = self.stems.get(language)
        if order is None:
            words = [word.removeprefix(COMPOUND.encode()) for word in self.terms.all_bytes()]
            indices = [index for index, word in enumerate(words) if word.isalpha()]
            stems = stem_words(language, [words[index].decode() for index in indices])
            hashes = np.zeros(len(words), dtype=np.uint32)
            hashes[indices] = list(map(_hash, stems))
            order = self.stems[language] = _stem_order(hashes)
        return order

    def same_stem(self, language: str, word: str) -> list[int]:
        """Find the terms with the stem of a word; only words of ASCII letters have stems."""
        if not (word.isascii() and word.isalpha()):
            return []
        (stem,) = stem_words(language, [word])
        order = self.stem_order(language)
        key = np.uint32(_hash(stem))
        start, end = order.hashes.searchsorted(key), order.hashes.searchsorted(key, side="right")
        indices: list[int] = order.indices[start:end].tolist()
        terms = (self.terms.bytes_of(index).decode().removeprefix(COMPOUND) for index in indices)
        stems = stem_words(language, list(terms))
        return [index for index, other in zip(indices, stems, strict=True) if other == stem]

    def stop_counts(self, documents: Documents | None = None) -> npt.NDArray[np.int64]:
        """Count the documents, or these distinct ones, that contain each word of ``ALL_STOP_WORDS``."""
        return np.array([self._stop_count(term, documents) for term in self._stop_terms], dtype=np.int64)

    def _stop_count(self, term: int, documents: Documents | None) -> int:
        if term < 0:
            return 0
        if documents is None:
            return int(self.counts[term])
        listed = self.documents[self.entries(term)]
        rows = np.minimum(listed.searchsorted(documents), len(listed) - 1)
        return int(np.count_nonzero(listed[rows] == documents))

    @cached_property
    def _stop_terms(self) -> list[int]:
        return [self.terms.find(word.encode()) for word in ALL_STOP_WORDS]


def build_segment(texts: Sequence[Document]) -> WordSegment:
    """Index texts that have words; a video's texts stand side by side."""
    numbers = _TermNumbers()
    tokens, positions = array("i"), array("H")
    videos: list[int] = []
    kinds: list[int] = []
    lengths: list[int] = []
    sizes: list[int] = []
    votes: list[int] = []
    for video, kind, text, voted in texts:
        words = analyze_text(text)
        if not words.terms:
            continue
        videos.append(video)
        kinds.append(kind)
        votes.append(voted)
        lengths.append(words.length)
        sizes.append(len(words.terms))
        tokens.extend(map(numbers.__getitem__, words.terms))
        positions.extend(words.positions)
    encoded = [term.encode() for term in numbers]
    order = sorted(range(len(encoded)), key=encoded.__getitem__)
    ranks = np.empty(len(order), dtype=np.int32)
    ranks[order] = np.arange(len(order), dtype=np.int32)
    ranked = ranks[np.frombuffer(tokens, dtype=np.int32)]
    by_term = np.argsort(ranked, kind="stable")
    documents = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)[by_term]
    return make_segment(
        np.fromiter(zip(videos, lengths, kinds, votes, strict=True), dtype=ROW, count=len(videos)),
        TermTable.of([encoded[index] for index in order]),
        np.bincount(ranked, minlength=len(order)),
        documents,
        np.frombuffer(positions, dtype=np.uint16)[by_term],
    )


def merge_segments(segments: Sequence[tuple[WordSegment, Flags]]) -> WordSegment:
    """Copy the documents whose flag is true into one segment."""
    terms, mappings = merge_tables([segment.terms for segment, _ in segments])
    copied = [(alive[segment.documents], np.cumsum(alive, dtype=np.int32) - 1) for segment, alive in segments]
    sizes = np.zeros((len(segments), len(terms)), dtype=np.int64)
    for row, (segment, _), (used, _), mapping in zip(sizes, segments, copied, mappings, strict=True):
        row[mapping] = _sums(used, segment.offsets)
    starts = np.cumsum(sizes.sum(axis=0)) - sizes.sum(axis=0)
    # [segments, terms], where the entries from each segment start
    starts = starts + np.cumsum(sizes, axis=0) - sizes
    documents = np.empty(int(sizes.sum()), dtype=np.int32)
    positions = np.empty(len(documents), dtype=np.uint16)
    first = 0
    for row, start, (segment, alive), (used, renumbered), mapping in zip(
        sizes, starts, segments, copied, mappings, strict=True
    ):
        count = row[mapping]
        parts = np.searchsorted(segment.offsets[:-1], np.arange(0, len(segment.documents), _ENTRIES))
        for begin, end in pairwise(
            [*parts.tolist(), len(count)]
        ):  # copies of all entries would take gigabytes
            target = _join_ranges(start[mapping[begin:end]], count[begin:end])
            entries = slice(segment.offsets[begin], segment.offsets[end])
            selected = used[entries]
            documents[target] = renumbered[segment.documents[entries][selected]] + np.int32(first)
            positions[target] = segment.positions[entries][selected]
        first += int(np.count_nonzero(alive))
    merged = make_segment(
        np.concatenate([segment.rows[alive] for segment, alive in segments]),
        terms,
        sizes.sum(axis=0),
        documents,
        positions,
    )
    for language in set().union(*(segment.stems for segment, _ in segments)):
        hashes = np.zeros(len(terms), dtype=np.uint32)
        for (segment, _), mapping in zip(segments, mappings, strict=True):
            order = segment.stem_order(language)
            hashes[mapping[order.indices]] = order.hashes
        merged.stems[language] = _stem_order(hashes[sizes.sum(axis=0) > 0])
    return merged


def make_segment(
    rows: npt.NDArray[np.void],
    terms: TermTable,
    sizes: npt.NDArray[np.int64],
    documents: Documents,
    positions: npt.NDArray[np.uint16],
) -> WordSegment:
    """Make a segment of documents, terms, how many entries each term has, and the entries, term by term."""
    videos = Videos.of(rows)
    used = sizes > 0
    offsets = np.zeros(np.count_nonzero(used) + 1, dtype=np.uint32)
    np.cumsum(sizes[used], out=offsets[1:])
    distinct = np.ones(len(documents), dtype=np.bool_)
    np.not_equal(documents[1:], documents[:-1], out=distinct[1:])
    distinct[offsets[:-1]] = True
    return WordSegment(
        videos=videos,
        owners=np.repeat(np.arange(len(videos.ids), dtype=np.int32), np.diff(videos.starts)),
        rows=rows,
        terms=terms.select(used),
        offsets=offsets,
        counts=_sums(distinct, offsets).astype(np.int32),
        documents=documents,
        positions=positions,
    )


def _join_ranges(starts: npt.NDArray[np.integer], counts: npt.NDArray[np.integer]) -> npt.NDArray[np.int32]:
    """List the numbers of ranges, range after range, given their starts and lengths."""
    before = np.cumsum(counts) - counts
    return np.repeat((starts - before).astype(np.int32), counts) + np.arange(counts.sum(), dtype=np.int32)


def run_starts(numbers: npt.NDArray[np.integer]) -> Flags:
    """Mark the first of each run of equal numbers."""
    starts = np.ones(len(numbers), np.bool_)
    np.not_equal(numbers[1:], numbers[:-1], out=starts[1:])
    return starts


def _sums(flags: Flags, offsets: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
    """Count each term's true flags; every term has entries."""
    if not len(flags):
        return np.zeros(len(offsets) - 1, dtype=np.int64)
    return np.asarray(np.add.reduceat(flags, offsets[:-1].astype(np.int64), dtype=np.int64))


def _stem_order(hashes: npt.NDArray[np.uint32]) -> StemOrder:
    order = np.argsort(hashes, kind="stable")[np.count_nonzero(hashes == 0) :]
    return StemOrder(hashes[order], order.astype(np.int32))


def _hash(stem: str) -> int:
    return crc32(stem.encode()) or 1  # 0 is the hash of terms without a stem
