"""Durations, moments and metadata of videos as columns: to filter by, to count, and to look up.

A segment has immutable arrays over a number of videos, which are stored and mapped like those of words
(:mod:`index.words.word_files`). A change adds a small segment, and marks the replaced rows of others.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from index.arrays import Ids, Rows, find_ids, first_moment_ids
from index.words.segment_merging import merge_small

Arrays = Mapping[str, npt.NDArray[Any]]
# Whether a value is a boolean, which equals a number in Python; and the value.
TypedValue = tuple[bool, str | int | float]

_VIDEOS_OF_A_SEGMENT = 1 << 16  # read at once
_FEW_VALUES = 64  # a field with this few values groups videos, even if all values differ
_ROUNDED = 2.0**53
_NO_IDS = np.empty(0, np.int64)


class VideoFacts(NamedTuple):
    """What a video is filtered by: duration in seconds, metadata, and start and end of each moment in seconds."""

    duration: float | None = None
    metadata: Mapping[str, Any] = {}
    moments: Sequence[tuple[float, float]] = ()


def _hash(value: TypedValue) -> int:
    """Hash a value; equal numbers have equal hashes, whatever their type."""
    is_flag, plain = value
    if isinstance(plain, float) and plain.is_integer():
        plain = int(plain)
    text = json.dumps(bool(plain) if is_flag else plain).encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little")


@dataclass(frozen=True, eq=False)
class MetadataColumn:
    """The values of a metadata field over the videos of a segment.

    Values are compared exactly: 1 equals 1.0, and neither equals ``True`` or ``"1"``. Each string in a list is a value
    of its video; other types are ignored. Distinct values are identified by their index, in the order of their hashes.
    """

    hashes: npt.NDArray[np.uint64]  # [values]
    content: npt.NDArray[np.uint8]  # the values as JSON, concatenated
    offsets: npt.NDArray[np.int64]  # [values + 1], where each value starts
    starts: npt.NDArray[np.int64]  # [values + 1], where the rows of each value start in `rows`
    rows: npt.NDArray[np.int32]  # [entries], ascending for each value
    entry_rows: npt.NDArray[np.int32]  # [entries], ascending
    entry_values: npt.NDArray[np.int32]  # [entries]
    numbers: npt.NDArray[np.float64]  # the values that are numbers, rounded, ascending
    number_values: npt.NDArray[np.int32]

    @classmethod
    def of(cls, values: Sequence[TypedValue], rows: Sequence[int], indices: Sequence[int]) -> MetadataColumn:
        """Build a column from distinct values, and the row and the index of the value of each entry."""
        texts = [json.dumps(bool(value) if is_flag else value).encode() for is_flag, value in values]
        return cls._build(
            np.array([_hash(value) for value in values], np.uint64),
            np.frombuffer(b"".join(texts), np.uint8),
            np.cumsum([0, *map(len, texts)], dtype=np.int64),
            np.array(rows, np.int32),
            np.array(indices, np.int32),
        )

    @classmethod
    def merge(cls, parts: Sequence[tuple[MetadataColumn, npt.NDArray[np.int32]]]) -> MetadataColumn:
        """Merge columns, given the new row of each of their rows, or −1 for rows that are left out."""
        rows = [new_rows[column.entry_rows] for column, new_rows in parts]
        first = np.cumsum([0, *(len(column.hashes) for column, _ in parts)])
        sizes = np.concatenate([np.diff(column.offsets) for column, _ in parts])
        indices = [column.entry_values + np.int32(n) for (column, _), n in zip(parts, first, strict=False)]
        is_kept = (joined := np.concatenate(rows)) >= 0
        return cls._build(
            np.concatenate([column.hashes for column, _ in parts]),
            np.concatenate([column.content for column, _ in parts]),
            np.concatenate([[0], np.cumsum(sizes)]),
            joined[is_kept],
            np.concatenate(indices)[is_kept],
        )

    @classmethod
    def _build(
        cls,
        hashes: npt.NDArray[np.uint64],
        content: npt.NDArray[np.uint8],
        offsets: npt.NDArray[np.int64],
        rows: npt.NDArray[np.int32],
        indices: npt.NDArray[np.int32],
    ) -> MetadataColumn:
        """Build a column from values, of which some may be equal or without entries, and from entries in any order."""
        used = np.unique(indices)
        hashes, first, inverse = np.unique(hashes[used], return_index=True, return_inverse=True)
        values = inverse.astype(np.int32)[np.searchsorted(used, indices)]
        stored = used[first]
        starts, ends = offsets[stored], offsets[stored + 1]
        by_row = np.lexsort((values, rows))
        rows, values = rows[by_row], values[by_row]
        offsets = np.concatenate([[0], np.cumsum(ends - starts)])
        content = content[ranges(starts, ends)]
        is_number = np.isin(content[offsets[:-1]], np.frombuffer(b"-0123456789", np.uint8))
        number_values = np.flatnonzero(is_number).astype(np.int32)
        buffer = content.tobytes()
        numbers = np.array([float(buffer[offsets[v] : offsets[v + 1]]) for v in number_values], np.float64)
        ascending = np.argsort(numbers, kind="stable")
        return cls(
            hashes,
            content,
            offsets,
            np.concatenate([[0], np.cumsum(np.bincount(values, minlength=len(hashes)))]),
            rows[np.argsort(values, kind="stable")],
            rows,
            values,
            numbers[ascending],
            number_values[ascending],
        )

    def rows_equal_to(self, value: TypedValue) -> Rows:
        """Find the rows whose value equals the given one or is a list containing it, ascending."""
        index = int(np.searchsorted(self.hashes, np.uint64(_hash(value))))
        is_stored = index < len(self.hashes) and self.value(index) == value
        return self._rows_of(np.array([index] if is_stored else [], np.int64))

    def rows_between(self, low: float | None, high: float | None) -> Rows:
        """Find the rows with a number in a closed range, ascending; None leaves an end open."""
        first = 0 if low is None else int(np.searchsorted(self.numbers, _rounded(low), "left"))
        last = len(self.numbers)
        last = last if high is None else int(np.searchsorted(self.numbers, _rounded(high), "right"))
        values, numbers = self.number_values[first:last], self.numbers[first:last]
        # Integers beyond 2^53 are rounded: those at an end of the range may lie outside.
        at_end = (numbers == numbers[:1]) | (numbers == numbers[-1:])
        is_passing = np.ones(len(values), np.bool_)
        for row in np.flatnonzero(at_end & (np.abs(numbers) >= _ROUNDED)).tolist():
            number: Any = self.value(int(values[row]))[1]
            is_passing[row] = (low is None or number >= low) and (high is None or number <= high)
        return self._rows_of(values[is_passing].astype(np.int64))

    def _rows_of(self, values: Ids) -> Rows:
        rows = self.rows[ranges(self.starts[values], self.starts[values + 1])].astype(np.int64)
        return rows if len(values) == 1 else np.unique(rows)

    def value(self, index: int) -> TypedValue:
        """Get a value by its index."""
        value = json.loads(self.content[self.offsets[index] : self.offsets[index + 1]].tobytes())
        return isinstance(value, bool), value

    def count_values(self, rows: Rows) -> tuple[int, dict[TypedValue, int]]:
        """Count the distinct rows with a value, and the rows by value."""
        first, end = (
            np.searchsorted(self.entry_rows, rows.astype(np.int32), side) for side in ("left", "right")
        )
        values, counts = np.unique(self.entry_values[ranges(first, end)], return_counts=True)
        counted = {self.value(v): n for v, n in zip(values.tolist(), counts.tolist(), strict=True)}
        return int(np.count_nonzero(end > first)), counted


@dataclass(frozen=True, eq=False)
class ColumnSegment:
    """The columns of a number of videos."""

    ids: Ids  # [videos] ascending vector IDs
    durations: npt.NDArray[np.float64]  # [videos] in seconds; NaN if unknown
    moment_rows: npt.NDArray[np.int32]  # [moments] ascending; the row of each moment's video
    spans: npt.NDArray[np.float64]  # [moments, 2]; start and end in seconds
    fields: Mapping[str, MetadataColumn]  # without fields that have no value to filter by

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def of(cls, videos: Mapping[int, VideoFacts]) -> ColumnSegment:
        """Build a segment from facts by vector ID."""
        ordered = sorted(videos.items())
        entries: dict[str, tuple[dict[TypedValue, int], list[int], list[int]]] = {}
        for row, (_, facts) in enumerate(ordered):
            for name, value in facts.metadata.items():
                for item in _values_of(value):
                    values, rows, indices = entries.setdefault(name, ({}, [], []))
                    rows.append(row)
                    indices.append(values.setdefault((isinstance(item, bool), item), len(values)))
        counts = [len(facts.moments) for _, facts in ordered]
        return cls(
            np.array([video for video, _ in ordered], np.int64),
            np.array([facts.duration for _, facts in ordered], np.float64),
            np.repeat(np.arange(len(ordered), dtype=np.int32), counts),
            np.array([span for _, facts in ordered for span in facts.moments], np.float64).reshape(-1, 2),
            {
                name: MetadataColumn.of(list(values), rows, indices)
                for name, (values, rows, indices) in entries.items()
            },
        )

    def arrays(self) -> Arrays:
        """List the arrays by name; see :meth:`from_arrays`."""
        names = np.frombuffer(json.dumps([*self.fields]).encode(), np.uint8)
        columns = {f"{n}.{k}": v for n, c in enumerate(self.fields.values()) for k, v in vars(c).items()}
        plain = {name: array for name, array in vars(self).items() if name != "fields"}
        return {"names": names, **plain, **columns}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> ColumnSegment:
        """Invert :meth:`arrays`."""
        names = json.loads(arrays["names"].tobytes())
        keys = MetadataColumn.__dataclass_fields__
        columns = {
            name: MetadataColumn(**{key: arrays[f"{n}.{key}"] for key in keys})
            for n, name in enumerate(names)
        }
        plain = {key: arrays[key] for key in ("ids", "durations", "moment_rows", "spans")}
        return cls(**plain, fields=columns)

    def rows_lasting(self, low: float | None, high: float | None) -> Rows:
        """Find the rows with a duration in a closed range of seconds, ascending; None leaves an end open."""
        passing = ~np.isnan(self.durations)
        if low is not None:
            passing &= self.durations >= low
        if high is not None:
            passing &= self.durations <= high
        return np.flatnonzero(passing)


@dataclass(frozen=True, eq=False)
class LiveColumns:
    """A segment, and which of its rows are alive; the others were replaced."""

    segment: ColumnSegment
    alive: npt.NDArray[np.bool_]
    replaced: int = 0

    @classmethod
    def of(cls, segment: ColumnSegment) -> LiveColumns:
        """Start with all rows alive."""
        return cls(segment, np.broadcast_to(np.True_, len(segment)))

    def __len__(self) -> int:
        return len(self.segment) - self.replaced

    def without(self, rows: npt.NDArray[np.integer]) -> LiveColumns:
        """Mark rows, which are alive, as replaced."""
        alive = np.array(self.alive)
        alive[rows] = False
        return LiveColumns(self.segment, alive, self.replaced + len(rows))

    def find(self, videos: Ids) -> Rows:
        """Find the rows of videos that are alive, in the order of the videos."""
        _, rows = find_ids(self.segment.ids, videos)
        return rows[self.alive[rows]]

    def ids_of(self, rows: Rows) -> Ids:
        """Look up the vector IDs of those rows that are alive."""
        return self.segment.ids[rows[self.alive[rows]] if self.replaced else rows]


def _merged(parts: Sequence[LiveColumns]) -> LiveColumns:
    """Merge segments into one, without replaced rows."""
    ids = np.concatenate([live.ids_of(np.arange(len(live.segment))) for live in parts])
    order = np.argsort(ids, kind="stable")
    places = np.empty(len(ids), np.int32)
    places[order] = np.arange(len(ids), dtype=np.int32)
    new_rows, start = [], 0
    for live in parts:
        rows = np.full(len(live.segment), -1, np.int32)
        rows[live.alive] = places[start : start + len(live)]
        new_rows.append(rows)
        start += len(live)
    moments = np.concatenate(
        [rows[live.segment.moment_rows] for live, rows in zip(parts, new_rows, strict=True)]
    )
    by_row = np.argsort(moments, kind="stable")[np.count_nonzero(moments < 0) :]
    names = dict.fromkeys(name for live in parts for name in live.segment.fields)
    fields = {
        name: MetadataColumn.merge(
            [
                (live.segment.fields[name], rows)
                for live, rows in zip(parts, new_rows, strict=True)
                if name in live.segment.fields
            ]
        )
        for name in names
    }
    return LiveColumns.of(
        ColumnSegment(
            ids[order],
            np.concatenate([live.segment.durations[live.alive] for live in parts])[order],
            moments[by_row],
            np.concatenate([live.segment.spans for live in parts])[by_row],
            {name: column for name, column in fields.items() if len(column.hashes)},
        )
    )


@dataclass(frozen=True, eq=False)
class VideoColumns:
    """The columns of a library's videos; immutable. A change returns new ones that share their memory."""

    segments: tuple[LiveColumns, ...] = ()

    def replace(self, videos: Iterable[tuple[int, VideoFacts | None]]) -> VideoColumns:
        """Replace the facts of videos, given by vector ID; None removes a video."""
        segments, remaining = self.segments, iter(videos)
        while chunk := dict(islice(remaining, _VIDEOS_OF_A_SEGMENT)):
            changed = np.fromiter(chunk, np.int64, len(chunk))
            segments = tuple(
                live.without(rows) if len(rows := live.find(changed)) else live for live in segments
            )
            added = {video: facts for video, facts in chunk.items() if facts is not None}
            new = [LiveColumns.of(ColumnSegment.of(added))] if added else []
            segments = merge_small((*segments, *new), _merged)
        return self if segments == self.segments else VideoColumns(segments)

    def compacted(self) -> VideoColumns:
        """Copy the segments with rows that were replaced, without these."""
        segments = merge_small(self.segments, _merged, compact=True)
        return self if segments == self.segments else VideoColumns(segments)

    @cached_property
    def grouping_fields(self) -> list[str]:
        """The fields that group videos. Titles and times, for example, differ for nearly all of them."""
        values, entries = Counter[str](), Counter[str]()
        for live in self.segments:
            for name, column in live.segment.fields.items():
                values[name] += len(column.hashes)
                entries[name] += len(column.entry_rows)
        return [name for name in values if values[name] <= max(_FEW_VALUES, entries[name] // 4)]

    def having(self, name: str) -> Iterator[tuple[Ids, bool]]:
        """Yield the videos with a value in a field, segment by segment, and whether any value is a number."""
        for live in self.segments:
            if (column := live.segment.fields.get(name)) is not None:
                yield live.ids_of(np.unique(column.entry_rows)), bool(len(column.numbers))

    def count_values(self, videos: Ids, names: Iterable[str]) -> dict[str, tuple[int, Counter[TypedValue]]]:
        """Count, for each of some fields, the distinct videos with a value, and those with each value."""
        counted = {name: (0, Counter[TypedValue]()) for name in names}
        for live in self.segments:
            rows = live.find(videos)
            for name in counted.keys() & live.segment.fields.keys():
                with_value, by_value = live.segment.fields[name].count_values(rows)
                counted[name] = counted[name][0] + with_value, counted[name][1] + Counter(by_value)
        return counted

    def moments_of(self, videos: Ids) -> tuple[Ids, npt.NDArray[np.float64]]:
        """Find the moments of videos: vector IDs ``[n]``, and starts and ends in seconds ``[n, 2]``."""
        ids, spans = [_NO_IDS], [np.empty((0, 2))]
        for live in self.segments:
            rows = live.find(videos)
            segment = live.segment
            first, end = (
                np.searchsorted(segment.moment_rows, rows.astype(np.int32), s) for s in ("left", "right")
            )
            numbers = ranges(first, end)
            # A moment's ID follows from its number within its video.
            starts = np.repeat(first_moment_ids(segment.ids[rows]) - first, end - first)
            ids.append(starts + numbers)
            spans.append(segment.spans[numbers])
        return np.concatenate(ids), np.concatenate(spans)

    def with_moments(self, videos: Ids) -> Ids:
        """Add the moments of videos to their vector IDs."""
        return np.concatenate([videos, self.moments_of(videos)[0]])


def ranges(first: npt.NDArray[np.integer], end: npt.NDArray[np.integer]) -> Ids:
    """Expand half-open ranges into the numbers that they contain."""
    counts = end - first
    # A running count, shifted to the start of each range.
    return np.repeat(first - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())


def _rounded(number: float) -> float:
    try:
        return float(number)
    except OverflowError:  # an integer
        return float("inf") if number > 0 else float("-inf")


def _values_of(value: Any) -> Iterator[str | int | float]:
    if isinstance(value, list):
        yield from dict.fromkeys(item for item in value if isinstance(item, str))
    elif isinstance(value, str | int | float) and value == value:
        yield value
