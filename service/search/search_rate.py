"""Measure how many searches a process ran recently, and how long they took."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from threading import Event, Lock, Thread

from cinestrata_schemas.operations import SearchLoad
from service.library.prometheus_metrics import SEARCH_SECONDS

_WINDOW_SECONDS, _SAMPLE_SECONDS = 300.0, 5.0  # of search rates


class SearchRate:
    """How many searches this process ran in five minutes and how long they took. Thread-safe.

    Searches pay nothing for it: a background thread samples their Prometheus histogram every few seconds.
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[float, Mapping[float, float]]] = deque()
        self._lock = Lock()
        self._is_stopped = Event()
        self.sample()

    def start(self) -> None:
        """Sample in a background thread until :meth:`close`."""
        self._is_stopped.clear()
        Thread(target=self._run, name="search-rate", daemon=True).start()

    def close(self) -> None:
        """Stop the thread."""
        self._is_stopped.set()

    def _run(self) -> None:
        while not self._is_stopped.wait(_SAMPLE_SECONDS):
            self.sample()

    def sample(self) -> None:
        """Add a sample and drop those older than the window."""
        at = time.monotonic()
        with self._lock:
            self._samples.append((at, _cumulative_counts()))
            while at - self._samples[0][0] > _WINDOW_SECONDS:
                self._samples.popleft()

    def read(self) -> SearchLoad:
        """Compute the load since the oldest sample."""
        with self._lock:
            started, before = self._samples[0]
        seconds = max(time.monotonic() - started, 1e-3)
        counts = {bound: count - before.get(bound, 0.0) for bound, count in _cumulative_counts().items()}
        searches = int(max(counts.values(), default=0))
        return SearchLoad(
            seconds=round(seconds, 1),
            searches=searches,
            per_minute=round(60 * searches / seconds, 1),
            p95_seconds=_percentile(counts, 0.95) if searches else None,
        )


def _cumulative_counts() -> dict[float, float]:
    """Read the cumulative number of searches by each bucket's upper bound in seconds."""
    return {
        float(sample.labels["le"]): sample.value
        for metric in SEARCH_SECONDS.collect()
        for sample in metric.samples
        if sample.name.endswith("_bucket") and sample.labels["stage"] == "total"
    }


def _percentile(counts: Mapping[float, float], share: float) -> float:
    """Interpolate a percentile linearly within its bucket, like Prometheus's ``histogram_quantile``."""
    wanted = share * max(counts.values())
    lower, below = 0.0, 0.0
    for bound, count in sorted(counts.items()):
        if count >= wanted:
            if bound == float("inf"):
                return lower
            return lower + (bound - lower) * (wanted - below) / (count - below or 1)
        lower, below = bound, count
    return lower
