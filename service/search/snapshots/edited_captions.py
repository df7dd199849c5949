"""Edited captions in the current snapshot of a process."""

from __future__ import annotations

import time

from service.catalog.domain_videos import read_caption_edits
from service.search.snapshots.search_snapshot import SearchSnapshot

MAX_SHARE = 0.1  # of the time: captions of a domain of many videos take seconds to read


class EditedCaptions:
    """Follows the caption edits of the catalog. Calls must not overlap."""

    def __init__(self) -> None:
        self._seen: tuple[SearchSnapshot, dict[str, int]] | None = None
        self._due = 0.0  # monotonic time

    def apply(self, snapshot: SearchSnapshot) -> SearchSnapshot | None:
        """Return a snapshot with the routing profiles of edited captions; None if nothing has changed or is due.

        Raises:
            Unavailable: the catalog cannot be read.
        """
        started = time.monotonic()
        if started < self._due:
            return None
        edits = read_caption_edits()
        if self._seen is not None and self._seen[0] is snapshot and self._seen[1] == edits:
            return None
        fresh = snapshot.with_current_captions()
        if fresh is not None:
            finished = time.monotonic()
            self._due = finished + (finished - started) * (1 / MAX_SHARE - 1)
        self._seen = fresh or snapshot, edits
        return fresh
