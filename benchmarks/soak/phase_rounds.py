"""Rounds of a phase of load, and the memory of the process that serves them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from benchmarks.search.server_load import process_memory, processor_seconds
from benchmarks.soak.load_generator import RequestRecord
from benchmarks.soak.load_statistics import fit_memory_trend, latency_p99, summarize_phase
from benchmarks.soak.verdicts import PhaseOutcome

__all__ = ["PhaseRounds", "memory_samples"]

_SAMPLE_SECONDS = 1.0


class PhaseRounds:
    """Rounds of a phase.

    Args:
        process: Process ID of the API.
    """

    def __init__(self, process: int) -> None:
        self._process = process
        self._capacities: list[float] = []
        self._rounds: list[list[RequestRecord]] = []
        self._taken = self._served = self._sending = 0.0

    @contextmanager
    def round(self, capacity: float) -> Iterator[list[RequestRecord]]:
        """A round of this capacity, to whose list the caller adds the requests."""
        records: list[RequestRecord] = []
        taken, served, sending = time.monotonic(), processor_seconds(self._process), time.process_time()
        yield records
        self._taken += time.monotonic() - taken
        self._served += processor_seconds(self._process) - served
        self._sending += time.process_time() - sending
        self._capacities.append(capacity)
        self._rounds.append(records)

    def outcome(self, memory: Sequence[tuple[float, int]]) -> PhaseOutcome:
        """Outcome of all rounds; the memory is given by samples of time and bytes."""
        records = [record for records in self._rounds for record in records]
        return PhaseOutcome(
            summarize_phase(records, len(records) / self._taken),
            fit_memory_trend(memory),
            [round(capacity, 1) for capacity in self._capacities],
            list(map(latency_p99, self._rounds)),
            round(self._served / self._taken, 2),
            round(self._sending / self._taken, 2),
        )


@contextmanager
def memory_samples(api: int) -> Iterator[list[tuple[float, int]]]:
    """Samples of time and private bytes of the API process, which grow during the ``with`` statement."""
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
