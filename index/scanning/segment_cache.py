"""Which folders are mapped: as many as a budget of bytes allows, and those that were searched longest ago go first."""

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
class _Held:
    """A segment, or the wish for it. ``opening`` lets one thread open it and the others wait for that one."""

    opening: Lock = field(default_factory=Lock)
    users: int = 0
    segment: Segment | None = None


class SegmentCache:
    """Opens segments when they are asked for, and closes them when room is needed.

    One that is in use is never closed, so the budget is exceeded for as long as more than it holds is searched at
    the same moment. Files are known by their content, so it does not matter which generation asks for them.
    """

    def __init__(self, budget: int | None = None, *, gpu: bool = False) -> None:
        self._budget = budget
        self._gpu = gpu
        self._lock = Lock()
        self._held: OrderedDict[str, _Held] = OrderedDict()  # longest unused first
        self._bytes = 0

    @property
    def bytes(self) -> int:
        """Of the files that are open."""
        return self._bytes

    @contextmanager
    def use(self, folder: Path, entry: SegmentEntry) -> Iterator[Segment]:
        """A segment that stays open inside the ``with``.

        Raises:
            ShardMissing, ShardCorrupt: it had to be opened, and cannot be; see :meth:`Segment.open`. A file that was
                cut off or replaced since it was mapped is opened anew: the kernel ends a process that reads a mapped
                file beyond its end.
        """
        with self._lock:
            held = self._held.setdefault(entry.id, _Held())
            held.users += 1
            self._held.move_to_end(entry.id)
        try:
            with held.opening:
                if held.segment is not None and held.segment.changed():
                    held.segment = None
                    with self._lock:
                        self._bytes -= entry.bytes
                if held.segment is None:
                    held.segment = Segment.open(folder, entry, verify=False, gpu=self._gpu)
                    with self._lock:
                        self._bytes += entry.bytes
                segment = held.segment
            yield segment
        finally:
            with self._lock:
                held.users -= 1
                if held.segment is None and not held.users:
                    del self._held[entry.id]
                self._make_room()

    def keep(self, identifiers: set[str]) -> None:
        """Close all others that nobody uses, such as those that a new generation does without."""
        with self._lock:
            for identifier in [key for key in self._held if key not in identifiers]:
                self._close(identifier)

    def _make_room(self) -> None:
        if self._budget is None:
            return
        for identifier in list(self._held) if self._bytes > self._budget else ():
            if self._bytes <= self._budget:
                break
            self._close(identifier)

    def _close(self, identifier: str) -> None:
        held = self._held[identifier]
        if held.segment is not None and not held.users:
            self._bytes -= held.segment.entry.bytes
            del self._held[identifier]
