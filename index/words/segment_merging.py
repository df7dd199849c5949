"""Change an index's segments: remove videos, and merge so that segments stay few."""

from __future__ import annotations

from index.arrays import Ids
from index.words.unit_matching import LiveSegment
from index.words.word_segment import merge_segments

# Segments with fewer documents are always merged, since every lookup has a fixed cost per segment.
_SMALL = 512
# A larger segment stays while it is twice as large as all smaller ones together. The number of segments is then
# logarithmic, and so is how often a document is copied.
_RATIO = 2


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


def merge_small(segments: tuple[LiveSegment, ...]) -> tuple[LiveSegment, ...]:
    """Merge small segments, copy those that are half replaced, and drop empty ones; largest first."""
    ordered = sorted(filter(len, segments), key=len, reverse=True)
    smaller = 0  # documents in the segments from here on
    start = len(ordered)
    for place in range(len(ordered) - 1, -1, -1):
        size = len(ordered[place])
        if smaller and (size < _SMALL or size < _RATIO * smaller):
            start = place
        smaller += size
    kept = [live if 2 * len(live) > len(live.segment) else _merged([live]) for live in ordered[:start]]
    return (*kept, *([_merged(ordered[start:])] if start < len(ordered) else []))


def _merged(segments: list[LiveSegment]) -> LiveSegment:
    return LiveSegment.of(merge_segments([(live.segment, live.alive) for live in segments]))
