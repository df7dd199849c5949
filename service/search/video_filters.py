"""Filter videos by duration, arrival time and metadata, and count the values to filter by: the facets of results.

A filter never changes a score. A filtered search returns the results of the unfiltered one minus the videos that fail
the filter, and searches deep enough to find k results wherever k videos pass.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from cinestrata_schemas.search import Facet, FacetValue
from index.arrays import Ids
from index.words.video_columns import ColumnSegment, MetadataColumn, TypedValue, VideoColumns
from service.core.errors import InvalidInput, Unavailable
from service.search.catalog_read_cache import CatalogReadCache
from service.search.search_request import Condition, ValueRange, VideoFilter
from service.search.snapshots.search_snapshot import SearchSnapshot

FACET_FIELDS, FACET_VALUES = 5, 8  # metadata fields, and values of each
FACET_CHARS = 80  # longer values are descriptions, not categories
_NO_ROWS = np.empty(0, np.int64)


# -- filters ----------------------------------------------------------------------------------------------------------


def find_passing_videos(
    video_filter: VideoFilter,
    snapshot: SearchSnapshot,
    tasks: Sequence[str],
    cache: CatalogReadCache,
    field_prefix: str = "",
) -> dict[str, Ids | None]:
    """Evaluate a filter on tasks of a snapshot.

    Returns:
        Passing vector IDs by task ID; None if all videos pass. Tasks in which no video passes are left out.

    Raises InvalidInput if no video has a field of the filter, or no numbers where it has a range; or Unavailable.
    """
    after, before = video_filter.arrived_after, video_filter.arrived_before
    arrived = tasks
    if after is not None or before is not None:  # a task that the catalog lacks does not pass
        arrived = [
            task
            for task, created_at in cache.arrivals(tasks).items()
            if (after is None or created_at >= after) and (before is None or created_at < before)
        ]
    if video_filter.duration is None and not video_filter.where:
        return dict.fromkeys(arrived)
    if problem := cache.words.problem:
        raise Unavailable(f"A filter needs the videos' metadata, but {problem}; try again.", 5)
    columns = cache.words.texts.columns
    ids = [_NO_ROWS, *(live.ids_of(_passing_rows(live.segment, video_filter)) for live in columns.segments)]
    passing = _by_task(snapshot, np.sort(np.concatenate(ids), kind="stable"))
    if not any(task in passing for task in tasks):
        _require_known_fields(video_filter, columns, snapshot, tasks, field_prefix)
    return {task: passing[task] for task in arrived if task in passing}


def _by_task(snapshot: SearchSnapshot, ids: Ids) -> dict[str, Ids]:
    """Group the vector IDs of videos by task. Unknown videos are left out."""
    indices, tasks = snapshot.video_tasks.locate(ids), list(snapshot.shards)
    order = np.argsort(indices, kind="stable")
    present, starts = np.unique(indices[order], return_index=True)
    groups = np.split(ids[order], starts[1:])
    return {tasks[index]: group for index, group in zip(present.tolist(), groups, strict=False) if index >= 0}


def _passing_rows(segment: ColumnSegment, video_filter: VideoFilter) -> Ids:
    """Find the rows of a segment that meet the conditions on videos, ascending."""
    rows = []
    if (seconds := video_filter.duration) is not None:
        rows.append(segment.rows_lasting(seconds.low, seconds.high))
    for name, condition in video_filter.where:
        column = segment.fields.get(name)
        rows.append(_NO_ROWS if column is None else _rows_that_meet(condition, column))
    return reduce(_intersect, rows)


def _rows_that_meet(condition: Condition, column: MetadataColumn) -> Ids:
    if isinstance(condition, ValueRange):
        return column.rows_between(condition.low, condition.high)
    rows = [column.rows_equal_to(value) for value in condition.values]
    return reduce(_intersect if condition.all_of else np.union1d, rows)


def _intersect(rows: Ids, others: Ids) -> Ids:
    return np.intersect1d(rows, others, assume_unique=True)


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
    video_filter: VideoFilter,
    columns: VideoColumns,
    snapshot: SearchSnapshot,
    tasks: Sequence[str],
    field_prefix: str,
) -> None:
    """Require that videos of the searched tasks have the fields, and numbers where the filter has a range."""

    searched = set(tasks)

    def kinds(name: str) -> list[bool]:
        """For the values of searched videos in a field: whether each part has numbers."""
        return [
            has_numbers
            for ids, has_numbers in columns.having(name)
            if not searched.isdisjoint(_by_task(snapshot, ids))
        ]

    for name, condition in video_filter.where:
        field = f"{field_prefix}where.{name[:100]}"
        if not (has_numbers := kinds(name)):
            fields = {name for live in columns.segments for name in live.segment.fields}
            names = sorted(name for name in fields if kinds(name))
            raise InvalidInput.at(
                field,
                f"No video in the searched domains has a field {name[:100]!r}.",
                f"Known fields: {', '.join(map(repr, names[:20]))}{' …' if len(names) > 20 else ''}."
                if names
                else "The videos have no metadata. Send metadata with the videos when you add them.",
            )
        if isinstance(condition, ValueRange) and not any(has_numbers):
            raise InvalidInput.at(
                field,
                f"No video in the searched domains has a number in field {name[:100]!r}, so it has no range.",
                "Filter by a value. Cells in a CSV manifest are strings; a JSONL manifest keeps numbers.",
            )


# -- facets -----------------------------------------------------------------------------------------------------


def count_facets(cache: CatalogReadCache, snapshot: SearchSnapshot, ids: Ids) -> list[Facet]:
    """Count distinct videos by domain and by metadata value, most frequent first.

    Domains come first, then the metadata fields that most videos have. Values that cannot narrow a search are left out:
    one that a single video has, and a field whose value is the same for all videos or different for nearly every one.
    Unknown videos are ignored.
    """
    videos = _by_task(snapshot, ids)
    if not videos:
        return []
    columns, counted_ids = cache.words.texts.columns, np.concatenate(list(videos.values()))
    counted: list[tuple[int, Facet]] = []
    of_fields = columns.count_values(counted_ids, columns.grouping_fields)
    for name, (with_value, counts) in of_fields.items():
        frequent = {
            key: count
            for key, count in counts.items()
            if (count > 1 or len(counted_ids) == 1) and len(str(key[1])) <= FACET_CHARS
        }
        if frequent and min(frequent.values()) < max(len(counted_ids), 2):
            counted.append((with_value, Facet(field=f"where.{name}", values=_most_frequent(frequent))))
    counted.sort(key=lambda item: (-item[0], item[1].field))
    domains = Counter[TypedValue]()
    for task, group in videos.items():
        domains[False, snapshot.task_names[task]] += len(group)
    return [
        Facet(field="task", values=_most_frequent(domains)),
        *(facet for _, facet in counted[:FACET_FIELDS]),
    ]


def _most_frequent(counts: Mapping[TypedValue, int]) -> list[FacetValue]:
    """Pick the most frequent values, ties in text order."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], str(item[0][1])))
    return [FacetValue(value=value, count=count) for (_, value), count in ordered[:FACET_VALUES]]
