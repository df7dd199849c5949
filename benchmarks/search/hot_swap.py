"""Measure search latency while a new release takes over: ``python -m benchmarks.search.hot_swap --rows 100000``.

A server process answers searches at a constant rate. Meanwhile, another process publishes a task of random vectors as
the learning worker does: it writes, hashes and syncs the shard and the release with its probes, and replaces the
manifest. The server detects the change, compares checksums, runs the probe queries and swaps its snapshot.

The report has the number of failed requests, which must be zero, and the ratio of two p99 latencies: in a window from
the publication until well after the first response from the new snapshot, and in an undisturbed window of the same
length before it. The result is the median over several rounds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import re
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import quote

import numpy as np
import torch

from benchmarks.search.server_load import running_server
from benchmarks.search.synthetic_library import insert_catalog_rows
from benchmarks.soak.load_generator import LoadGenerator, RequestRecord
from index.shard_store import ShardStore
from models.backbones.backbone_loading import load_backbone
from models.encoders.encoder_registry import open_query_encoder
from models.releases.probe_queries import write_probes
from models.releases.release_files import write_release
from models.releases.release_lineage import ParentRelease
from service.catalog.migrations import upgrade
from service.core.settings import settings
from trainer.methods import start_method
from trainer.probe_generation import make_probes

_INITIAL_VECTORS = 1000  # in the task that is published before the server starts
_DISTINCT_QUERIES = 1000  # few come from the cache
_RATE = 50.0  # searches per second
_GENERATION = re.compile(rb'"generation": ?(\d+)')
_WORDS = [f"{color} {thing}" for color in ("red", "old") for thing in ("car", "tree", "street", "boat")]


class _TaskPublisher:
    """Publishes tasks of random unit vectors as the learning worker does."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self._store = ShardStore(settings().index_dir)
        self._backbone = load_backbone("tiny")
        self._method = start_method("zero_shot", self._backbone, {}, None)
        self._rng = np.random.default_rng(0)
        self._last = 0
        self._before: ParentRelease | None = None
        self._prepared: tuple[str, np.ndarray, np.ndarray]

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
        with self._store.staging() as staged:
            write_release(staged, state, parent=self._before)
            write_probes(staged, make_probes(encoder, name, ids, stored, {}))
            release = self._store.adopt_release(staged)
        shard = self._store.write_shard(
            task=name, release=release.id, fingerprint=state.fingerprint, ids=ids, vectors=vectors
        )
        self._before = ParentRelease(release.id, len(state.tasks))
        return self._store.publish(release=release, shards=[shard]).generation


_publisher: _TaskPublisher  # in the publishing process, which must not delay the load generator


def _start_publisher() -> None:
    global _publisher
    _publisher = _TaskPublisher()


def _prepare(rows: int) -> None:
    _publisher.prepare(rows)


def _publish() -> int:
    return _publisher.publish()


def _measure_round(
    load: LoadGenerator, publisher: ProcessPoolExecutor, rows: int, quiet: float
) -> tuple[float, float, float, float]:
    """Publish a task; returns when the quiet window began, the publication, the first new answer, and the end."""
    publisher.submit(_prepare, rows).result()
    time.sleep(1)
    start = time.monotonic()
    time.sleep(quiet)
    published = time.monotonic()
    generation = publisher.submit(_publish).result()
    while max((int(str(record.value or 0)) for record in load.records[-50:]), default=0) < generation:
        time.sleep(0.02)
    swapped = time.monotonic()
    time.sleep(max(1.0, quiet - (swapped - published)))  # the window extends past the swap
    end = time.monotonic()
    time.sleep(1)
    return start, published, swapped, end


def _figures(
    records: list[RequestRecord], start: float, published: float, swapped: float, end: float
) -> dict[str, Any]:
    """Compute the figures of a round; latencies are in milliseconds."""
    before = [record for record in records if start <= record.due < published]
    during = [record for record in records if published <= record.due < end]
    figures = {
        f"{name}_{window}": float(np.percentile([1000 * record.seconds for record in own], share))
        for window, own in (("before", before), ("during", during))
        for name, share in (("p50", 50), ("p99", 99), ("worst", 100))
    }
    return {
        "searches": len(before) + len(during),
        "failed": sum(record.status != 200 for record in [*before, *during]),
        "swap_seconds": swapped - published,
        **figures,
        "p99_ratio": figures["p99_during"] / figures["p99_before"],
    }


def _read_generation(body: bytes) -> int:
    found = _GENERATION.search(body)
    return int(found[1]) if found else 0


def main() -> None:
    """Run the benchmark, print its figures and write JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, default=100_000, help="vectors of the published shard")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quiet", type=float, default=10, help="seconds of searches before each publication")
    parser.add_argument("--out", type=Path, default=Path("hot_swap.json"))
    options = parser.parse_args()
    paths = (
        f"/search?k=10&q={quote(_WORDS[number % len(_WORDS)])}+and+{number % _DISTINCT_QUERIES}"
        for number in itertools.count()
    )
    with tempfile.TemporaryDirectory(prefix="cinestrata-hot-swap-") as folder:
        os.environ |= {
            "CINESTRATA_DATA_DIR": folder,
            "CINESTRATA_BACKBONE": "tiny",
            "CINESTRATA_LOG_LEVEL": "WARNING",
        }
        settings.cache_clear()
        upgrade(settings())
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, spawn, _start_publisher) as publisher, ThreadPoolExecutor(1) as thread:
            publisher.submit(_prepare, _INITIAL_VECTORS).result()
            publisher.submit(_publish).result()
            with running_server(settings()) as (url, _):
                load, stopped = LoadGenerator(url, paths, _read_generation), Event()
                searches = thread.submit(load.send_at_rate, _RATE, lambda _: stopped.is_set())
                try:
                    time.sleep(2)  # warm up connections and caches
                    spans = [
                        _measure_round(load, publisher, options.rows, options.quiet)
                        for _ in range(options.rounds)
                    ]
                finally:
                    stopped.set()
                records = searches.result()
    rounds = [_figures(records, *span) for span in spans]
    ratio = statistics.median(figures["p99_ratio"] for figures in rounds)
    failed, count = (sum(figures[name] for figures in rounds) for name in ("failed", "searches"))
    ratios = ", ".join(f"{figures['p99_ratio']:.2f}" for figures in rounds)
    print(f"{failed} of {count} requests failed; p99 during over p99 before, median: {ratio:.2f} ({ratios})")
    report = json.dumps({"failed": failed, "p99_ratio": ratio, "rounds": rounds}, indent=1)
    options.out.write_text(report + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
