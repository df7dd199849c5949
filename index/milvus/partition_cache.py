"""Cache of the partitions that Milvus holds in memory; the least recently used are released first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

__all__ = ["PartitionCache"]


@dataclass
class _CacheEntry:
    """A partition. ``loading`` lets one thread load it while others wait."""

    loading: Lock = field(default_factory=Lock)
    users: int = 0
    is_loaded: bool = False


class PartitionCache:
    """Loads partitions on first use, and releases them when there are too many.

    A partition in use is never released. Each process has a cache of its own: a partition that one process released may
    still be marked as loaded in another, until the server rejects a request (:meth:`mark_released`).
    """

    def __init__(self, max_loaded: int | None = None) -> None:
        """An empty cache.

        Args:
            max_loaded: Maximum number of loaded partitions; None: no limit.
        """
        self._max_loaded = max_loaded
        self._lock = Lock()
        self._entries: OrderedDict[tuple[str, str], _CacheEntry] = OrderedDict()  # least recently used first

    @contextmanager
    def use(self, client: Any, collection: str, partition: str, *, whole: bool) -> Iterator[None]:
        """Keep a partition loaded inside the ``with`` block.

        Args:
            client: Client that loads and releases.
            collection: Collection of the partition.
            partition: Name of the partition.
            whole: The server only loads complete collections (milvus-lite), so that nothing is ever released.
        """
        key = (collection, "" if whole else partition)
        with self._lock:
            entry = self._entries.setdefault(key, _CacheEntry())
            entry.users += 1
            self._entries.move_to_end(key)
        try:
            with entry.loading:
                if not entry.is_loaded:
                    if whole:
                        client.load_collection(collection)
                    else:
                        client.load_partitions(collection, [partition])
                    entry.is_loaded = True
            yield
        finally:
            with self._lock:
                entry.users -= 1
                surplus = [] if whole else self._take_surplus()
            for name, part in surplus:
                client.release_partitions(name, [part])

    def mark_released(self, collection: str, partition: str, *, whole: bool) -> None:
        """Record that the server does not have a partition loaded."""
        with self._lock:
            entry = self._entries.get((collection, "" if whole else partition))
            if entry is not None:
                entry.is_loaded = False

    def release(self, client: Any, collection: str, partition: str, *, whole: bool) -> None:
        """Release a partition that is about to be dropped."""
        if not whole:
            client.release_partitions(collection, [partition])
            with self._lock:
                self._entries.pop((collection, partition), None)

    def clear(self) -> None:
        """Record that no partition is loaded: the server may have been restarted."""
        with self._lock:
            for entry in self._entries.values():
                entry.is_loaded = False

    def _take_surplus(self) -> list[tuple[str, str]]:
        """Remove the partitions beyond the limit from the cache, and return their keys."""
        surplus: list[tuple[str, str]] = []
        if self._max_loaded is not None:
            for key in list(self._entries):
                if len(self._entries) <= self._max_loaded:
                    break
                if not self._entries[key].users:
                    del self._entries[key]
                    surplus.append(key)
        return surplus
