"""What searches feel of a release that takes over: ``python -m benchmarks.search.hot_swap --rows 100000``.

A server of its own process answers a steady stream of searches (50 a second, each sent at its time whether or not the
ones before it have come back, so that a stall is seen by all that it delays). Meanwhile a task of 100,000 vectors is
published by another process, as the learning worker does it: written, hashed, synced, its release with probes, manifest
replaced. The server notices, compares checksums, asks the probes, and swaps.

Reported: failed requests, which must be none, and the p99 of the searches that were sent in a window that begins with
the publication and ends well after the first answer by it, against the p99 of as long a window undisturbed before it.
Several rounds; the median of their ratios counts. Prints a table and writes JSON.
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

from benchmarks.search.server_load import serving
from benchmarks.search.synthetic_library import enter
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

__all__ = ["Round", "main"]

_FIRST = 1000  # vectors of the task that is laid down before the server starts
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
    """One publication. Latencies are in milliseconds.

    Attributes:
        publish_seconds, takeover_seconds: from the beginning to the manifest, and to the first answer by it.
        before, during: how many searches were sent in the undisturbed time, and in that of the publication.
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
class _Sent:
    at: float  # on the monotonic clock
    milliseconds: float
    generation: int | None  # of the answer; None: it failed
    why: str = ""


class _Writer:
    """Publishes tasks of random unit vectors, as a worker does."""

    def __init__(self, backbone: Backbone) -> None:
        self.store = ShardStore(settings().index_dir)
        self._backbone = backbone
        self._method: Method = start_method("zero_shot", backbone, {}, None)
        self._rng = np.random.default_rng(0)
        self._last = 0
        self._before: ParentRelease | None = None
        self._prepared: tuple[str, npt.NDArray[np.int64], npt.NDArray[np.float32]]

    def prepare_tasks(self, count: int) -> None:
        """Learn a task of so many videos, all but its publication."""
        name = f"task-{len(self._method.learned_tasks)}"
        captions = [" ".join(self._rng.choice(_WORDS, 3)) for _ in range(64)]
        self._method.begin_task(name, name)
        self._method.end_task()
        self._method.record_task(name, name, captions)
        vectors = self._rng.standard_normal((count, self._backbone.dim), np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        ids = np.arange(self._last, self._last + count) + 1
        self._last += count
        enter(self._method.learned_tasks[-1], int(ids[0]), count, "zero_shot")
        self._prepared = name, ids, vectors

    def publish(self) -> int:
        """Write and publish the task that was prepared; gives its generation."""
        name, ids, vectors = self._prepared
        state = self._method.release()
        encoder = open_query_encoder(self._backbone, state, {})
        stored = vectors.astype(np.float16).astype(np.float32)
        with self.store.staging() as staged:
            write_release(staged, state, parent=self._before)
            write_probes(staged, make_probes(encoder, name, ids, stored, {}, encoder.modes[-1]))
            release = self.store.adopt_release(staged)
        shard = self.store.write_shard(
            task=name, release=release.id, fingerprint=state.fingerprint, ids=ids, vectors=vectors
        )
        self._before = ParentRelease(release.id, len(state.tasks))
        return self.store.publish(release=release, shards=[shard]).generation


class _Clients:
    """Searches at a steady rate; every one is noted."""

    def __init__(self, url: str, rate: float, distinct: int) -> None:
        self.sent: list[_Sent] = []
        self._url = url
        self._rate = rate
        self._distinct = distinct
        self._stop = asyncio.Event()

    async def run(self) -> None:
        # Connections are given up before the server does: one that both lay hands on at once would count as failed.
        limits = httpx.Limits(max_connections=256, max_keepalive_connections=256, keepalive_expiry=2)
        async with httpx.AsyncClient(base_url=self._url, timeout=60, limits=limits, trust_env=False) as http:
            running: set[asyncio.Task[None]] = set()
            begun, count = time.monotonic(), 0
            while not self._stop.is_set():
                due = begun + count / self._rate
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                task = asyncio.create_task(self._search(http, count, due))
                running.add(task)
                task.add_done_callback(running.discard)
                count += 1
            await asyncio.gather(*running)

    def stop(self) -> None:
        self._stop.set()

    def newest(self) -> int:
        return max((one.generation or 0 for one in self.sent[-50:]), default=0)

    async def _search(self, http: httpx.AsyncClient, number: int, due: float) -> None:
        text = f"{_WORDS[number % len(_WORDS)]} and {number % self._distinct}"
        generation, why = None, ""
        try:
            answer = await http.get("/search", params={"q": text, "k": 10})
            if answer.status_code == httpx.codes.OK:
                generation = answer.json()["generation"]
            else:
                why = f"{answer.status_code} {answer.text[:200]}"
        except httpx.HTTPError as error:
            why = repr(error)
        # From when it was due: a client that was kept waiting has waited.
        self.sent.append(_Sent(due, 1000 * (time.monotonic() - due), generation, why))


async def _rounds(
    url: str, writer: Executor, *, rows: int, rounds: int, rate: float, quiet: float, distinct: int
) -> list[Round]:
    loop = asyncio.get_running_loop()
    clients = _Clients(url, rate, distinct)
    stream = asyncio.create_task(clients.run())
    spans: list[tuple[float, float, float, float, float]] = []
    await asyncio.sleep(2)  # connections are made, caches are warm
    for _ in range(rounds):
        await loop.run_in_executor(writer, _prepare, rows)
        await asyncio.sleep(1)
        start = time.monotonic()
        await asyncio.sleep(quiet)
        begun = time.monotonic()
        generation = await loop.run_in_executor(writer, _publish)
        published = time.monotonic()
        while clients.newest() < generation:
            await asyncio.sleep(0.02)
        taken = time.monotonic()
        await asyncio.sleep(max(1.0, quiet - (taken - begun)))  # what comes just after it counts as well
        end = time.monotonic()
        await asyncio.sleep(1)
        spans.append((start, begun, published, taken, end))
    clients.stop()
    await stream  # every search has been answered, however late
    return [_round(clients.sent, *span) for span in spans]


def _round(
    sent: list[_Sent], start: float, begun: float, published: float, taken: float, end: float
) -> Round:
    before = [one for one in sent if start <= one.at < begun]
    during = [one for one in sent if begun <= one.at < end]
    return Round(
        publish_seconds=published - begun,
        takeover_seconds=taken - begun,
        before=len(before),
        during=len(during),
        failed=sum(one.generation is None for one in [*before, *during]),
        why=[one.why for one in [*before, *during] if one.generation is None],
        p50_before=_percentile(before, 50),
        p50_during=_percentile(during, 50),
        p99_before=_percentile(before, 99),
        p99_during=_percentile(during, 99),
        worst_during=_percentile(during, 100),
    )


# -- in the writer's process, for what it computes must not hold up the clients that measure ------------------

_writer: _Writer


def _begin(backbone: str) -> None:
    global _writer
    torch.set_num_threads(1)
    _writer = _Writer(load_backbone(backbone))


def _prepare(rows: int) -> None:
    _writer.prepare_tasks(rows)


def _publish() -> int:
    return _writer.publish()


# -- the whole ----------------------------------------------------------------------------------------------


def _percentile(sent: list[_Sent], share: float) -> float:
    return float(np.percentile([one.milliseconds for one in sent], share))


def main() -> None:
    """Run, print, and write the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, default=100_000, help="vectors of the shard that is published")
    parser.add_argument("--rate", type=float, default=50, help="searches in a second")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--quiet", type=float, default=10, help="seconds of undisturbed searches before each round"
    )
    parser.add_argument(
        "--distinct", type=int, default=1000, help="different texts; few are answered from memory"
    )
    parser.add_argument("--backbone", default="tiny")
    parser.add_argument("--out", type=Path, default=Path("hot_swap.json"))
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cinestrata-hot-swap-") as folder:
        os.environ |= {
            "CINESTRATA_DATA_DIR": folder,
            "CINESTRATA_BACKBONE": chosen.backbone,
            "CINESTRATA_LOG_LEVEL": "WARNING",
        }
        settings.cache_clear()
        upgrade(settings())
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, spawn, _begin, (chosen.backbone,)) as writer:
            writer.submit(_prepare, _FIRST).result()
            writer.submit(_publish).result()
            with serving(settings()) as (url, _):
                wanted = {
                    name: getattr(chosen, name) for name in ("rows", "rounds", "rate", "quiet", "distinct")
                }
                measured = asyncio.run(_rounds(url, writer, **wanted))
    console = Console(highlight=False, width=120)
    ratio = statistics.median(one.p99_during / one.p99_before for one in measured)
    failed = sum(one.failed for one in measured)
    console.print(
        f"{'round':>5} {'publish s':>9} {'takeover s':>10} {'p50':>7} {'during':>7} {'p99':>7} {'during':>7} {'x':>5}"
    )
    for number, one in enumerate(measured, 1):
        console.print(
            f"{number:>5} {one.publish_seconds:>9.2f} {one.takeover_seconds:>10.2f} {one.p50_before:>7.1f} "
            f"{one.p50_during:>7.1f} {one.p99_before:>7.1f} {one.p99_during:>7.1f} "
            f"{one.p99_during / one.p99_before:>5.2f}"
        )
        for why in one.why:
            console.print(f"      {why}", markup=False)
    requests = sum(one.before + one.during for one in measured)
    console.print(
        f"{failed} of {requests} requests failed; p99 during over p99 before, median of rounds: {ratio:.2f}"
    )
    facts = {
        **{name: value for name, value in vars(chosen).items() if name != "out"},
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "failed": failed,
        "p99_ratio": ratio,
        "measured": [asdict(one) for one in measured],
    }
    chosen.out.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
