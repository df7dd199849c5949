"""Random faults against running services: ``python -m benchmarks.chaos.run_chaos --faults 200 --seed 1``.

A driver ingests, appends, deletes, relearns, upgrades and syncs videos, and searches run all the time, against the
product's own processes. In each round of operations, one fault strikes at a random moment. The system is then left to
recover. An independent checker compares the index files, the catalog and the acknowledged videos, and compares the
answers to 50 fixed queries with those of an undisturbed run of the same operations. The command prints a table, writes
JSON, and exits with status 1 after a violation or a failed search.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import httpx

from benchmarks.chaos.deployments import Deployment, EmbeddedDeployment, ServerDeployment
from benchmarks.chaos.fault_kinds import Fault, FaultContext, available_faults
from benchmarks.chaos.faulty_resources import DataVolume
from benchmarks.chaos.library_checker import LibraryChecker, check_epochs
from benchmarks.chaos.machines import MachinesDeployment, enter_own_network
from benchmarks.chaos.service_client import (
    NO_CATALOG,
    Answer,
    EditStream,
    Operation,
    OperationDriver,
    RoundTimeout,
    SearchStream,
    compare_answers,
    plan_rounds,
    read_answers,
)
from benchmarks.ingest.clip_files import write_tiny_clips
from benchmarks.ingest.embedded_service import NotReady, wait_until_ready

# Columns of the report after the kind and its number of runs; their values are summed up, or the lists counted.
_SUMS = {
    "struck": "struck",
    "searches": "searches",
    "from the read cache": "cached_answers",
    "failed": "failed_searches",
    "excused": "excused_searches",
    "retried tasks": "retried_tasks",
    "violations": "violations",
}
COLUMNS = ("fault", "runs", *_SUMS)


@dataclass
class FaultRecord:
    """A fault, and the state of the library after recovery."""

    number: int
    mode: str
    kind: str
    round: int
    delay: float
    struck: bool = False  # a kill point may not be reached
    seconds: float = 0.0
    searches: int = 0
    cached_answers: int = 0  # of searches, marked, while the catalog was unreachable
    failed_searches: list[str] = field(default_factory=list)
    excused_searches: int = 0  # those, and edits, whose API was restarted, cut off or without a catalog
    retried_tasks: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)


def write_chaos_report(path: Path, records: Sequence[FaultRecord], seed: int) -> list[list[str | int]]:
    """Write the report, and return its rows. It is written after each fault: an interrupted run has one."""
    kinds = sorted({record.kind for record in records})
    rows = [_row(kind, [record for record in records if record.kind == kind]) for kind in kinds]
    rows.append(_row("all", records))
    facts = {"seed": seed, "columns": COLUMNS, "rows": rows, "records": [asdict(one) for one in records]}
    staged = path.with_suffix(".new")
    staged.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    staged.replace(path)
    return rows


def _row(kind: str, records: Sequence[FaultRecord]) -> list[str | int]:
    values = [[getattr(record, field) for record in records] for field in _SUMS.values()]
    sums = [sum(len(one) if isinstance(one, list) else one for one in part) for part in values]
    return [kind, len(records), *sums]


_ROUND_SECONDS = 600.0  # for a round's operations, and for recovery after them
_PLAN_SEED = 1  # every run has the same operations; its seed selects the faults
_OLD_SECONDS = 7200.0  # age that leftovers are given before the next round
_SNAPSHOT_SECONDS = 60.0
_USUAL_SECONDS = 10.0  # of a round without a reference
_DEPLOYMENTS: dict[str, Callable[[Path, Path], Deployment]] = {
    "embedded": EmbeddedDeployment,
    "server": ServerDeployment,
    "machines": MachinesDeployment,
    "machines-milvus": partial(MachinesDeployment, milvus=True),
}


class Chaos:
    """A chaos run, with faults whose names match a regular expression, and a largest domain of ``large`` videos."""

    def __init__(self, folder: Path, faults: int, seed: int, kinds: str, large: int) -> None:
        self.records: list[FaultRecord] = []
        self._folder, self._faults, self._seed, self._kinds = folder, faults, seed, kinds
        self._rounds = plan_rounds(_PLAN_SEED, large=large)[:faults]
        count = sum(len(operation.videos) for operations in self._rounds for operation in operations)
        self._clips = [folder / "clips" / path for path in write_tiny_clips(folder / "clips", count)]
        self._reference: list[tuple[list[Answer], float]] = []  # answers after each round, and its seconds
        self._counts: Counter[str] = Counter()
        self._aged: list[Path] = []  # leftovers of a library's earlier rounds, which a sweep must remove

    def run(self, modes: Sequence[str], report: Callable[[], object]) -> None:
        """Strike the faults, with a new library after each plan of rounds, on the deployments in turn.

        Answers are compared with those of an undisturbed run; on machines alone, with those of the first API.
        """
        if not all("machines" in mode for mode in modes):
            self._record_reference()
        library = 0
        while len(self.records) < self._faults:
            mode = modes[library % len(modes)]
            with self._library(f"{mode}-{library}", mode) as (deployment, volume, driver):
                self._run_library(deployment, volume, driver, report)
            library += 1

    @contextmanager
    def _library(self, name: str, mode: str) -> Iterator[tuple[Deployment, DataVolume, OperationDriver]]:
        folder = self._folder / name
        # Downloads, which only machines need, leave a gibibyte free.
        volume = DataVolume(folder / "volume", *(["2g"] if "machines" in mode else []))
        deployment = _DEPLOYMENTS[mode](folder, volume.path / "data")
        try:
            deployment.start()
            driver = deployment.driver(self._clips)
            yield deployment, volume, driver
            driver.close()
        finally:
            deployment.stop()
            volume.close()

    def _record_reference(self) -> None:
        """Run the rounds undisturbed, and record answers and durations."""
        with self._library("undisturbed", "embedded") as (deployment, _, driver):
            for number, operations in enumerate(self._rounds):
                started = time.monotonic()
                _finish(driver.start(operations, _ROUND_SECONDS))
                seconds = time.monotonic() - started
                _wait_for_snapshot(deployment.data, deployment.url)
                self._reference.append((read_answers(deployment.url), seconds))
                with deployment.catalog() as catalog:
                    violations = LibraryChecker(deployment.data, catalog).check(driver.expected)
                if problems := [*violations, *driver.failures, *driver.refusals]:
                    raise RuntimeError(f"the undisturbed run fails in round {number}: {problems}")

    def _run_library(
        self,
        deployment: Deployment,
        volume: DataVolume,
        driver: OperationDriver,
        report: Callable[[], object],
    ) -> None:
        self._aged = []
        for number, operations in enumerate(self._rounds):
            if len(self.records) >= self._faults:
                break
            # The first round has nothing to search or to edit.
            streams = deployment.streams(self._rounds[0][0].videos) if number else []
            record = self._run_round(deployment, volume, driver, streams, number, operations)
            self.records.append(record)
            report()
            if record.violations:
                # The volume's content is lost when it is released; logs and catalog explain a violation.
                evidence = self._folder / f"violation-{len(self.records)}"
                shutil.copytree(deployment.data, evidence, ignore=_sockets, ignore_dangling_symlinks=True)
                break  # later rounds would report the same damage again

    def _run_round(
        self,
        deployment: Deployment,
        volume: DataVolume,
        driver: OperationDriver,
        streams: Sequence[SearchStream],
        number: int,
        operations: Sequence[Operation],
    ) -> FaultRecord:
        rng = random.Random(f"{self._seed}-{len(self.records)}")
        fault = self._choose(available_faults(deployment, volume), operations, rng)
        is_point = fault.kind.startswith("kill at")
        expected, usual = self._reference[number] if self._reference else (None, _USUAL_SECONDS)
        delay = 0.0 if is_point else round(rng.uniform(0, 0.9 * usual), 2)
        record = FaultRecord(len(self.records), deployment.mode, fault.kind, number, delay)
        started = time.monotonic()
        for stream in streams:
            stream.start()
        driver.failures.clear()
        running = driver.start(operations, _ROUND_SECONDS)
        context = FaultContext(deployment, volume, rng, lambda: all(one.done() for one in running))
        time.sleep(delay)
        struck_at = time.monotonic()
        try:
            record.struck = fault.strike(context)
            _finish(running)
        except (NotReady, RoundTimeout) as error:
            record.violations += [str(error), *driver.refusals]
        _end(context.workers)
        is_restart = fault.restarts_api or context.has_ended_api
        excuses = dict.fromkeys(deployment.urls, ".*") if is_restart else fault.excuses
        try:
            for url in deployment.urls.values():
                wait_until_ready(url)
                _wait_for_snapshot(deployment.data, url)
        except NotReady as error:
            record.violations.append(str(error))
        recovered_at = time.monotonic()
        for stream in streams:
            stream.stop()
            excuse = excuses.get(stream.api)
            for failed in stream.failed:
                is_during = failed.ended >= struck_at and failed.started <= recovered_at
                if excuse and is_during and re.match(excuse, failed.reason):
                    record.excused_searches += 1
                else:
                    record.failed_searches.append(f"{stream.api}: {failed.reason}")
            if isinstance(stream, EditStream):
                record.violations += stream.lost
            else:
                record.searches += stream.count
                record.cached_answers += stream.cached
                if excuse == NO_CATALOG and not stream.cached:
                    record.violations.append(f"{stream.api} answered no search from its read cache")
        if not record.violations:  # the checks send requests
            record.violations += self._check(deployment, driver, expected, fault)
        record.seconds = round(time.monotonic() - started, 1)
        record.retried_tasks = list(driver.failures)
        return record

    def _choose(self, faults: Sequence[Fault], operations: Sequence[Operation], rng: random.Random) -> Fault:
        """Choose a fault that these operations can meet; kinds that have struck least often come first."""
        kinds = {operation.kind for operation in operations}
        possible = [fault for fault in faults if not fault.needs or fault.needs & kinds]
        chosen = [fault for fault in possible if re.search(self._kinds, fault.kind)] or possible
        least = min(self._counts[fault.kind] for fault in chosen)
        fault = rng.choice([fault for fault in chosen if self._counts[fault.kind] == least])
        self._counts[fault.kind] += 1
        return fault

    def _check(
        self, deployment: Deployment, driver: OperationDriver, expected: list[Answer] | None, fault: Fault
    ) -> list[str]:
        busy = driver.wait_until_idle(_ROUND_SECONDS)
        violations = [f"task {name} is not finished" for name in busy]
        _wait_for_sweep(self._aged)
        with deployment.catalog() as catalog:
            violations += LibraryChecker(deployment.data, catalog, deployment.milvus).check(driver.expected)
            violations += [] if driver.failures else check_epochs(catalog.epochs())
            unread = catalog.rows("SELECT video_vector_id, note FROM readings WHERE state = 'failed'")
        violations += [f"video {row['video_vector_id']} was not read: {row['note']}" for row in unread]
        if driver.failures and not fault.fails_tasks:
            violations += [f"a task failed: {reason}" for reason in driver.failures]
        violations += [f"unexpected response: {text}" for text in driver.refusals]
        driver.refusals.clear()
        for api, url in deployment.urls.items():
            _wait_for_snapshot(deployment.data, url)
            answers = read_answers(url, deployment.headers, deployment.root)
            expected = expected or answers
            differences = compare_answers(expected, answers)
            violations += [f"{api}: {text}" for text in differences[:3]]
            if len(differences) > 3:
                numbers = ", ".join(text.split(",")[0].removeprefix("query ") for text in differences)
                violations.append(f"{len(differences)} of 50 queries are answered differently: {numbers}")
        self._aged = _age_leftovers(deployment.data)
        return violations


def _finish(running: Sequence[Future[None]]) -> None:
    """Wait for all operations, and raise the first error, such as RoundTimeout."""
    wait(running)
    for operation in running:
        operation.result()


def _wait_for_snapshot(data: Path, url: str) -> None:
    """Wait until an API searches all of the newest index generation, with the catalog instead of its copy."""
    deadline = time.monotonic() + _SNAPSHOT_SECONDS
    while time.monotonic() < deadline:
        manifest = json.loads((data / "index" / "manifest.json").read_text(encoding="utf-8"))
        with suppress(httpx.HTTPError):
            ready = httpx.get(f"{url}/readyz", trust_env=False, timeout=10).json()
            is_newest = ready.get("generation") == manifest["generation"]
            if is_newest and not ready["degraded"] and ready["checks"]["database"] == "ok":
                return
        time.sleep(0.1)


def _wait_for_sweep(aged: Sequence[Path]) -> None:
    """Wait until the leftovers of earlier rounds are gone: a worker that was killed sweeps once it has restarted."""
    deadline = time.monotonic() + _SNAPSHOT_SECONDS
    while any(folder.exists() for folder in aged) and time.monotonic() < deadline:
        time.sleep(0.1)


def _age_leftovers(data: Path) -> list[Path]:
    """Make folders that nothing names look old, so that the next sweep must remove them; returns these."""
    aged = []
    manifest = (data / "index" / "manifest.json").read_text(encoding="utf-8")
    past = time.time() - _OLD_SECONDS
    for parent in ("tmp", "shards", "releases", "tombstones"):
        for folder in (data / "index" / parent).glob("*"):
            if folder.name not in manifest:
                with suppress(OSError):
                    os.utime(folder, (past, past))
                    aged.append(folder)
    return aged


def _end(workers: Sequence[subprocess.Popen[bytes]]) -> None:
    for worker in workers:
        worker.terminate()
    for worker in workers:
        with suppress(subprocess.TimeoutExpired):
            worker.wait(30)
        worker.kill()
        worker.wait()


def _sockets(folder: str, names: Sequence[str]) -> set[str]:
    """Find the sockets in a folder by name; they cannot be copied."""
    return {name for name in names if (Path(folder) / name).is_socket()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos.run_chaos", description=__doc__)
    parser.add_argument("--faults", type=int, default=200, help="number of faults (200)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the faults (1)")
    names = ", ".join(_DEPLOYMENTS)
    parser.add_argument("--modes", default="embedded,server", help=f"deployments in turn, of {names}")
    parser.add_argument("--kind", default="", help="strike only faults whose name matches this pattern")
    parser.add_argument("--large", type=int, default=70, help="videos of the largest domain (70)")
    parser.add_argument("--out", type=Path, default=Path("chaos-report.json"), help="report (JSON)")
    parser.add_argument("--folder", type=Path, help="folder of the run, which keeps its files")
    options = parser.parse_args(arguments)
    notes = "machines" in options.modes
    if notes:
        is_inside = enter_own_network()
        print(
            "cables:", "virtual devices" if is_inside else "proxies, since namespaces are refused", flush=True
        )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the processes, too
    rows: list[list[str | int]] = []
    with tempfile.TemporaryDirectory(prefix="chaos-") as temporary:
        folder = options.folder or Path(temporary)
        chaos = Chaos(folder, options.faults, options.seed, options.kind, options.large)

        def report() -> None:
            rows[:] = write_chaos_report(options.out, chaos.records, options.seed)
            last = chaos.records[-1]
            failed = f", {len(last.failed_searches)} failed searches" if last.failed_searches else ""
            state = "; ".join(last.violations) or "no violation"
            kind = last.kind + ("" if last.struck else " (did not strike)")
            progress = f"{last.number + 1}/{options.faults} {last.mode}, round {last.round}"
            print(f"{progress}: {kind}, {last.seconds:g} s: {state}{failed}", flush=True)

        chaos.run(options.modes.split(","), report)
    print(*(" | ".join(map(str, row)) for row in (COLUMNS, *rows)), sep="\n")
    if any(record.violations or record.failed_searches for record in chaos.records):
        sys.exit(1)


if __name__ == "__main__":
    main()
