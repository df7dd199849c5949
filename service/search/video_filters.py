"""Filter videos by duration, arrival time and metadata, and count the values to filter by: the facets of results.

A filter never changes a score. A filtered search returns the results of the unfiltered one minus the videos that fail
the filter, and searches deep enough to find k results wherever k videos pass.

Parsing every video's metadata would dominate a filtered search. So it is read once, as columns by task, and kept until
the shard changes or metadata is edited. So are moments.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cached_property, reduce
from itertools import chain
from sys import getsizeof
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import select

from cinestrata_schemas.search import Facet, FacetValue
from index.arrays import Ids, video_ids_of
from index.files.manifest_format import task_of
from service.catalog.database import CatalogReads, id_chunks, session_scope
from service.catalog.domain_videos import in_domain, read_metadata_edits
from service.catalog.tables import Moment, Task, Video
from service.core.errors import InvalidInput, Unavailable
from service.search.catalog_read_cache import CatalogReadCache
from service.search.library_words import LibraryWords
from service.search.search_request import Condition, MetadataValue, TypedValue, ValueRange, VideoFilter
from service.search.single_flight_cache import SingleFlightCache
from service.search.snapshots.search_snapshot import SearchSnapshot

FACET_FIELDS, FACET_VALUES = 5, 8  # metadata fields, and values of each
FACET_CHARS = 80  # longer values are descriptions, not categories
_FEW_VALUES = 64  # a column this short groups videos even if all its values differ
# Of cached metadata: about 30 million videos, or as many moments, whose fields have few values.
MAX_BYTES = 1024**3
_MAX_EXACT = 2**53  # integers beyond are no floats
_VALUE_BYTES = 200  # overhead of the Python objects of a distinct value, roughly


class NumberColumn:
    """The numbers of a field in ascending order, with the rows of their videos, from (number, row) pairs."""

    def __init__(self, numbers: Iterable[tuple[int | float, int]]) -> None:
        pairs = sorted(numbers)
        # Larger integers stay exact as objects.
        is_exact = all(abs(number) <= _MAX_EXACT for number, _ in pairs)
        self._numbers = np.array([number for number, _ in pairs], np.float64 if is_exact else object)
        self._rows = np.array([row for _, row in pairs], np.int32)
        self.nbytes = self._numbers.nbytes + self._rows.nbytes

    def __bool__(self) -> bool:
        return bool(len(self._rows))

    def rows_between(self, low: float | None, high: float | None) -> Ids:
        """Find the rows with a number in a closed range; None leaves an end open."""
        first = None if low is None else np.searchsorted(self._numbers, low, "left")
        last = None if high is None else np.searchsorted(self._numbers, high, "right")
        return self._rows[first:last].astype(np.int64)


class MetadataColumn:
    """An index of one metadata field over a task's videos, from (row, value) pairs.

    Values are compared exactly: 1 equals 1.0, and neither equals ``True`` or ``"1"``. Each string in a list is indexed
    on its own; values of other types are ignored.

    Attributes:
        numbers: The values that are numbers, which can be filtered by a range.
        nbytes: About the bytes of the column in memory.
    """

    def __init__(self, values: Iterable[tuple[int, Any]]) -> None:
        rows: dict[TypedValue, list[int]] = {}
        numbers: list[tuple[int | float, int]] = []
        for row, value in values:
            if isinstance(value, list):
                value_list = list(dict.fromkeys(item for item in value if isinstance(item, str)))
            else:
                value_list = [value]
            for item in value_list:
                if isinstance(item, str | int | float):
                    rows.setdefault((isinstance(item, bool), item), []).append(row)
                if isinstance(item, int | float) and not isinstance(item, bool):
                    numbers.append((item, row))
        self.numbers = NumberColumn(numbers)
        self._values = {value: number for number, value in enumerate(rows)}
        self._starts = np.cumsum([0, *map(len, rows.values())], dtype=np.int64)
        self._rows = np.fromiter(chain.from_iterable(rows.values()), np.int32, int(self._starts[-1]))
        sizes = sum(_VALUE_BYTES + getsizeof(value) for _, value in rows)
        self.nbytes = self.numbers.nbytes + self._rows.nbytes + self._starts.nbytes + sizes

    @property
    def has_repeated_values(self) -> bool:
        """Whether the column groups videos. Titles and times, for example, differ for nearly all of them."""
        return len(self._values) <= max(_FEW_VALUES, len(self._rows) // 4)

    @cached_property
    def _values_by_row(self) -> tuple[list[TypedValue], Ids, npt.NDArray[np.int32]]:
        """Distinct values; where each row starts (and the last ends) in an array of value numbers; that array."""
        numbers = np.repeat(np.arange(len(self._values), dtype=np.int32), np.diff(self._starts))
        order = np.argsort(self._rows, kind="stable")
        starts = np.concatenate([[0], np.cumsum(np.bincount(self._rows))])
        return list(self._values), starts, numbers[order]

    def __bool__(self) -> bool:
        return bool(self._values)

    def rows_equal_to(self, value: MetadataValue) -> Ids:
        """Find the rows whose value equals the given one or is a list containing it."""
        number = self._values.get((isinstance(value, bool), value))
        first, end = (0, 0) if number is None else self._starts[number : number + 2]
        return self._rows[first:end].astype(np.int64)

    def count_values(self, rows: Ids) -> tuple[int, dict[TypedValue, int]]:
        """Count the distinct rows with a value, and the rows by value."""
        values, starts, numbers = self._values_by_row
        last = len(starts) - 1  # later rows have no value
        first, end = starts[np.minimum(rows, last)], starts[np.minimum(rows + 1, last)]
        counts = np.bincount(numbers[_ranges(first, end)], minlength=len(values))
        counted = {values[number]: int(counts[number]) for number in np.flatnonzero(counts).tolist()}
        return int(np.count_nonzero(end > first)), counted


class VideoMetadata:
    """Metadata of a task's accepted videos, from vector ID, duration in seconds and metadata of each.

    Attributes:
        ids: ``int64 [n]`` ascending; the vector ID of each row.
        durations: Durations in seconds.
        fields: Columns by field name; fields without a filterable value are left out.
    """

    def __init__(self, videos: Sequence[tuple[int, float | None, Mapping[str, Any]]]) -> None:
        self.ids: Ids = np.array([vector_id for vector_id, _, _ in videos], np.int64)
        durations = ((seconds, row) for row, (_, seconds, _) in enumerate(videos) if seconds is not None)
        self.durations = NumberColumn(durations)
        by_name: dict[str, list[tuple[int, Any]]] = {}
        for row, (_, _, metadata) in enumerate(videos):
            for name, value in metadata.items():
                by_name.setdefault(name, []).append((row, value))
        columns = {name: MetadataColumn(values) for name, values in by_name.items()}
        self.fields = {name: column for name, column in columns.items() if column}
        of_columns = sum(column.nbytes for column in self.fields.values())
        self.nbytes = self.ids.nbytes + self.durations.nbytes + of_columns

    def rows_of(self, ids: Ids) -> Ids:
        """Look up the rows of videos, in order, skipping unknown IDs."""
        first, end = (np.searchsorted(self.ids, ids, side) for side in ("left", "right"))
        return first[end > first]


class MomentSpans:
    """The moments of a task's videos, from vector ID, start and end in seconds of each.

    Attributes:
        ids: ``int64 [n]`` ascending vector IDs, so a video's moments are consecutive.
        spans: ``float64 [n, 2]``; start and end in seconds.
    """

    def __init__(self, moments: Sequence[tuple[int, float, float]]) -> None:
        self.ids: Ids = np.array([moment for moment, _, _ in moments], np.int64)
        self.spans = np.array([span for _, *span in moments], np.float64).reshape(-1, 2)
        self._videos = video_ids_of(self.ids)
        self.nbytes = 2 * self.ids.nbytes + self.spans.nbytes

    def rows_of(self, videos: Ids) -> Ids:
        """Find the rows of videos' moments."""
        first, end = (np.searchsorted(self._videos, videos, side) for side in ("left", "right"))
        return _ranges(first, end)

    def with_moments(self, videos: Ids) -> Ids:
        """Add the moments of videos to their vector IDs."""
        return np.concatenate([videos, self.ids[self.rows_of(videos)]])


class VideoMetadataCache:
    """Metadata and moments by task, read from the catalog on first use. Thread-safe.

    Args:
        max_bytes: Maximum memory of cached metadata; moments have the same limit.
        read_cache: Cached rows of the catalog; by default, none.
        words: Words of the videos in the process's snapshots; by default, none.
    """

    def __init__(
        self,
        max_bytes: int = MAX_BYTES,
        read_cache: CatalogReadCache | None = None,
        reads: CatalogReads | None = None,
        words: LibraryWords | None = None,
    ) -> None:
        self._reads = reads or CatalogReads()
        self.words = words or LibraryWords(self._reads)
        self.read_cache = read_cache or CatalogReadCache(self._reads)
        self.metadata_by_task: SingleFlightCache[str, VideoMetadata] = SingleFlightCache(
            max_bytes, lambda metadata: metadata.nbytes
        )
        self.moments_by_task: SingleFlightCache[str, MomentSpans] = SingleFlightCache(
            max_bytes, lambda moments: moments.nbytes
        )
        self._arrivals: dict[str, datetime] = {}

    def current_metadata(self, shards: Mapping[str, str]) -> dict[str, VideoMetadata]:
        """Get the metadata of tasks with all edits, given the states of their shards.

        While the catalog is unreachable, it is that of cached rows; raises Unavailable if there are none.
        """
        edits: Mapping[str, int | str]
        try:
            if self.read_cache.is_followed:
                versions = self.read_cache.task_versions
                edits = {task: versions.get(task, "0").rpartition("+")[2] for task in map(task_of, shards)}
            else:
                edits = self._reads.read(read_metadata_edits)
            return {
                task: self.metadata(task, f"{state}+{edits.get(task_of(task), 0)}")
                for task, state in shards.items()
            }
        except Unavailable:
            return {task: self._metadata_of_cached_rows(task) for task in shards}

    def _metadata_of_cached_rows(self, task: str) -> VideoMetadata:
        version, rows = self.read_cache.videos(task)
        return self.metadata_by_task.get(
            task,
            f"cached {version}",
            lambda _: VideoMetadata([(key, row.duration, row.metadata) for key, row in rows]),
        )

    def preload(self, snapshot: SearchSnapshot) -> None:
        """Read what every search needs, filtered or not: moments, and creation times of tasks; raises Unavailable."""
        self.arrivals(list(snapshot.shards))
        for task, shard in snapshot.shards.items():
            if shard.has_moments:
                self.moments(task, shard.state)

    def metadata(self, task: str, version: str) -> VideoMetadata:
        """Get the metadata of a task's videos for a version of its shard and metadata; another version is replaced."""

        def read(_previous: VideoMetadata | None) -> VideoMetadata:
            with session_scope() as session:
                rows = session.execute(
                    select(Video.vector_id, Video.duration, Video.extra)
                    .where(in_domain(task), Video.status == "accepted")  # and its appends
                    .order_by(Video.vector_id)
                ).all()
            return VideoMetadata([(vector_id, seconds, metadata) for vector_id, seconds, metadata in rows])

        return self.metadata_by_task.get(task, version, read)

    def moments(self, task: str, shard_state: str) -> MomentSpans:
        """Get the moments of a task's videos for a state of its shard; raises Unavailable."""

        def read(_previous: MomentSpans | None) -> MomentSpans:
            self._reads.require_reachable()
            with session_scope() as session:
                rows = session.execute(
                    select(Moment.vector_id, Moment.start_seconds, Moment.end_seconds)
                    .join(Video, Video.vector_id == Moment.video_vector_id)
                    .where(in_domain(task))  # and its appends
                    .order_by(Moment.vector_id)
                ).all()
            return MomentSpans([(moment, start, end) for moment, start, end in rows])

        return self.moments_by_task.get(task, shard_state, read)

    def arrivals(self, tasks: Sequence[str]) -> dict[str, datetime]:
        """Get each task's creation time; tasks missing from the catalog are left out."""
        missing = [task for task in map(task_of, tasks) if task not in self._arrivals]
        if missing:
            self._reads.require_reachable()
            # Possibly twice, if calls overlap; the times never change.
            with session_scope() as session:
                for chunk in id_chunks(missing):
                    created = session.execute(select(Task.id, Task.created_at).where(Task.id.in_(chunk)))
                    self._arrivals = self._arrivals | {task: created_at for task, created_at in created}
        return {task: self._arrivals[task_of(task)] for task in tasks if task_of(task) in self._arrivals}


def _ranges(first: Ids, end: Ids) -> Ids:
    """Expand half-open ranges into the numbers that they contain."""
    counts = end - first
    # A running count, shifted to the start of each range.
    return np.repeat(first - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())


# -- filters ----------------------------------------------------------------------------------------------------------


def find_passing_videos(
    video_filter: VideoFilter, shards: Mapping[str, str], cache: VideoMetadataCache, field_prefix: str = ""
) -> dict[str, Ids | None]:
    """Evaluate a filter on tasks, given the states of their shards.

    Returns:
        Passing vector IDs by task ID; None if all videos pass. Tasks in which no video passes are left out.

    Raises InvalidInput if no video has a field of the filter, or no numbers where it has a range; or Unavailable.
    """
    duration, where = video_filter.duration, video_filter.where
    after, before = video_filter.arrived_after, video_filter.arrived_before
    has_video_conditions = duration is not None or bool(where)
    metadata = cache.current_metadata(shards) if has_video_conditions else {}
    if where:
        _require_known_fields(video_filter, [metadata[task] for task in shards], field_prefix)
    tasks: Sequence[str] = list(shards)
    if after is not None or before is not None:  # a task that the catalog lacks does not pass
        tasks = [
            task
            for task, created_at in cache.arrivals(tasks).items()
            if (after is None or created_at >= after) and (before is None or created_at < before)
        ]
    if not has_video_conditions:
        return dict.fromkeys(tasks)
    passing: dict[str, Ids | None] = {}
    empty = MetadataColumn(())
    for task in tasks:
        columns = metadata[task]
        rows = []
        if duration is not None:
            rows.append(columns.durations.rows_between(duration.low, duration.high))
        rows += [_rows_that_meet(condition, columns.fields.get(name, empty)) for name, condition in where]
        if len(passing_rows := reduce(np.intersect1d, rows)):
            passing[task] = columns.ids[np.sort(passing_rows)]
    return passing


def _rows_that_meet(condition: Condition, column: MetadataColumn) -> Ids:
    if isinstance(condition, ValueRange):
        return column.numbers.rows_between(condition.low, condition.high)
    rows = [column.rows_equal_to(value) for _, value in condition.values]
    return reduce(np.intersect1d, rows) if condition.all_of else np.unique(np.concatenate(rows))


def parse_where_json(text: str) -> dict[str, Any]:
    """Parse metadata conditions written as a JSON object in a URL; raises InvalidInput."""
    try:
        conditions = json.loads(text)
    except (ValueError, RecursionError):
        conditions = None
    if not isinstance(conditions, dict):
        raise InvalidInput.at(
            "where",
            "The value is not a JSON object.",
            'Send fields and their conditions, for example {"place": "kitchen"}.',
        )
    return conditions


def _require_known_fields(
    video_filter: VideoFilter, metadata_list: Sequence[VideoMetadata], field_prefix: str
) -> None:
    for name, condition in video_filter.where:
        columns = [metadata.fields[name] for metadata in metadata_list if name in metadata.fields]
        field = f"{field_prefix}where.{name[:100]}"
        if not columns:
            names = sorted({field for metadata in metadata_list for field in metadata.fields})
            raise InvalidInput.at(
                field,
                f"No video in the searched tasks has a field {name[:100]!r}.",
                f"Known fields: {', '.join(map(repr, names[:20]))}{' …' if len(names) > 20 else ''}."
                if names
                else "The videos have no metadata. Send metadata with the videos when you add them.",
            )
        if isinstance(condition, ValueRange) and not any(column.numbers for column in columns):
            raise InvalidInput.at(
                field,
                f"No video in the searched tasks has a number in field {name[:100]!r}, so it has no range.",
                "Filter by a value. Cells in a CSV manifest are strings; a JSONL manifest keeps numbers.",
            )


# -- facets -----------------------------------------------------------------------------------------------------


def count_facets(cache: VideoMetadataCache, snapshot: SearchSnapshot, ids: Ids) -> list[Facet]:
    """Count distinct videos by domain and by metadata value, most frequent first.

    Domains come first, then the metadata fields that most videos have. Values that cannot narrow a search are left out:
    one that a single video has, and a field whose value is the same for all videos or different for nearly every one.
    Unknown videos are ignored, and so is metadata that is not cached while the catalog is unreachable.
    """
    indices = snapshot.video_tasks.locate(ids)
    tasks = list(snapshot.shards)
    order = np.argsort(indices, kind="stable")
    present, starts = np.unique(indices[order], return_index=True)
    groups = map(np.sort, np.split(ids[order], starts[1:]))
    videos = {
        tasks[index]: group for index, group in zip(present.tolist(), groups, strict=False) if index >= 0
    }
    if not videos:
        return []
    number = sum(map(len, videos.values()))
    counted: list[tuple[int, Facet]] = []
    with_value, counts = _count_fields(cache, snapshot, videos)
    for name, counts_of_field in counts.items():
        frequent = {key: count for key, count in counts_of_field.items() if count > 1 or number == 1}
        if frequent and min(frequent.values()) < max(number, 2):
            counted.append((with_value[name], Facet(field=f"where.{name}", values=_most_frequent(frequent))))
    counted.sort(key=lambda item: (-item[0], item[1].field))
    domains = Counter[TypedValue]()
    for task, ids_of_task in videos.items():
        domains[False, snapshot.task_names[task]] += len(ids_of_task)
    return [
        Facet(field="task", values=_most_frequent(domains)),
        *(facet for _, facet in counted[:FACET_FIELDS]),
    ]


def _count_fields(
    cache: VideoMetadataCache, snapshot: SearchSnapshot, videos: Mapping[str, Ids]
) -> tuple[Counter[str], dict[str, Counter[TypedValue]]]:
    """Count the videos with a value in each metadata field, and those with each of its short values."""
    with_value = Counter[str]()
    counts = defaultdict[str, Counter[TypedValue]](Counter)
    with suppress(Unavailable):
        columns = cache.current_metadata({task: snapshot.shards[task].state for task in videos})
        for task, metadata in columns.items():
            rows = metadata.rows_of(videos[task])
            for name, column in metadata.fields.items():
                if column.has_repeated_values:
                    total, of_values = column.count_values(rows)
                    with_value[name] += total
                    counts[name].update(
                        {key: n for key, n in of_values.items() if len(str(key[1])) <= FACET_CHARS}
                    )
    return with_value, counts


def _most_frequent(counts: Mapping[TypedValue, int]) -> list[FacetValue]:
    """Pick the most frequent values, ties in text order."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], str(item[0][1])))
    return [FacetValue(value=value, count=count) for (_, value), count in ordered[:FACET_VALUES]]
