"""Load of ``cinestrata up`` over a long time: ``python -m benchmarks.soak.run_soak --duration 10m``.

The phases, with their share of the duration:

1. *capacity* (10 %): clients that send their next request when the previous one is answered measure the capacity of a
   mix of searches and other reads. The service is then restarted with a queue of searches that it answers in two
   seconds (``CINESTRATA_LIMITS__MAX_WAITING``).
2. *steady* (45 %): 80 % of the capacity. No response is an error, and the memory of the API does not grow.
3. *learning* (25 %): the same rate while tasks are learned one after the other.
4. *overload* (20 %): 200 % of the capacity. Responses are answers or 429 with ``Retry-After``. After it, the time until
   a search is answered as fast as in the steady phase is the recovery.

The load generator and the service share the cores of the machine, so the capacity is that of both together. The command
prints a table, writes JSON, and exits with status 1 if a requirement is not met.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console

from benchmarks.ingest.clip_files import write_tiny_clips
from benchmarks.ingest.embedded_service import FINAL_STATES, create, embedded_service
from benchmarks.ingest.process_memory import descendants
from benchmarks.reporting.markdown_tables import markdown_table
from benchmarks.search.server_load import process_memory
from benchmarks.soak.load_generator import LoadGenerator, RequestMix, RequestRecord
from benchmarks.soak.load_statistics import MemoryTrend, PhaseStatistics, fit_memory_trend, summarize_phase

__all__ = ["main", "parse_duration"]

_UNITS = {"s": 1, "m": 60, "h": 3600}
_SHARES = {"capacity": 0.1, "steady": 0.45, "learning": 0.25, "overload": 0.2}
_STEADY, _OVERLOAD = 0.8, 2.0
_QUEUE_SECONDS = 2.0
_WARM_UP = 0.2  # share of the steady phase in which caches fill
_RECOVERY_SECONDS = 5.0
_GIVE_UP_SECONDS = 120.0
_CLIENTS = 16
_DOMAIN_VIDEOS = 40
_SAMPLE_SECONDS = 1.0
_SETTINGS = {"CINESTRATA_BACKBONE": "tiny", "CINESTRATA_FRAMES": "4"}
_TRAINING = {"epochs": 20, "batch_size": 8}


def parse_duration(text: str) -> float:
    """Seconds of a duration such as ``90s``, ``10m`` or ``2h``.

    Raises:
        argparse.ArgumentTypeError: The text is no duration, or shorter than 30 seconds.
    """
    found = re.fullmatch(r"(\d+)([smh])", text)
    if found is None or int(found[1]) * _UNITS[found[2]] < 30:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration of at least 30s, such as 90s, 10m or 2h")
    return float(int(found[1]) * _UNITS[found[2]])


class _Domains:
    """Domains of tiny clips, posted one after the other."""

    def __init__(self, media: Path) -> None:
        self._media, self._count = media, 0

    def post(self, api: httpx.Client) -> str:
        """Post a domain; returns the id of its task."""
        number, self._count = self._count, self._count + 1
        paths = write_tiny_clips(self._media, (number + 1) * _DOMAIN_VIDEOS)[-_DOMAIN_VIDEOS:]
        videos = [
            {"id": f"v{number}-{i}", "uri": str(path), "captions": [f"a clip {i} of domain {number}"]}
            for i, path in enumerate(paths)
        ]
        return create(
            api,
            "/tasks",
            {"name": f"domain {number}", "method": "strata", "settings": _TRAINING, "videos": videos},
        )

    def learn(self, api: httpx.Client) -> None:
        """Post a domain and wait until it is learned; raises RuntimeError if its task fails."""
        task = self.post(api)
        while (details := api.get(f"/tasks/{task}").json())["state"] not in FINAL_STATES:
            time.sleep(0.5)
        if details["state"] != "ready":
            raise RuntimeError(f"task {details['name']} is {details['state']}: {details['error']}")


def measure(data: Path, seconds: float) -> dict[str, Any]:
    """Measure all phases on a new library in ``data``; returns the report."""
    settings = _SETTINGS | {"CINESTRATA_MEDIA_ROOT": str(data / "media")}
    (data / "media").mkdir(parents=True)
    domains = _Domains(data / "media")
    mix = RequestMix([f"v{domain}-{i}" for domain in range(2) for i in range(_DOMAIN_VIDEOS)], seed=1)
    with embedded_service(data, settings) as api:
        _wait_ready(api)
        for _ in range(2):
            domains.learn(api)
        load = LoadGenerator(str(api.base_url), mix)
        asyncio.run(load.saturate(_CLIENTS, min(5.0, 0.1 * seconds)))  # warms caches and connections up
        duration = _SHARES["capacity"] * seconds
        records = asyncio.run(load.saturate(_CLIENTS, duration))
        capacity = sum(record.status == 200 for record in records) / duration
    queue = max(1, round(capacity * _QUEUE_SECONDS))
    with embedded_service(data, settings | {"CINESTRATA_LIMITS__MAX_WAITING": str(queue)}) as api:
        _wait_ready(api)
        load = LoadGenerator(str(api.base_url), mix)
        asyncio.run(load.saturate(_CLIENTS, min(5.0, 0.1 * seconds)))
        steady, memory = _measure_steady(load, _STEADY * capacity, _SHARES["steady"] * seconds)
        learning, learned = _measure_learning(
            api, load, domains, _STEADY * capacity, _SHARES["learning"] * seconds
        )
        overload = asyncio.run(load.send_at_rate(_OVERLOAD * capacity, _SHARES["overload"] * seconds))
        ended = max(record.due for record in overload)  # the queues of the service are not empty yet
        recovery = _measure_recovery(api, mix, summarize_phase(steady, 0.0).p99 or 0.0, ended)
    phases = {
        "steady": summarize_phase(steady, _STEADY * capacity),
        "learning": summarize_phase(learning, _STEADY * capacity),
        "overload": summarize_phase(overload, _OVERLOAD * capacity),
    }
    report: dict[str, Any] = {
        "seconds": seconds,
        "cores": len(os.sched_getaffinity(0)),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "capacity": round(capacity, 1),
        "max_waiting": queue,
        "learned_tasks": learned,
        "memory": asdict(memory),
        "recovery_seconds": recovery,
        **{name: asdict(phase) for name, phase in phases.items()},
    }
    return {**report, "violations": _find_violations(phases, memory, recovery)}


def _wait_ready(api: httpx.Client) -> None:
    """Wait until the API can answer searches; on a busy machine, the service counts as up before."""
    while api.get("/readyz").status_code != httpx.codes.OK:
        time.sleep(0.2)


def _measure_steady(
    load: LoadGenerator, rate: float, seconds: float
) -> tuple[list[RequestRecord], MemoryTrend]:
    with _memory_samples() as samples:
        started = time.monotonic()
        records = asyncio.run(load.send_at_rate(rate, seconds))
    warm = started + _WARM_UP * seconds
    return records, fit_memory_trend([sample for sample in samples if sample[0] >= warm])


def _measure_learning(
    api: httpx.Client, load: LoadGenerator, domains: _Domains, rate: float, seconds: float
) -> tuple[list[RequestRecord], int]:
    """Records of a load while tasks are learned, and the number of learned tasks."""
    finished, learned, errors = threading.Event(), 0, list[Exception]()

    def learn_tasks() -> None:
        nonlocal learned
        try:
            while not finished.is_set():
                domains.learn(api)
                learned += 1
        except Exception as error:
            errors.append(error)

    learner = threading.Thread(target=learn_tasks, name="learning")
    learner.start()
    try:
        records = asyncio.run(load.send_at_rate(rate, seconds))
    finally:
        finished.set()
        learner.join()
    if errors:
        raise errors[0]
    return records, learned


def _measure_recovery(api: httpx.Client, mix: RequestMix, p99: float, ended: float) -> float:
    """Seconds from the last request of the overload until a search takes at most ``p99`` milliseconds."""
    for route, path in mix:
        if route != "search":
            continue
        sent = time.monotonic()
        if sent - ended > _GIVE_UP_SECONDS:
            break
        with suppress(httpx.HTTPError):
            is_answered = api.get(path).status_code == httpx.codes.OK
            if is_answered and 1000 * (time.monotonic() - sent) <= p99:
                break
    return round(time.monotonic() - ended, 2)


def _find_violations(phases: dict[str, PhaseStatistics], memory: MemoryTrend, recovery: float) -> list[str]:
    """Requirements that are not met."""
    found = [f"{name}: {phase.errors}" for name, phase in phases.items() if phase.errors]
    found += [
        f"{name}: {phases[name].refused} requests were refused at 80 % of the capacity"
        for name in ("steady", "learning")
        if phases[name].refused
    ]
    if not memory.is_flat:
        found.append(f"the memory grows by {memory.slope:.2f} ± {memory.error:.2f} MiB per minute")
    if recovery > _RECOVERY_SECONDS:
        found.append(f"the recovery took {recovery:g} s")
    return found


@contextmanager
def _memory_samples() -> Iterator[list[tuple[float, int]]]:
    """Samples of time and private bytes of the API process, which grow during the ``with`` statement."""
    api = next(pid for pid, role in descendants() if role == "API")
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


def _table(report: dict[str, Any]) -> str:
    rows = []
    for name in ("steady", "learning", "overload"):
        phase = report[name]
        rows.append(
            [
                name,
                f"{phase['rate']:.1f}",
                *(str(phase[column]) for column in ("requests", "answered", "refused")),
                str(sum(phase["errors"].values())),
                *(f"{phase[column] or float('nan'):.0f}" for column in ("p50", "p99", "worst")),
            ]
        )
    header = ["phase", "requests/s", "requests", "answered", "429", "errors", "p50 ms", "p99 ms", "worst ms"]
    return markdown_table(header, rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak.run_soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--duration", type=parse_duration, default=600.0, help="such as 90s, 10m or 2h (10m)")
    parser.add_argument("--out", type=Path, default=Path("soak-report.json"), help="report (JSON)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        report = measure(Path(folder) / "data", options.duration)
    options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    console, memory = Console(), report["memory"]
    lines = [
        f"Capacity: {report['capacity']:g} requests/s; queue: {report['max_waiting']} searches.",
        _table(report),
        f"Memory of the API: {memory['first_mib']:g} to {memory['last_mib']:g} MiB, {memory['slope']:.2f} ± "
        f"{memory['error']:.2f} MiB per minute.",
        f"Tasks learned under load: {report['learned_tasks']}. Recovery: {report['recovery_seconds']:g} s.",
        *(f"Violation: {violation}" for violation in report["violations"]),
    ]
    console.print("\n".join(lines), soft_wrap=True, markup=False, highlight=False)
    if report["violations"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
