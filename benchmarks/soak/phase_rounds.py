"""The rounds of a load phase, and the memory of the process that serves them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.search.server_load import process_memory, processor_seconds
from benchmarks.soak.load_generator import RequestRecord
from benchmarks.soak.verdicts import PhaseOutcome, RoundFigures, fit_memory_trend, summarize_phase

_SAMPLE_SECONDS = 1.0
_TICKS = os.sysconf("SC_CLK_TCK")


class PhaseRounds:
    """Collects the rounds of a phase."""

    def __init__(self, process: int) -> None:
        self._process = process
        self._records: list[RequestRecord] = []
        self._rounds: list[RoundFigures] = []
        self._taken = self._served = self._sending = 0.0

    @contextmanager
    def round(self, capacity: float) -> Iterator[list[RequestRecord]]:
        """Run a round at this capacity; the caller adds its requests to the yielded list."""
        records: list[RequestRecord] = []
        taken, served, sending = time.monotonic(), processor_seconds(self._process), time.process_time()
        before = _core_seconds()
        yield records
        seconds = time.monotonic() - taken
        self._taken += seconds
        self._served += processor_seconds(self._process) - served
        self._sending += time.process_time() - sending
        passed, stolen = (now - then for now, then in zip(_core_seconds(), before, strict=True))
        figures = summarize_phase(records, len(records) / seconds)
        self._records += records
        self._rounds.append(
            RoundFigures(
                round(capacity, 1),
                figures.requests,
                figures.refused,
                figures.p99,
                round(stolen / passed, 3) if passed else 0.0,
            )
        )

    def outcome(self, memory: Sequence[tuple[float, int]]) -> PhaseOutcome:
        """Summarize all rounds; the memory is given as samples of time and bytes."""
        return PhaseOutcome(
            summarize_phase(self._records, len(self._records) / self._taken),
            fit_memory_trend(memory),
            self._rounds,
            round(self._served / self._taken, 2),
            round(self._sending / self._taken, 2),
        )


@contextmanager
def memory_samples(api: int) -> Iterator[list[tuple[float, int]]]:
    """Sample the API process's private bytes over time; the yielded list grows during the ``with`` block."""
    samples: list[tuple[float, int]] = []
    stopped = threading.Event()

    def sample() -> None:
        while not stopped.wait(_SAMPLE_SECONDS):
            samples.append((time.monotonic(), process_memory(api).own))

    thread = threading.Thread(target=sample, name="memory")
    thread.start()
    try:
        yield samples
    finally:
        stopped.set()
        thread.join()


def _core_seconds() -> tuple[float, float]:
    """Read the seconds of all cores since the machine started, and those that the hypervisor gave to other machines."""
    fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]
    ticks = [int(field) for field in fields]
    return sum(ticks) / _TICKS, ticks[7] / _TICKS
