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
    """A versioned LRU cache that computes each value once per key and version. Thread-safe.

    The lock is not held while a value is computed, so no thread waits for another key. Threads that need the value
    being computed wait for it and share its exception. Exceptions are not cached.

    Args:
        max_size: Maximum total size of the values. A value larger than this stays, alone.
        size_of: Measures a value; 1 by default.
    """

    def __init__(self, max_size: float, size_of: Callable[[Value], float] = lambda _: 1) -> None:
        self._lock = Lock()
        self._entries: LRUCache[Key, tuple[Hashable, Value]] = LRUCache(
            max_size, getsizeof=lambda entry: min(size_of(entry[1]), max_size)
        )
        self._computations: dict[tuple[Key, Hashable], Future[Value]] = {}

    def get(
        self,
        key: Key,
        version: Hashable,
        compute: Callable[[Value | None], Value],
        *,
        is_outdated: bool = False,
    ) -> Value:
        """Get a key's cached value, or compute and cache it; raises whatever ``compute`` raises.

        Args:
            version: Version that the value must have; a cached value of another version is replaced.
            compute: Computes the value, given the one that it replaces, or None.
            is_outdated: Whether to recompute even if the version matches.
        """
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None and entry[0] == version and not is_outdated:
                return entry[1]
            running = self._computations.get((key, version))
            if running is None:
                future = self._computations[key, version] = Future[Value]()
        if running is not None:
            return running.result()
        try:
            value = compute(entry[1] if entry is not None else None)
        except BaseException as error:
            with self._lock:
                del self._computations[key, version]
            future.set_exception(error)
            raise
        with self._lock:
            del self._computations[key, version]
            self._entries[key] = version, value
        future.set_result(value)
        return value
