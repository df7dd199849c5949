"""Record the memory of a service's processes over time, and its growth per ingested video."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.search.server_load import process_memory

_INTERVAL_SECONDS = 1.0
_MIN_SAMPLES = 5
_MIB = 1024**2
# Role of a process, by a word on its command line.
_ROLES = {
    "serve": "API",
    "cpu": "probing worker",
    "gpu": "learning worker",
    "media.decoder_process": "decoder",
    "redis-server": "broker",
}


@dataclass
class MemoryRecord:
    """The memory of one role's processes.

    Attributes:
        samples: The task's stage, number of finished videos, and private bytes of the largest process.
    """

    samples: list[tuple[str, int, int]] = field(default_factory=list)

    @property
    def peak_mib(self) -> float:
        """Largest private memory of any process, in MiB."""
        return max(own for _, _, own in self.samples) / _MIB

    def slope(self, stage: str) -> float | None:
        """Compute the growth in bytes per video in the second half of a stage; None with too few samples.

        The first half is left out: a process allocates its buffers then.
        """
        points = np.array([(done, own) for name, done, own in self.samples if name == stage], np.float64)
        points = points[points[:, 0] >= points[:, 0].max() / 2] if len(points) else points
        if len(points) < _MIN_SAMPLES or np.ptp(points[:, 0]) == 0:
            return None
        return float(np.polyfit(points[:, 0], points[:, 1], 1)[0])


class _Sampler(threading.Thread):
    """Samples the memory of all descendants of this process once per second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.stage, self.done = "", 0
        self.records: dict[str, MemoryRecord] = {}
        self.stopped = threading.Event()

    def report(self, earlier: int, stage: str, done: int) -> None:
        """Set the task's stage, the previous tasks' videos and its own finished videos for the next samples."""
        self.stage, self.done = stage, earlier + done

    def run(self) -> None:
        while not self.stopped.wait(_INTERVAL_SECONDS):
            largest: dict[str, int] = {}
            for pid, role in descendants():
                with suppress(OSError, KeyError, IndexError):  # the process has ended
                    largest[role] = max(largest.get(role, 0), process_memory(pid).own)
            for role, own in largest.items():
                self.records.setdefault(role, MemoryRecord()).samples.append((self.stage, self.done, own))


@contextmanager
def recorded_memory() -> Iterator[_Sampler]:
    """Sample the memory of this process's descendants during the ``with`` block.

    The yielded thread has a record per role in ``records``; its ``report`` assigns samples to stages.
    """
    sampler = _Sampler()
    sampler.start()
    try:
        yield sampler
    finally:
        sampler.stopped.set()
        sampler.join()


def descendants() -> Iterator[tuple[int, str]]:
    """Find the service processes below this one, with process ID and role."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    for pid in parents:
        ancestor = pid
        while ancestor in parents and ancestor != os.getpid():
            ancestor = parents[ancestor]
        role = _role(pid) if ancestor == os.getpid() and pid != ancestor else None
        if role:
            yield pid, role


def _role(pid: int) -> str | None:
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        names = {word.rpartition("/")[2] for word in words[0].split(" ")} | set(words)
        return next((role for word, role in _ROLES.items() if word in names), None)
    return None
