"""An LRU cache that computes each missing value once, without blocking readers of other values."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from concurrent.futures import Future
from threading import Lock
from typing import Generic, TypeVar

from cachetools import LRUCache

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class SingleFlightCache(Generic[Key, Value]):
    """A versioned LRU cache with one computation per key and version. Thread-safe.

    Values are computed without holding the lock, so a thread never waits for another key's value. Threads that need a
    value being computed wait for it and share its exception. Exceptions are not cached.

    Args:
        max_size: Maximum total size of the values. A value larger than this is cached alone.
        size_of: Size of a value; 1 by default.
    """

    def __init__(self, max_size: float, size_of: Callable[[Value], float] = lambda _: 1) -> None:
        self._lock = Lock()
        self._entries: LRUCache[Key, tuple[Hashable, Value]] = LRUCache(
            max_size, getsizeof=lambda entry: min(size_of(entry[1]), max_size)
        )
        self._computations: dict[tuple[Key, Hashable], Future[Value]] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def get(
        self,
        key: Key,
        version: Hashable,
        compute: Callable[[Value | None], Value],
        *,
        is_outdated: bool = False,
    ) -> Value:
        """Return the cached value of a key, or compute and cache it.

        Args:
            version: Version that the value must have; a value of another version is replaced.
            compute: Function that computes the value, given the replaced value or None.
            is_outdated: Whether to replace a cached value even if its version matches.

        Raises:
            Exception: The exception of ``compute``.
        """
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None and entry[0] == version and not is_outdated:
                return entry[1]
            running = self._computations.get((key, version))
            if running is None:
                own = self._computations[key, version] = Future[Value]()
        if running is not None:
            return running.result()
        try:
            value = compute(entry[1] if entry is not None else None)
        except BaseException as error:
            with self._lock:
                del self._computations[key, version]
            own.set_exception(error)
            raise
        with self._lock:
            del self._computations[key, version]
            self._entries[key] = version, value
        own.set_result(value)
        return value

    def clear(self) -> None:
        """Remove all values."""
        with self._lock:
            self._entries.clear()
