"""Measure search latency while a new release takes over: ``python -m benchmarks.search.hot_swap --rows 100000``.

A server process answers searches at a constant rate of 50 per second. Each search is sent at its scheduled time, even
if earlier responses are outstanding, so a stall affects the latency of every search that it delays. Meanwhile, another
process publishes a task of 100,000 vectors as the learning worker does: it writes, hashes and syncs the shard and the
release with its probes, and replaces the manifest. The server detects the change, compares checksums, runs the probe
queries and swaps its snapshot.

The report has the number of failed requests, which must be zero, and the ratio of two p99 latencies: in a window from
the publication until well after the first response from the new snapshot, and in an undisturbed window of the same
length before it. The result is the median over several rounds. The command prints a table and writes JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import platform
import statistics
import tempfile
import time
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console

from benchmarks.search.server_load import running_server
from benchmarks.search.synthetic_library import insert_catalog_rows
from index.shard_store import ShardStore
from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import load_backbone
from models.encoders.encoder_registry import open_query_encoder
from models.releases.probe_queries import write_probes
from models.releases.release_files import write_release
from models.releases.release_lineage import ParentRelease
from service.catalog.migrations import upgrade
from service.core.settings import settings
from trainer.methods import Method, start_method
from trainer.probe_generation import make_probes

_INITIAL_VECTORS = 1000  # in the task that is published before the server starts
_WORDS = (
    "red car",
    "tall tree",
    "quiet street",
    "small dog",
    "open door",
    "wet road",
    "old boat",
    "loud crowd",
)


@dataclass(frozen=True)
class Round:
    """What one publication measured; latencies are in milliseconds.

    Attributes:
        publish_seconds: Seconds from the start of the publication to the new manifest.
        takeover_seconds: Seconds from the start of the publication to the new snapshot's first response.
        before: Number of searches in the undisturbed window.
        during: Number of searches in the publication's window.
        failed: Number of failed searches.
        why: Error of each failed search.
        p50_before, p50_during, p99_before, p99_during: Percentiles of the latency in each window.
        worst_during: Maximum latency in the publication's window.
    """

    publish_seconds: float
    takeover_seconds: float
    before: int
    during: int
    failed: int
    why: list[str]
    p50_before: float
    p50_during: float
    p99_before: float
    p99_during: float
    worst_during: float


@dataclass(frozen=True)
class _SearchRecord:
    """One search of the load generator."""

    due: float  # scheduled time on the monotonic clock
    milliseconds: float
    generation: int | None  # generation of the response; None if the search failed
    error: str = ""


class _TaskPublisher:
    """Publishes tasks of random unit vectors as the learning worker does."""

    def __init__(self, backbone: Backbone) -> None:
        self.store = ShardStore(settings().index_dir)
        self._backbone = backbone
        self._method: Method = start_method("zero_shot", backbone, {}, None)
        self._rng = np.random.default_rng(0)
        self._last = 0
        self._before: ParentRelease | None = None
        self._prepared: tuple[str, npt.NDArray[np.int64], npt.NDArray[np.float32]]

    def prepare(self, count: int) -> None:
        """Prepare a task with this number of videos, ready to publish."""
        name = f"task-{len(self._method.learned_tasks)}"
        captions = [" ".join(self._rng.choice(_WORDS, 3)) for _ in range(64)]
        self._method.begin_task(name, name)
        self._method.end_task()
        self._method.record_task(name, name, captions)
        vectors = self._rng.standard_normal((count, self._backbone.dim), np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        ids = np.arange(self._last, self._last + count) + 1
        self._last += count
        insert_catalog_rows(self._method.learned_tasks[-1], int(ids[0]), count, "zero_shot")
        self._prepared = name, ids, vectors

    def publish(self) -> int:
        """Write and publish the prepared task, and return the new generation."""
        name, ids, vectors = self._prepared
        state = self._method.release()
        encoder = open_query_encoder(self._backbone, state, {})
        stored = vectors.astype(np.float16).astype(np.float32)
        with self.store.staging() as staged:
            write_release(staged, state, parent=self._before)
            write_probes(staged, make_probes(encoder, name, ids, stored, {}))
            release = self.store.adopt_release(staged)
        shard = self.store.write_shard(
            task=name, release=release.id, fingerprint=state.fingerprint, ids=ids, vectors=vectors
        )
        self._before = ParentRelease(release.id, len(state.tasks))
        return self.store.publish(release=release, shards=[shard]).generation


class _LoadGenerator:
    """Sends searches at a constant rate, and records each of them."""

    def __init__(self, url: str, rate: float, distinct: int) -> None:
        self.records: list[_SearchRecord] = []
        self._url = url
        self._rate = rate
        self._distinct = distinct
        self._stop = asyncio.Event()

    async def run(self) -> None:
        # The client closes idle connections before the server does. Otherwise, a request on a connection that the
        # server closes at the same moment would count as failed.
        limits = httpx.Limits(max_connections=256, max_keepalive_connections=256, keepalive_expiry=2)
        async with httpx.AsyncClient(base_url=self._url, timeout=60, limits=limits, trust_env=False) as http:
            running: set[asyncio.Task[None]] = set()
            start, count = time.monotonic(), 0
            while not self._stop.is_set():
                due = start + count / self._rate
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                task = asyncio.create_task(self._search(http, count, due))
                running.add(task)
                task.add_done_callback(running.discard)
                count += 1
            await asyncio.gather(*running)

    def stop(self) -> None:
        self._stop.set()

    def newest_generation(self) -> int:
        return max((result.generation or 0 for result in self.records[-50:]), default=0)

    async def _search(self, http: httpx.AsyncClient, number: int, due: float) -> None:
        text = f"{_WORDS[number % len(_WORDS)]} and {number % self._distinct}"
        generation, message = None, ""
        try:
            response = await http.get("/search", params={"q": text, "k": 10})
            if response.status_code == httpx.codes.OK:
                generation = response.json()["generation"]
            else:
                message = f"{response.status_code} {response.text[:200]}"
        except httpx.HTTPError as error:
            message = repr(error)
        # Latency counts from the scheduled time, so it includes the delay of a stalled sender.
        self.records.append(_SearchRecord(due, 1000 * (time.monotonic() - due), generation, message))


async def _rounds(
    url: str, publisher: Executor, *, rows: int, rounds: int, rate: float, quiet: float, distinct: int
) -> list[Round]:
    loop = asyncio.get_running_loop()
    generator = _LoadGenerator(url, rate, distinct)
    stream = asyncio.create_task(generator.run())
    spans: list[tuple[float, float, float, float, float]] = []
    await asyncio.sleep(2)  # warm up connections and caches
    for _ in range(rounds):
        await loop.run_in_executor(publisher, _prepare, rows)
        await asyncio.sleep(1)
        start = time.monotonic()
        await asyncio.sleep(quiet)
        started = time.monotonic()
        generation = await loop.run_in_executor(publisher, _publish)
        published = time.monotonic()
        while generator.newest_generation() < generation:
            await asyncio.sleep(0.02)
        switched = time.monotonic()
        await asyncio.sleep(max(1.0, quiet - (switched - started)))  # the window extends past the swap
        end = time.monotonic()
        await asyncio.sleep(1)
        spans.append((start, started, published, switched, end))
    generator.stop()
    await stream  # wait for all responses
    return [_round(generator.records, *span) for span in spans]


def _round(
    records: list[_SearchRecord], start: float, started: float, published: float, switched: float, end: float
) -> Round:
    before = [record for record in records if start <= record.due < started]
    during = [record for record in records if started <= record.due < end]
    return Round(
        publish_seconds=published - started,
        takeover_seconds=switched - started,
        before=len(before),
        during=len(during),
        failed=sum(record.generation is None for record in [*before, *during]),
        why=[record.error for record in [*before, *during] if record.generation is None],
        p50_before=_percentile(before, 50),
        p50_during=_percentile(during, 50),
        p99_before=_percentile(before, 99),
        p99_during=_percentile(during, 99),
        worst_during=_percentile(during, 100),
    )


# --- functions of the publishing process, which must not delay the load generator ---

_publisher: _TaskPublisher


def _start_publisher(backbone: str) -> None:
    global _publisher
    torch.set_num_threads(1)
    _publisher = _TaskPublisher(load_backbone(backbone))


def _prepare(rows: int) -> None:
    _publisher.prepare(rows)


def _publish() -> int:
    return _publisher.publish()


# --- command line ---


def _percentile(records: list[_SearchRecord], share: float) -> float:
    return float(np.percentile([record.milliseconds for record in records], share))


def main() -> None:
    """Run the benchmark, print the table and write JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, default=100_000, help="vectors of the published shard")
    parser.add_argument("--rate", type=float, default=50, help="searches per second")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--quiet", type=float, default=10, help="seconds of undisturbed searches before each publication"
    )
    parser.add_argument(
        "--distinct", type=int, default=1000, help="number of distinct queries; few come from the cache"
    )
    parser.add_argument("--backbone", default="tiny")
    parser.add_argument("--out", type=Path, default=Path("hot_swap.json"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cinestrata-hot-swap-") as folder:
        os.environ |= {
            "CINESTRATA_DATA_DIR": folder,
            "CINESTRATA_BACKBONE": options.backbone,
            "CINESTRATA_LOG_LEVEL": "WARNING",
        }
        settings.cache_clear()
        upgrade(settings())
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, spawn, _start_publisher, (options.backbone,)) as publisher:
            publisher.submit(_prepare, _INITIAL_VECTORS).result()
            publisher.submit(_publish).result()
            with running_server(settings()) as (url, _):
                wanted = {
                    name: getattr(options, name) for name in ("rows", "rounds", "rate", "quiet", "distinct")
                }
                measured = asyncio.run(_rounds(url, publisher, **wanted))
    console = Console(highlight=False, width=120)
    ratio = statistics.median(result.p99_during / result.p99_before for result in measured)
    failed = sum(result.failed for result in measured)
    console.print(
        f"{'round':>5} {'publish s':>9} {'takeover s':>10} {'p50':>7} {'during':>7} {'p99':>7} {'during':>7} {'x':>5}"
    )
    for number, result in enumerate(measured, 1):
        console.print(
            f"{number:>5} {result.publish_seconds:>9.2f} {result.takeover_seconds:>10.2f} {result.p50_before:>7.1f} "
            f"{result.p50_during:>7.1f} {result.p99_before:>7.1f} {result.p99_during:>7.1f} "
            f"{result.p99_during / result.p99_before:>5.2f}"
        )
        for why in result.why:
            console.print(f"      {why}", markup=False)
    requests = sum(result.before + result.during for result in measured)
    console.print(
        f"{failed} of {requests} requests failed; p99 during over p99 before, median of rounds: {ratio:.2f}"
    )
    facts = {
        **{name: value for name, value in vars(options).items() if name != "out"},
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "failed": failed,
        "p99_ratio": ratio,
        "measured": [asdict(result) for result in measured],
    }
    options.out.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
