"""Filter videos by duration, arrival time and metadata, and count the values to filter by: the facets of results.

A filter never changes a score. A filtered search returns the results of the unfiltered one minus the videos that fail
the filter, and searches deep enough to find k results wherever k videos pass.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from typing import Any

import numpy as np

from cinestrata_schemas.search import Facet, FacetValue, SearchQuery
from index.arrays import Ids
from service.core.errors import InvalidInput, Unavailable
from service.search.snapshots.search_snapshot import SearchSnapshot
from service.search.video_metadata_cache import MetadataColumn, TypedValue, VideoMetadata, VideoMetadataCache

_MAX_CONDITIONS = 16  # per filter
_MAX_VALUES = 64  # per list of values
_MAX_CHARS = 1000  # per text value
FACET_FIELDS, FACET_VALUES = 5, 8  # metadata fields, and values of each
FACET_CHARS = 80  # longer values are descriptions, not categories
_CONDITION_HINT = (
    'Give a value ("night", 3, true), {"min": 1, "max": 5} with one end or both, {"any": ["red", "blue"]} or '
    '{"all": ["red", "blue"]}.'
)


@dataclass(frozen=True)
class _Range:
    low: float | None
    high: float | None

    def rows(self, column: MetadataColumn) -> Ids:
        return column.rows_between(self.low, self.high)


@dataclass(frozen=True)
class _Values:
    values: tuple[TypedValue, ...]
    all_of: bool  # whether a list must have all values, instead of any

    def rows(self, column: MetadataColumn) -> Ids:
        rows = [column.rows_equal_to(value) for _, value in self.values]
        return reduce(np.intersect1d, rows) if self.all_of else np.unique(np.concatenate(rows))


_Condition = _Range | _Values


@dataclass(frozen=True)
class VideoFilter:
    """Conditions on videos, all of which must hold. Hashable, so that a batch evaluates equal filters once."""

    duration: _Range | None = None  # range in seconds
    arrived_after: datetime | None = None  # earliest creation time of the video's task, inclusive
    arrived_before: datetime | None = None  # latest creation time of the video's task, exclusive
    where: tuple[tuple[str, _Condition], ...] = ()  # conditions by metadata field


NO_FILTER = VideoFilter()


def find_passing_videos(
    video_filter: VideoFilter, shards: Mapping[str, str], cache: VideoMetadataCache, field_prefix: str = ""
) -> dict[str, Ids | None]:
    """Evaluate a filter on tasks, given the states of their shards.

    Returns:
        Passing vector IDs by task ID; None if all videos pass. Tasks in which no video passes are left out.

    Raises:
        InvalidInput: No video in the tasks has a field that the filter uses, or a field with a range has no numbers.
        Unavailable: The catalog is unreachable, and a task's rows are not cached.
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
        rows = [] if duration is None else [duration.rows(columns.durations)]
        rows += [condition.rows(columns.fields.get(name, empty)) for name, condition in where]
        if len(passing_rows := reduce(np.intersect1d, rows)):
            passing[task] = columns.ids[np.sort(passing_rows)]
    return passing


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


def parse_filter(query: SearchQuery, report_error: Callable[[str, str, str], None]) -> VideoFilter:
    """Parse a query's filter fields, and report the field, message and hint of invalid ones."""
    for name in ("min_duration", "max_duration"):
        seconds = getattr(query, name)
        if seconds is not None and not (math.isfinite(seconds) and seconds >= 0):
            report_error(name, "The value is not a duration.", "Give seconds, 0 or more.")
    low, high = query.min_duration, query.max_duration
    if low is not None and high is not None and low > high:
        report_error(
            "min_duration", "The value exceeds max_duration, so no video can pass.", "Swap the two values."
        )
    after, before = _with_time_zone(query.arrived_after), _with_time_zone(query.arrived_before)
    if after is not None and before is not None and after >= before:
        report_error(
            "arrived_after",
            "The time is not earlier than arrived_before, so no video can pass.",
            "Swap the two values.",
        )
    where = query.where or {}
    conditions: list[tuple[str, _Condition]] = []
    if len(where) > _MAX_CONDITIONS:
        report_error(
            "where",
            f"The filter names {len(where)} fields.",
            f"Name at most {_MAX_CONDITIONS}; all must match.",
        )
        where = {}
    for name, value in where.items():
        try:
            conditions.append((name, _parse_condition(value)))
        except _InvalidCondition as error:
            report_error(f"where.{name[:100]}", *error.args)
    return VideoFilter(
        duration=None if low is None and high is None else _Range(low, high),
        arrived_after=after,
        arrived_before=before,
        where=tuple(sorted(conditions, key=lambda condition: condition[0])),
    )


class _InvalidCondition(ValueError):
    """An invalid condition; the arguments are message and hint."""


def _with_time_zone(time: datetime | None) -> datetime | None:
    """Read a time without a zone as UTC."""
    return time.replace(tzinfo=UTC) if time is not None and time.tzinfo is None else time


def _parse_condition(value: Any) -> _Condition:
    if isinstance(value, str) and len(value) > _MAX_CHARS:
        raise _InvalidCondition(f"The text has {len(value)} characters.", f"Use at most {_MAX_CHARS}.")
    if not isinstance(value, dict):
        if not _is_value(value):
            raise _InvalidCondition("The value is not a valid metadata value.", _CONDITION_HINT)
        return _Values(((isinstance(value, bool), value),), all_of=False)
    keys = set(value)
    if keys and keys <= {"min", "max"}:
        if not all(_is_number(end) for end in value.values()):
            raise _InvalidCondition("An end of the range is not a number.", _CONDITION_HINT)
        if len(value) == 2 and value["min"] > value["max"]:
            raise _InvalidCondition("min exceeds max, so no video can pass.", "Swap the two values.")
        return _Range(value.get("min"), value.get("max"))
    if keys not in ({"any"}, {"all"}):
        raise _InvalidCondition("The object is not a valid condition.", _CONDITION_HINT)
    ((kind, values),) = value.items()
    if not isinstance(values, list) or not 1 <= len(values) <= _MAX_VALUES:
        raise _InvalidCondition(f"'{kind}' is not a list of 1 to {_MAX_VALUES} values.", _CONDITION_HINT)
    if not all(_is_value(item) and (kind == "any" or isinstance(item, str)) for item in values):
        expected = "value" if kind == "any" else "text"
        raise _InvalidCondition(f"'{kind}' contains an item that is not a {expected}.", _CONDITION_HINT)
    return _Values(tuple((isinstance(item, bool), item) for item in values), all_of=kind == "all")


def _is_number(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isnan(value)
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63  # as stored metadata


def _is_value(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= _MAX_CHARS
    return isinstance(value, bool) or (_is_number(value) and value not in (math.inf, -math.inf))


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
        if isinstance(condition, _Range) and not any(column.has_numbers for column in columns):
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
