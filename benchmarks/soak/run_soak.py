"""Load ``cinestrata up`` for a long time: ``python -m benchmarks.soak.run_soak --duration 10m``.

The phases, with their share of the duration:

1. *warm-up* (not part of the duration): batches of new texts fill the cache of query vectors, growing numbers of
clients
   produce batches of all sizes, an overload fills the queue, for which the process allocates memory once, and a minute
   at 80 % of capacity fills the page caches of the connections to the catalog.
2. *steady* (40 %): 80 % of capacity. No response is an error or a refusal, and the API's memory does not grow.
3. *learning* (40 %): 80 % of capacity, in each round first alone and then while a task is learned. The ratio of their
99th
   percentile latencies is at most two, as the median over rounds.
4. *overload* (20 %): 200 % of capacity. Responses are answers or 429 with ``Retry-After``. A search starts within two
   seconds (``CINESTRATA_MAX_WAIT_SECONDS``), and 99 % of the answers take at most three. Recovery is the time after the
   overload until a search is answered as fast as 99 % in the steady phase.

The speed of a shared machine changes from second to second. So a phase has rounds of at most a minute, and each round
first measures capacity: clients that send their next request when the previous one is answered, while no task is
learned. These requests are not part of the phase's figures. The capacity that the machine sustains is the lowest
measurement so far, of which the warm-up makes four; an overload is relative to the last one. A search takes longer in a
larger library, so latencies beside a task are compared with those at the same rate just before the task was added.

The load generator and the service share the machine's cores, so the capacity is that of both together; the report has
each one's processor time. The command prints a table and a verdict on each requirement, writes JSON, and exits with
status 1 if a requirement is not met.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import platform
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console

from benchmarks.ingest.clip_files import write_tiny_clips
from benchmarks.ingest.embedded_service import FINAL_STATES, create, embedded_service
from benchmarks.ingest.process_memory import descendants
from benchmarks.reporting.markdown_tables import markdown_table
from benchmarks.soak.load_generator import WORDS_OF_TEXT, LoadGenerator, RequestMix, RequestRecord
from benchmarks.soak.phase_rounds import PhaseRounds, memory_samples
from benchmarks.soak.verdicts import WAIT_SECONDS, PhaseOutcome, judge

_UNITS = {"s": 1, "m": 60, "h": 3600}
_SHARES = {"steady": 0.4, "learning": 0.4, "overload": 0.2}
_ROUND_SECONDS = 60.0
_CAPACITY_SHARE = 0.1  # of a round
_ALONE_SHARE = 0.4  # of a round in which a task is learned
_MAX_TASK_SECONDS = 600.0
_STEADY, _OVERLOAD = 0.8, 2.0
_WARM_UP_CLIENTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128)
_WARM_UP_SECONDS = 2.0  # for each number of clients
_FILLING_SECONDS = 15.0  # of overload
_FIRST_SECONDS = 60.0  # at 80 %, before any figure
_CACHED_TEXTS = 131_072  # more than the query vector cache holds
_BATCH_TEXTS = 256
_STEP_TEXTS = 32  # maximum texts in a step of the service
_SETTLING = 0.1  # share of a phase before its memory is fitted
_GIVE_UP_SECONDS = 120.0
_CLIENTS = 16
_DOMAINS, _DOMAIN_VIDEOS = 6, 40  # at the start
_SETTINGS = {
    "CINESTRATA_BACKBONE": "tiny",
    "CINESTRATA_FRAMES": "4",
    "CINESTRATA_MAX_WAIT_SECONDS": str(WAIT_SECONDS),
}
_TRAINING = {"epochs": 20, "batch_size": 8}


def parse_duration(text: str) -> float:
    """Parse a duration such as ``90s``, ``10m`` or ``2h`` into seconds.

    Raises:
        argparse.ArgumentTypeError: The text is not a duration, or is shorter than 30 seconds.
    """
    found = re.fullmatch(r"(\d+)([smh])", text)
    if found is None or int(found[1]) * _UNITS[found[2]] < 30:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration of at least 30s, such as 90s, 10m or 2h")
    return float(int(found[1]) * _UNITS[found[2]])


class _Domains:
    """Domains of tiny clips, posted one by one."""

    def __init__(self, media: Path) -> None:
        self._media, self._count = media, 0

    def post(self, api: httpx.Client) -> str:
        """Post a domain, and return its task's ID."""
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
        """Post a domain and wait until it is learned; raise RuntimeError if its task fails."""
        task = self.post(api)
        while (details := api.get(f"/tasks/{task}").json())["state"] not in FINAL_STATES:
            time.sleep(0.5)
        if details["state"] != "ready":
            raise RuntimeError(f"task {details['name']} is {details['state']}: {details['error']}")


def measure(data: Path, seconds: float) -> dict[str, Any]:
    """Measure all phases on a new library in ``data``, and return the report."""
    settings = _SETTINGS | {"CINESTRATA_MEDIA_ROOT": str(data / "media")}
    (data / "media").mkdir(parents=True)
    domains = _Domains(data / "media")
    mix = RequestMix([f"v{domain}-{i}" for domain in range(_DOMAINS) for i in range(_DOMAIN_VIDEOS)], seed=1)
    with embedded_service(data, settings) as api:
        _wait_ready(api)
        for _ in range(_DOMAINS):
            domains.learn(api)
        load = _Load(LoadGenerator(str(api.base_url), mix))
        _warm_up(api, load, mix)
        steady = load.measure_phase(_STEADY, _SHARES["steady"] * seconds)
        alone, learning = load.measure_learning(_SHARES["learning"] * seconds, api, domains)
        overload = load.measure_phase(_OVERLOAD, _SHARES["overload"] * seconds)
        recovery = _measure_recovery(api, mix, steady.statistics.p99 or 0.0, load.ended)
    phases = {"steady": steady, "alone": alone, "learning": learning, "overload": overload}
    report: dict[str, Any] = {
        "seconds": seconds,
        "cores": len(os.sched_getaffinity(0)),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "learned_tasks": len(learning.rounds),
        "recovery_seconds": recovery,
        **{name: asdict(phase) for name, phase in phases.items()},
    }
    verdicts = judge(steady, alone, learning, overload, recovery)
    return {
        **report,
        "verdicts": [asdict(verdict) for verdict in verdicts],
        "columns": ["requirement", "measured", "verdict"],
        "rows": [
            [verdict.requirement, verdict.measured, "met" if verdict.is_met else "not met"]
            for verdict in verdicts
        ],
    }


class _Load:
    """Loads a service at rates relative to its capacity.

    Args:
        generator: Sends the requests.

    Attributes:
        ended: When the last request of the last phase was due, on the monotonic clock.
    """

    def __init__(self, generator: LoadGenerator) -> None:
        self._process = next(pid for pid, role in descendants() if role == "API")
        self._generator = generator
        self._measured: list[float] = []
        self.ended = 0.0

    def saturate(self, clients: int, seconds: float) -> float:
        """Measure answers per second to clients that send their next request when the previous one is answered."""
        records = asyncio.run(self._generator.saturate(clients, seconds))
        return sum(record.status == 200 for record in records) / seconds

    def measure_capacity(self, seconds: float) -> None:
        """Measure the capacity that later rates are shares of."""
        self._measured.append(self.saturate(_CLIENTS, seconds))

    def capacity(self, share: float) -> float:
        """Choose the capacity that a share refers to: below one, what the machine sustains."""
        return min(self._measured) if share <= 1 else self._measured[-1]

    def send_share(self, share: float, seconds: float) -> None:
        """Send requests at a share of the measured capacity, without figures."""
        asyncio.run(self._generator.send_at_rate(share * self.capacity(share), seconds))

    def measure_phase(self, share: float, seconds: float) -> PhaseOutcome:
        """Measure a phase.

        Args:
            share: Request rate as a share of the capacity.
            seconds: Duration of all rounds.
        """
        rounds = math.ceil(seconds / _ROUND_SECONDS)
        capacity_seconds = _CAPACITY_SHARE * seconds / rounds
        phase = PhaseRounds(self._process)
        started = time.monotonic()
        with memory_samples(self._process) as samples:
            for _ in range(rounds):
                self.measure_capacity(capacity_seconds)
                capacity = self.capacity(share)
                with phase.round(capacity) as records:
                    records += self._send(share * capacity, seconds / rounds - capacity_seconds)
        return phase.outcome([sample for sample in samples if sample[0] >= started + _SETTLING * seconds])

    def measure_learning(
        self, seconds: float, api: httpx.Client, domains: _Domains
    ) -> tuple[PhaseOutcome, PhaseOutcome]:
        """Measure the load alone and beside a task that is learned, at the same rates.

        Args:
            seconds: Duration after which no round begins.
            api: Client of the service.
        """
        round_seconds = min(seconds, _ROUND_SECONDS)
        alone, learning = PhaseRounds(self._process), PhaseRounds(self._process)
        end = time.monotonic() + seconds
        with memory_samples(self._process) as samples:
            while time.monotonic() < end:
                self.measure_capacity(_CAPACITY_SHARE * round_seconds)
                capacity = self.capacity(_STEADY)
                with alone.round(capacity) as records:
                    records += self._send(_STEADY * capacity, _ALONE_SHARE * round_seconds)
                with learning.round(capacity) as records, ThreadPoolExecutor(1) as learner:
                    learned = learner.submit(domains.learn, api)
                    records += self._send(_STEADY * capacity, _MAX_TASK_SECONDS, learned.done)
                    learned.result()
        return alone.outcome(samples), learning.outcome(samples)

    def _send(
        self, rate: float, seconds: float, is_over: Callable[[], bool] = lambda: False
    ) -> list[RequestRecord]:
        records = asyncio.run(self._generator.send_at_rate(rate, seconds, is_over))
        self.ended = max(record.due for record in records)
        return records


def _warm_up(api: httpx.Client, load: _Load, mix: RequestMix) -> None:
    """Fill caches, and make the API allocate memory for batches and queues of all sizes."""
    batches = [[mix.new_text() for _ in range(_BATCH_TEXTS)] for _ in range(_CACHED_TEXTS // _BATCH_TEXTS)]
    # The text tower multiplies as many rows as a batch has tokens, and keeps code for each number of rows.
    lengths = range(WORDS_OF_TEXT[0], WORDS_OF_TEXT[1] + 1, 2)
    batches += [
        [mix.new_text(length) for _ in range(count)]
        for count in range(1, _STEP_TEXTS + 1)
        for length in lengths
    ]
    for texts in batches:
        api.post("/search", json={"queries": [{"q": text} for text in texts]}).raise_for_status()
    for number, clients in enumerate(_WARM_UP_CLIENTS):
        load.saturate(clients, _WARM_UP_SECONDS)
        if number % 3 == 2:
            load.measure_capacity(_WARM_UP_SECONDS)
    load.send_share(_OVERLOAD, _FILLING_SECONDS)
    load.send_share(_STEADY, _FIRST_SECONDS)


def _wait_ready(api: httpx.Client) -> None:
    """Wait until the API can answer searches; on a busy machine, the service counts as up before that."""
    while api.get("/readyz").status_code != httpx.codes.OK:
        time.sleep(0.2)


def _measure_recovery(api: httpx.Client, mix: RequestMix, p99: float, ended: float) -> float:
    """Measure the seconds from the overload's last request until a search takes at most ``p99`` milliseconds."""
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


def _tables(report: dict[str, Any]) -> str:
    """Format the tables of phases and verdicts."""
    rows = []
    for name in ("steady", "alone", "learning", "overload"):
        phase, memory = report[name]["statistics"], report[name]["memory"]
        rounds = report[name]["rounds"]
        capacities = [figures["capacity"] for figures in rounds]
        stolen = sum(figures["stolen"] for figures in rounds) / len(rounds)
        rows.append(
            [
                name,
                f"{min(capacities):.0f} to {max(capacities):.0f}",
                f"{phase['rate']:.1f}",
                *(str(phase[column]) for column in ("requests", "answered", "refused")),
                str(sum(phase["errors"].values())),
                *(f"{phase[column] or float('nan'):.0f}" for column in ("p50", "p99", "worst", "delay")),
                f"{memory['first_mib']:g} to {memory['last_mib']:g}",
                f"{memory['slope']:.2f} ± {memory['error']:.2f}",
                f"{report[name]['api_cores']:.2f}, {report[name]['generator_cores']:.2f}",
                f"{100 * stolen:.1f} %",
            ]
        )
    header = [
        "phase",
        "capacity per second",
        "requests/s",
        "requests",
        "answered",
        "429",
        "errors",
        "p50 ms",
        "p99 ms",
        "worst ms",
    ]
    header += [
        "delay of generator ms",
        "memory MiB",
        "MiB per minute",
        "cores of API, generator",
        "stolen by other machines",
    ]
    return f"{markdown_table(header, rows)}\n{markdown_table(report['columns'], report['rows'])}"


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
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the processes, too
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        report = measure(Path(folder) / "data", options.duration)
    options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    lines = [
        _tables(report),
        f"Tasks learned under load: {report['learned_tasks']}.",
    ]
    Console().print("\n".join(lines), soft_wrap=True, markup=False, highlight=False)
    if not all(verdict["is_met"] for verdict in report["verdicts"]):
        sys.exit(1)


if __name__ == "__main__":
    main()
