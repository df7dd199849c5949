"""Which partitions Milvus holds in memory: those that are used, and those that were used longest ago go first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

__all__ = ["PartitionCache"]


@dataclass
class _Held:
    """A partition. ``loading`` lets one thread load it and the others wait for that one."""

    loading: Lock = field(default_factory=Lock)
    users: int = 0
    loaded: bool = False


class PartitionCache:
    """Loads partitions when they are asked for, and releases them when there are too many.

    One that is in use is never released. Processes do not know of each other's: what one releases, another may still
    take for loaded, and is told so by the server (:meth:`lost`).
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._lock = Lock()
        self._held: OrderedDict[tuple[str, str], _Held] = OrderedDict()  # longest unused first

    @contextmanager
    def use(self, client: Any, collection: str, partition: str, *, whole: bool) -> Iterator[None]:
        """A partition that stays loaded inside the ``with``.

        Args:
            whole: the server loads collections as a whole only (milvus-lite), so nothing is ever released.
        """
        key = (collection, "" if whole else partition)
        with self._lock:
            held = self._held.setdefault(key, _Held())
            held.users += 1
            self._held.move_to_end(key)
        try:
            with held.loading:
                if not held.loaded:
                    if whole:
                        client.load_collection(collection)
                    else:
                        client.load_partitions(collection, [partition])
                    held.loaded = True
            yield
        finally:
            with self._lock:
                held.users -= 1
                surplus = [] if whole else self._surplus()
            for name, part in surplus:
                client.release_partitions(name, [part])

    def lost(self, collection: str, partition: str, *, whole: bool) -> None:
        """The server says that it is not loaded after all."""
        with self._lock:
            held = self._held.get((collection, "" if whole else partition))
            if held is not None:
                held.loaded = False

    def forget(self, client: Any, collection: str, partition: str, *, whole: bool) -> None:
        """Release a partition that is about to be dropped."""
        if not whole:
            client.release_partitions(collection, [partition])
            with self._lock:
                self._held.pop((collection, partition), None)

    def clear(self) -> None:
        """Take nothing for loaded: the server may have been started anew."""
        with self._lock:
            for held in self._held.values():
                held.loaded = False

    def _surplus(self) -> list[tuple[str, str]]:
        """Takes out those that must go, and names them."""
        gone: list[tuple[str, str]] = []
        if self._most is not None:
            for key in list(self._held):
                if len(self._held) <= self._most:
                    break
                if not self._held[key].users:
                    del self._held[key]
                    gone.append(key)
        return gone
