"""Cache of mapped segments."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from index.files.manifest_format import SegmentEntry
from index.scanning.segment import Segment


@dataclass
class _CacheEntry:
    """A segment, or None until it is open. ``opening`` lets one thread open it while others wait."""

    opening: Lock = field(default_factory=Lock)
    users: int = 0
    segment: Segment | None = None


class SegmentCache:
    """Opens segments on first use, and keeps them open while a generation names them.

    A segment in use is never closed. Segments are identified by content, independent of the generation that searches
    them.
    """

    def __init__(self, *, gpu: bool = False) -> None:
        """An empty cache, which searches copies of segments on a GPU if ``gpu``."""
        self._gpu = gpu
        self._lock = Lock()
        self._entries: dict[str, _CacheEntry] = {}

    @contextmanager
    def use(self, folder: Path, entry: SegmentEntry) -> Iterator[Segment]:
        """A segment that stays open inside the ``with`` block.

        A file that was truncated or replaced since it was mapped is opened again: the kernel kills a process that reads
        a mapped file beyond its end.

        Raises:
            ShardMissing, ShardCorrupt: The segment cannot be opened; see :meth:`Segment.open`.
        """
        with self._lock:
            cached = self._entries.setdefault(entry.id, _CacheEntry())
            cached.users += 1
        try:
            with cached.opening:
                if cached.segment is not None and cached.segment.is_stale():
                    cached.segment = None
                if cached.segment is None:
                    cached.segment = Segment.open(folder, entry, verify=False, gpu=self._gpu)
                segment = cached.segment
            yield segment
        finally:
            with self._lock:
                cached.users -= 1
                if cached.segment is None and not cached.users:
                    del self._entries[entry.id]

    def retain(self, identifiers: set[str]) -> None:
        """Close all other segments that are not in use, such as those that a new generation no longer names."""
        with self._lock:
            for identifier in [key for key in self._entries if key not in identifiers]:
                if not self._entries[identifier].users:
                    del self._entries[identifier]
