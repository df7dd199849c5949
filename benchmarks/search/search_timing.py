"""Measure the latency of searches inside the process of the engine, and searches per second of a server process.

Two libraries are compared by alternating queries, so that other load on the machine affects both equally. Every query
is new to the engine, so no response comes from a cache.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean
from typing import NamedTuple
from urllib.parse import urlencode

import numpy as np
import torch

from benchmarks.ingest.embedded_service import COMMAND, free_port, processor_seconds, wait_until_ready
from benchmarks.search.synthetic_library import SyntheticLibrary, TargetedQuery
from benchmarks.soak.load_generator import LoadGenerator
from cinestrata_schemas.search import SearchResponse
from index.index_snapshot import IndexSnapshot
from index.scanning.exact_scan import use_one_thread_per_search
from index.shard_store import ShardStore
from models.backbones.backbone import Backbone
from models.encoders.tower_forward import encode_texts
from service.core.settings import Settings
from service.search.engine import SearchEngine

Search = Callable[[str], SearchResponse | None]

_WARM_UP = 20  # queries before the first measurement
K = 10


class SearchTiming(NamedTuple):
    """Latency of one of several searches in milliseconds, its ratio to the first, and numbers of searched tasks."""

    p50: float
    p99: float
    ratio: float
    median_tasks: float
    mean_tasks: float


def start_engine(library: SyntheticLibrary, **changed: object) -> SearchEngine:
    """Create a search engine for a library in this process, with its snapshot loaded."""
    use_one_thread_per_search()
    engine = SearchEngine(library.settings.model_copy(update=changed))
    engine.snapshots.refresh()
    if engine.snapshots.last_error:
        raise RuntimeError(engine.snapshots.last_error)
    return engine


def measure_in_turn(
    searches: Sequence[Callable[[int], SearchResponse | None]], size: int, rounds: int
) -> list[SearchTiming]:
    """Time searches for the queries of rising numbers in turn, ``size`` queries per round."""
    times = np.empty((len(searches), rounds * size))
    tasks = np.ones_like(times)
    for number in range(rounds * size):
        for index, search in enumerate(searches):
            start = time.perf_counter()
            response = search(number)
            times[index, number] = 1000 * (time.perf_counter() - start)
            if response is not None:
                tasks[index, number] = sum(route.searched for route in response.routing)
    medians = np.median(times.reshape(len(searches), rounds, size), axis=2)
    columns = (
        np.median(medians, axis=1),
        np.percentile(times, 99, axis=1),
        np.median(medians / medians[0], axis=1),
        np.median(tasks, axis=1),
        tasks.mean(axis=1),
    )
    return [SearchTiming(*map(float, row)) for row in zip(*columns, strict=True)]


def compare_latency(first: Search, second: Search, texts: Sequence[str], rounds: int) -> list[SearchTiming]:
    """Measure two searches with alternating queries, the first ones as a warm-up."""
    for text in texts[:_WARM_UP]:
        first(text)
        second(text)
    timed = texts[_WARM_UP:]
    searches = [lambda number: first(timed[number]), lambda number: second(timed[number])]
    return measure_in_turn(searches, len(timed) // rounds, rounds)


def lower_bound_search(library: SyntheticLibrary, backbone: Backbone) -> Callable[[str], None]:
    """Reduce a search to its necessary work: one encoding by the frozen text tower and one scan of all vectors."""
    snapshot = IndexSnapshot.open(ShardStore(library.settings.index_dir))
    (task,) = snapshot.tasks
    shard = snapshot.shard(task, fingerprint=snapshot.manifest.shards[task].fingerprint)

    @torch.inference_mode()
    def search(text: str) -> None:
        vector = encode_texts(backbone, backbone.tokenize([text]))[0, 0]
        shard.search(vector.float().numpy(), K)

    return search


def measure_recall(engine: SearchEngine, queries: Sequence[TargetedQuery], routes: str) -> float:
    """Compute R@10 as a share for a value of the search parameter ``routes``."""
    answers = ((query, engine.search(query.text, K, routes=routes).results) for query in queries)
    return fmean(f"v{query.target}" in {result.video_id for result in results} for query, results in answers)


class ServerLoad(NamedTuple):
    """Searches per second, and milliseconds of a processor that the server and the clients spend on each."""

    rate: float
    server: float
    client: float


@contextmanager
def running_server(configured: Settings) -> Iterator[tuple[str, int]]:
    """Run a server for a library during the ``with`` block; yields its URL and process ID."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    environment = os.environ | {
        "CINESTRATA_DATA_DIR": str(configured.data_dir),
        "CINESTRATA_DATABASE_URL": configured.database_url,  # all libraries share one catalog
    }
    if configured.backbone is not None:
        environment["CINESTRATA_BACKBONE"] = configured.backbone
    argv = [*COMMAND, "serve", "--port", str(port)]
    with subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL) as server:
        try:
            wait_until_ready(url, server)
            yield url, server.pid
        finally:
            server.terminate()


def measure_load(url: str, pid: int, texts: Sequence[str], clients: int) -> ServerLoad:
    """Search for all texts with clients that wait for each answer; raise RuntimeError if the server does not answer."""
    load = LoadGenerator(url, [f"/search?{urlencode({'q': text, 'k': 10})}" for text in texts])
    start, server, client = time.perf_counter(), processor_seconds(pid), time.process_time()
    records = load.saturate(clients)
    seconds = time.perf_counter() - start
    if statuses := {record.status for record in records} - {200}:
        raise RuntimeError(f"the server answers searches with {statuses}")
    return ServerLoad(
        rate=len(texts) / seconds,
        server=1000 * (processor_seconds(pid) - server) / len(texts),
        client=1000 * (time.process_time() - client) / len(texts),
    )
