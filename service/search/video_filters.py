"""Filter videos by duration, arrival time and metadata, and count the values to filter by: the facets of results.

A filter never changes a score. A filtered search returns the results of the unfiltered one minus the videos that fail
the filter, and searches deep enough to find k results wherever k videos pass.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import reduce
from typing import Any

import numpy as np

from cinestrata_schemas.search import Facet, FacetValue
from index.arrays import Ids
from service.core.errors import InvalidInput, Unavailable
from service.search.search_request import Condition, TypedValue, ValueRange, VideoFilter
from service.search.snapshots.search_snapshot import SearchSnapshot
from service.search.video_metadata_cache import MetadataColumn, VideoMetadata, VideoMetadataCache

FACET_FIELDS, FACET_VALUES = 5, 8  # metadata fields, and values of each
FACET_CHARS = 80  # longer values are descriptions, not categories


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
        rows = [] if duration is None else [_rows_that_meet(duration, columns.durations)]
        rows += [_rows_that_meet(condition, columns.fields.get(name, empty)) for name, condition in where]
        if len(passing_rows := reduce(np.intersect1d, rows)):
            passing[task] = columns.ids[np.sort(passing_rows)]
    return passing


def _rows_that_meet(condition: Condition, column: MetadataColumn) -> Ids:
    if isinstance(condition, ValueRange):
        return column.rows_between(condition.low, condition.high)
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
        if isinstance(condition, ValueRange) and not any(column.has_numbers for column in columns):
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
