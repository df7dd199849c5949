"""Facets of search results: the domains and metadata values to filter by, with counts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import suppress

import numpy as np

from cinestrata_schemas.search import Facet, FacetValue
from index.arrays import Ids
from service.core.errors import Unavailable
from service.search.snapshots.search_snapshot import SearchSnapshot
from service.search.video_metadata_cache import MetadataValue, VideoMetadataCache

_Value = tuple[bool, MetadataValue]  # with whether it is a bool

MAX_FIELDS = 5  # metadata fields
MAX_VALUES = 8  # per field
MAX_VALUE_CHARS = 80  # longer values are descriptions, not categories


def count_facets(cache: VideoMetadataCache, snapshot: SearchSnapshot, ids: Ids) -> list[Facet]:
    """Count videos by domain and by metadata value.

    Domains come first, then the metadata fields that most videos have. Values that cannot narrow a search are left out:
    one that a single video has, and a field whose value is the same for all videos or different for nearly every one.

    Args:
        ids: ``int64``; distinct vector IDs of videos. Unknown ones are ignored.

    Returns:
        Fields with their values, most frequent first. Only the domains while the catalog is unreachable and the
        metadata is not cached.
    """
    positions = snapshot.locate(ids)
    tasks = list(snapshot.shards)
    order = np.argsort(positions, kind="stable")
    places, starts = np.unique(positions[order], return_index=True)
    groups = map(np.sort, np.split(ids[order], starts[1:]))
    videos = {
        tasks[place]: group for place, group in zip(places.tolist(), groups, strict=False) if place >= 0
    }
    if not videos:
        return []
    number = sum(map(len, videos.values()))
    counted: list[tuple[int, Facet]] = []
    with_value, counts = _count_fields(cache, snapshot, videos)
    for name, own in counts.items():
        frequent = {key: count for key, count in own.items() if count > 1 or number == 1}
        if frequent and min(frequent.values()) < max(number, 2):
            counted.append((with_value[name], Facet(field=f"where.{name}", values=_most_frequent(frequent))))
    counted.sort(key=lambda item: (-item[0], item[1].field))
    domains = Counter[_Value]()
    for task, ids_of_task in videos.items():
        domains[False, snapshot.task_names[task]] += len(ids_of_task)
    return [
        Facet(field="task", values=_most_frequent(domains)),
        *(facet for _, facet in counted[:MAX_FIELDS]),
    ]


def _count_fields(
    cache: VideoMetadataCache, snapshot: SearchSnapshot, videos: Mapping[str, Ids]
) -> tuple[Counter[str], dict[str, Counter[_Value]]]:
    """Count the videos with a value in each metadata field, and those with each of its short values."""
    with_value = Counter[str]()
    counts = defaultdict[str, Counter[_Value]](Counter)
    with suppress(Unavailable):
        columns = cache.current_metadata({task: snapshot.shards[task].state for task in videos})
        for task, metadata in columns.items():
            rows = metadata.rows_of(videos[task])
            for name, column in metadata.fields.items():
                if column.has_repeated_values:
                    total, of_values = column.count_values(rows)
                    with_value[name] += total
                    counts[name].update({key: n for key, n in of_values.items() if _is_short(key[1])})
    return with_value, counts


def _is_short(value: MetadataValue) -> bool:
    return not isinstance(value, str) or len(value) <= MAX_VALUE_CHARS


def _most_frequent(counts: Mapping[_Value, int]) -> list[FacetValue]:
    """Pick the most frequent values, ties in text order."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], str(item[0][1])))
    return [FacetValue(value=value, count=count) for (_, value), count in ordered[:MAX_VALUES]]
