"""Load ``cinestrata up`` for a long time: ``python -m benchmarks.soak.run_soak --duration 10m``.

After a warm-up, which fills caches, the phases are:

1. *steady* (40 % of the duration): 80 % of capacity. No response is an error or a refusal, and the API's memory does
   not grow.
2. *learning* (40 %): 80 % of capacity, in each round first alone and then while a task is learned. The ratio of their
   99th percentile latencies is at most two, as the median over rounds.
3. *overload* (20 %): 200 % of capacity. Responses are answers or 429 with ``Retry-After``. A search starts within two
   seconds (``CINESTRATA_MAX_WAIT_SECONDS``), and 99 % of the answers take at most three. Recovery is the time after the
   overload until a search is answered as fast as 99 % in the steady phase.

The speed of a shared machine changes from second to second. So a phase has rounds of at most a minute, and each round
first measures capacity, the joint one of the service and the load generator beside it: clients that send their next
request when the previous one is answered, while no task is learned. The capacity that the machine sustains is the
lowest measurement so far; an overload is relative to the last one. A search takes longer in a larger library, so
latencies beside a task are compared with those at the same rate just before the task was added.

The command prints a verdict on each requirement, writes JSON, and exits with status 1 if a requirement is not met.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
import numpy as np

from benchmarks.ingest.clip_files import write_tiny_clips
from benchmarks.ingest.embedded_service import (
    create,
    embedded_service,
    process_memory,
    service_processes,
    wait_ready,
)
from benchmarks.soak.load_generator import LoadGenerator, RequestRecord

WAIT_SECONDS = 2.0  # maximum time until a search starts
_MAX_OVERLOAD_MS = 1000 * (WAIT_SECONDS + 1)  # with a second for an admitted search
_MAX_LEARNING_RATIO = 2.0  # of the latency while tasks are learned
_MAX_RECOVERY_SECONDS = 5.0
_MAX_CORRELATION, _TINY = 0.99, 1e-12


class Verdict(NamedTuple):
    """A requirement, the measured value, and whether it is met."""

    requirement: str
    measured: str
    is_met: bool


@dataclass(frozen=True)
class PhaseOutcome:
    """What a load phase measured; latencies are those of the answers in milliseconds."""

    requests: int
    answered: int
    refused: int  # 429 with Retry-After
    errors: dict[str, int]  # other outcomes by status; 0: a failed connection
    p50: float | None
    p99: float | None
    p99s: list[float | None]  # of the rounds
    capacities: list[float]  # answers per second that the rates of the rounds follow
    memory: MemoryTrend

    @property
    def is_answered(self) -> bool:
        """Whether every request was answered."""
        return not (self.errors or self.refused)


@dataclass(frozen=True)
class MemoryTrend:
    """Trend of a process's private memory: ends of the fitted line in MiB, slope in MiB per minute, and its error."""

    first_mib: float
    last_mib: float
    slope: float
    error: float

    @property
    def is_flat(self) -> bool:
        """Whether the growth is within two standard errors of zero, or below one percent of the memory per hour."""
        return self.slope <= max(2 * self.error, 0.01 * self.first_mib / 60)


def judge(
    steady: PhaseOutcome, alone: PhaseOutcome, learning: PhaseOutcome, overload: PhaseOutcome, recovery: float
) -> list[Verdict]:
    """Judge all requirements, given the phases and the seconds from the overload until a search is fast again."""
    pairs = zip(learning.p99s, alone.p99s, strict=True)
    ratios = [beside / before if beside and before else math.inf for beside, before in pairs]
    ratio, slow, trend = statistics.median(ratios), overload.p99 or math.inf, steady.memory

    def count(phase: PhaseOutcome) -> str:
        return f"{sum(phase.errors.values())} errors, {phase.refused} refusals of {phase.requests}"

    loads = {"steady": steady, "alone": alone, "learning": learning}
    rows = [
        (f"{name}: neither errors nor refusals at 80 % of the capacity", count(phase), phase.is_answered)
        for name, phase in loads.items()
    ]
    rows += [
        ("steady: memory is flat", f"{trend.slope:.2f} ± {trend.error:.2f} MiB per minute", trend.is_flat),
        (
            f"learning: p99 at most {_MAX_LEARNING_RATIO:g} times that just before (median of the rounds)",
            f"{ratio:.2f} times ({min(ratios):.2f} to {max(ratios):.2f} in {len(ratios)} rounds)",
            ratio <= _MAX_LEARNING_RATIO,
        ),
        ("overload: only answers, and 429 with Retry-After", count(overload), not overload.errors),
        (
            f"overload: p99 of answers at most {_MAX_OVERLOAD_MS:.0f} ms",
            f"{slow:.0f} ms",
            slow <= _MAX_OVERLOAD_MS,
        ),
        (
            f"recovery within {_MAX_RECOVERY_SECONDS:g} s",
            f"{recovery:g} s",
            recovery <= _MAX_RECOVERY_SECONDS,
        ),
    ]
    return [Verdict(*row) for row in rows]


def summarize_phase(
    rounds: Sequence[Sequence[RequestRecord]],
    capacities: Sequence[float],
    memory: Sequence[tuple[float, int]],
) -> PhaseOutcome:
    """Compute the figures of a phase from the requests of its rounds and its samples of memory."""
    records = list(chain.from_iterable(rounds))
    outcomes = Counter(
        "429 without Retry-After"
        if record.status == 429 and not record.has_retry_after
        else str(record.status)
        for record in records
    )
    answered, refused = outcomes.pop("200", 0), outcomes.pop("429", 0)
    return PhaseOutcome(
        requests=len(records),
        answered=answered,
        refused=refused,
        errors=dict(outcomes),
        p50=_percentile(records, 50),
        p99=_percentile(records, 99),
        p99s=[_percentile(one, 99) for one in rounds],
        capacities=[round(capacity, 1) for capacity in capacities],
        memory=fit_memory_trend(memory),
    )


def fit_memory_trend(samples: Sequence[tuple[float, int]]) -> MemoryTrend:
    """Fit a least-squares line through samples of time in seconds and memory in bytes.

    A process's memory changes in steps, so successive residuals are alike. The standard error counts *n* samples, whose
    successive residuals have the correlation *r*, as *n(1 - r)/(1 + r)* independent ones (a first-order
    autoregression).
    """
    times, values = np.array(samples, np.float64).reshape(-1, 2).T
    if len(times) < 3 or np.ptp(times) == 0:
        raise ValueError(f"a trend needs 3 samples at different times; there are {len(times)}")
    minutes, memory = times / 60, values / 1024**2
    slope, intercept = np.polyfit(minutes, memory, 1)
    residuals = memory - (slope * minutes + intercept)
    deviation = ((minutes - minutes.mean()) ** 2).sum()
    correlation = (residuals[1:] * residuals[:-1]).sum() / max((residuals**2).sum(), _TINY)
    correlation = np.clip(correlation, 0.0, _MAX_CORRELATION)
    variance = (residuals**2).sum() / (len(times) - 2) / deviation
    error = np.sqrt(variance * (1 + correlation) / (1 - correlation))
    first, last = slope * minutes[[0, -1]] + intercept
    return MemoryTrend(round(float(first), 1), round(float(last), 1), float(slope), float(error))


def _percentile(records: Sequence[RequestRecord], share: float) -> float | None:
    """Compute a percentile of the answers' latency in milliseconds."""
    latencies = [1000 * record.seconds for record in records if record.status == 200]
    return round(float(np.percentile(latencies, share)), 1) if latencies else None


_UNITS = {"s": 1, "m": 60, "h": 3600}
_ROUND_SECONDS = 60.0
_MAX_TASK_SECONDS = 600.0
_STEADY, _OVERLOAD = 0.8, 2.0  # shares of the capacity
_CLIENTS = 16
_WARM_UP_CLIENTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024)  # up to more than a service admits
_CACHED_TEXTS = 131_072  # more than the query vector cache holds
_STEP_TEXTS = 32  # maximum texts in a step of the service
_DOMAINS, _DOMAIN_VIDEOS = 6, 40  # at the start
_WORDS = ["red", "small", "night", "street", "boat", "lamp", "tree", "cell", "crowd", "bridge"]
_SETTINGS = {
    "CINESTRATA_BACKBONE": "tiny",
    "CINESTRATA_FRAMES": "4",
    "CINESTRATA_MAX_WAIT_SECONDS": str(WAIT_SECONDS),
}
_TRAINING = {"epochs": 20, "batch_size": 8}

_dice = random.Random(1)


def parse_duration(text: str) -> float:
    """Parse a duration such as ``90s``, ``10m`` or ``2h`` into seconds."""
    match = re.fullmatch(r"(\d+)([smh])", text)
    if match is None or int(match[1]) * _UNITS[match[2]] < 30:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration of at least 30s, such as 90s, 10m or 2h")
    return float(int(match[1]) * _UNITS[match[2]])


def new_text(length: int | None = None) -> str:
    """Create a text that was not searched before, of 2 to 14 words."""
    words = _dice.choices(_WORDS, k=(length or _dice.randint(2, 14)) - 1)
    return " ".join([*words, str(_dice.randrange(10**6))])


def request_mix() -> Iterator[str]:
    """Iterate over requests of users: 17 of 20 are searches, half of them for one of the last hundred texts."""
    recent = deque([new_text()], maxlen=100)
    while True:
        draw = _dice.randrange(20)
        video = f"/videos/v{_dice.randrange(_DOMAINS)}-{_dice.randrange(_DOMAIN_VIDEOS)}"
        if draw >= 17:
            yield {17: f"{video}/similar", 18: video, 19: "/tasks"}[draw]
        elif _dice.random() < 0.5:
            recent.append(new_text())
            yield f"/search?q={quote(recent[-1])}"
        else:
            yield f"/search?q={quote(_dice.choice(recent))}"


class Soak:
    """Loads a running service."""

    def __init__(self, api: httpx.Client, media: Path) -> None:
        self.learned = 0
        self.ended = 0.0
        self._api, self._media = api, media
        self._load = LoadGenerator(str(api.base_url), request_mix())
        self._process = service_processes()["API"]
        self._measured: list[float] = []  # capacities

    def learn(self) -> None:
        """Post a domain and wait until it is learned; raise RuntimeError if its task fails."""
        number, self.learned = self.learned, self.learned + 1
        paths = write_tiny_clips(self._media, self.learned * _DOMAIN_VIDEOS)[-_DOMAIN_VIDEOS:]
        videos = [
            {"id": f"v{number}-{i}", "uri": str(path), "captions": [f"a clip {i} of domain {number}"]}
            for i, path in enumerate(paths)
        ]
        task = {"name": f"domain {number}", "method": "strata", "settings": _TRAINING, "videos": videos}
        wait_ready(self._api, create(self._api, "/tasks", task))

    def warm_up(self) -> None:
        """Fill caches, and make the API allocate memory for batches and queues of all sizes."""
        batches = [[new_text() for _ in range(256)] for _ in range(_CACHED_TEXTS // 256)]
        # The text tower multiplies as many rows as a batch has tokens, and keeps code for each number of rows.
        batches += [
            [new_text(length) for _ in range(count)]
            for count in range(1, _STEP_TEXTS + 1)
            for length in range(2, 15, 2)
        ]
        for texts in batches:
            self._api.post("/search", json={"queries": [{"q": text} for text in texts]}).raise_for_status()
        for clients in _WARM_UP_CLIENTS:
            self._load.saturate(clients, 2)
        for _ in range(3):
            self._measure_capacity(2)
        for share, seconds in ((_OVERLOAD, 15), (_STEADY, 60)):
            self._send(share * self._capacity(share), seconds)

    def measure_phase(self, share: float, seconds: float) -> PhaseOutcome:
        """Measure a phase at a share of the capacity."""
        count = math.ceil(seconds / _ROUND_SECONDS)
        rounds, capacities = [], []
        with self._memory_samples() as samples:
            for _ in range(count):
                self._measure_capacity(0.1 * seconds / count)
                capacities.append(self._capacity(share))
                rounds.append(self._send(share * capacities[-1], 0.9 * seconds / count))
        return summarize_phase(rounds, capacities, samples[len(samples) // 10 :])  # it settles at first

    def measure_learning(self, seconds: float) -> tuple[PhaseOutcome, PhaseOutcome]:
        """Measure the load alone and beside a task that is learned, at the same rates, in rounds that begin in time."""
        alone: list[list[RequestRecord]] = []
        learning: list[list[RequestRecord]] = []
        capacities: list[float] = []
        end = time.monotonic() + seconds
        with self._memory_samples() as samples, ThreadPoolExecutor(1) as learner:
            while time.monotonic() < end:
                self._measure_capacity(0.1 * min(seconds, _ROUND_SECONDS))
                capacities.append(self._capacity(_STEADY))
                rate = _STEADY * capacities[-1]
                alone.append(self._send(rate, 0.4 * min(seconds, _ROUND_SECONDS)))
                learned = learner.submit(self.learn)
                learning.append(self._load.send_at_rate(rate, partial(_is_over, learned)))
                learned.result()
        return summarize_phase(alone, capacities, samples), summarize_phase(learning, capacities, samples)

    def measure_recovery(self, p99: float) -> float:
        """Measure the seconds from the last request until a search takes at most ``p99`` milliseconds, or 120."""
        while time.monotonic() - self.ended < 120:
            sent = time.monotonic()
            with suppress(httpx.HTTPError):
                response = self._api.get("/search", params={"q": new_text()})
                if response.status_code == 200 and 1000 * (time.monotonic() - sent) <= p99:
                    break
        return round(time.monotonic() - self.ended, 2)

    def _measure_capacity(self, seconds: float) -> None:
        records = self._load.saturate(_CLIENTS, seconds)
        self._measured.append(sum(record.status == 200 for record in records) / seconds)

    def _capacity(self, share: float) -> float:
        """Choose the capacity that a share refers to: below one, what the machine sustains."""
        return min(self._measured) if share <= 1 else self._measured[-1]

    def _send(self, rate: float, seconds: float) -> list[RequestRecord]:
        records = self._load.send_at_rate(rate, lambda elapsed: elapsed >= seconds)
        self.ended = max(record.due for record in records)
        return records

    @contextmanager
    def _memory_samples(self) -> Iterator[list[tuple[float, int]]]:
        """Sample the API's private bytes once per second, into the yielded list."""
        samples: list[tuple[float, int]] = []
        stopped = threading.Event()

        def sample() -> None:
            while not stopped.wait(1):
                samples.append((time.monotonic(), process_memory(self._process).own))

        thread = threading.Thread(target=sample, name="memory")
        thread.start()
        try:
            yield samples
        finally:
            stopped.set()
            thread.join()


def _is_over(learned: Future[None], elapsed: float) -> bool:
    return learned.done() or elapsed > _MAX_TASK_SECONDS


def measure(data: Path, seconds: float) -> dict[str, Any]:
    """Measure all phases on a new library in ``data``, and return the report."""
    media = data / "media"
    media.mkdir(parents=True)
    with embedded_service(data, _SETTINGS | {"CINESTRATA_MEDIA_ROOT": str(media)}) as api:
        soak = Soak(api, media)
        for _ in range(_DOMAINS):
            soak.learn()
        soak.warm_up()
        steady = soak.measure_phase(_STEADY, 0.4 * seconds)
        alone, learning = soak.measure_learning(0.4 * seconds)
        overload = soak.measure_phase(_OVERLOAD, 0.2 * seconds)
        recovery = soak.measure_recovery(steady.p99 or 0.0)
    phases = {"steady": steady, "alone": alone, "learning": learning, "overload": overload}
    verdicts = judge(steady, alone, learning, overload, recovery)
    return {
        "seconds": seconds,
        "cores": len(os.sched_getaffinity(0)),
        "learned_tasks": len(learning.p99s),
        **{name: asdict(phase) for name, phase in phases.items()},
        "columns": ["requirement", "measured", "verdict"],
        "rows": [[text, measured, "met" if is_met else "not met"] for text, measured, is_met in verdicts],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.soak.run_soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--duration", type=parse_duration, default=600.0, help="such as 90s, 10m or 2h (10m)")
    parser.add_argument("--out", type=Path, default=Path("soak-report.json"), help="report (JSON)")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the processes, too
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        report = measure(Path(folder) / "data", options.duration)
    options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(*(": ".join(row) for row in report["rows"]), sep="\n")
    if any(verdict != "met" for *_, verdict in report["rows"]):
        sys.exit(1)


if __name__ == "__main__":
    main()
