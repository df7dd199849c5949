"""Cache of mapped segments, limited by bytes; the least recently searched segments are closed first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from index.files.manifest_format import SegmentEntry
from index.scanning.segment import Segment

__all__ = ["SegmentCache"]


@dataclass
class _CacheEntry:
    """A segment, or None until it is open. ``opening`` lets one thread open it while others wait."""

    opening: Lock = field(default_factory=Lock)
    users: int = 0
    segment: Segment | None = None


class SegmentCache:
    """Opens segments on first use, and closes them when the budget is exceeded.

    A segment in use is never closed, so the budget is exceeded while concurrent searches use more than it allows.
    Segments are identified by content, independent of the generation that searches them.
    """

    def __init__(self, max_bytes: int | None = None, *, gpu: bool = False) -> None:
        """An empty cache.

        Args:
            max_bytes: Maximum total size of mapped files; None: no limit.
            gpu: Search copies of segments on a GPU.
        """
        self._max_bytes = max_bytes
        self._gpu = gpu
        self._lock = Lock()
        self._entries: OrderedDict[str, _CacheEntry] = OrderedDict()  # least recently used first
        self._bytes = 0

    @property
    def bytes(self) -> int:
        """Total size of the open files."""
        return self._bytes

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
            self._entries.move_to_end(entry.id)
        try:
            with cached.opening:
                if cached.segment is not None and cached.segment.is_stale():
                    cached.segment = None
                    with self._lock:
                        self._bytes -= entry.bytes
                if cached.segment is None:
                    cached.segment = Segment.open(folder, entry, verify=False, gpu=self._gpu)
                    with self._lock:
                        self._bytes += entry.bytes
                segment = cached.segment
            yield segment
        finally:
            with self._lock:
                cached.users -= 1
                if cached.segment is None and not cached.users:
                    del self._entries[entry.id]
                self._evict()

    def retain(self, identifiers: set[str]) -> None:
        """Close all other segments that are not in use, such as those that a new generation no longer names."""
        with self._lock:
            for identifier in [key for key in self._entries if key not in identifiers]:
                self._close(identifier)

    def _evict(self) -> None:
        if self._max_bytes is None:
            return
        for identifier in list(self._entries) if self._bytes > self._max_bytes else ():
            if self._bytes <= self._max_bytes:
                break
            self._close(identifier)

    def _close(self, identifier: str) -> None:
        cached = self._entries[identifier]
        if cached.segment is not None and not cached.users:
            self._bytes -= cached.segment.entry.bytes
            del self._entries[identifier]
