"""Choose which segments of an index to merge."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from typing import Protocol, TypeVar

# Smaller segments are always merged, since every lookup has a fixed cost per segment.
_SMALL = 512
# A larger segment stays while it is twice as large as all smaller ones together. The number of segments is then
# logarithmic, and so is how often an entry is copied.
_RATIO = 2


class Live(Sized, Protocol):
    """A segment whose length is the number of entries that are alive; the others were replaced."""

    @property
    def segment(self) -> Sized: ...
    @property
    def replaced(self) -> int: ...


Segment = TypeVar("Segment", bound=Live)


def merge_small(
    segments: Sequence[Segment], merge: Callable[[Sequence[Segment]], Segment], *, compact: bool = False
) -> tuple[Segment, ...]:
    """Merge small segments, copy those that are half replaced, and drop empty ones; largest first.

    With ``compact``, all segments with replaced entries are copied.
    """
    ordered = sorted(filter(len, segments), key=len, reverse=True)
    smaller = 0  # entries in the segments from here on
    start = len(ordered)
    for row in range(len(ordered) - 1, -1, -1):
        size = len(ordered[row])
        if smaller and (size < _SMALL or size < _RATIO * smaller):
            start = row
        smaller += size
    large = [
        merge([live]) if live.replaced and (compact or 2 * live.replaced >= len(live.segment)) else live
        for live in ordered[:start]
    ]
    return (*large, *([merge(ordered[start:])] if start < len(ordered) else []))
