"""Measure what a search costs in libraries of different sizes; the first part of ``make bench-search``.

    python -m benchmarks.search.search_cost --out DIR

The command writes search.json, with latency by library size. Every other row is a ratio to another measurement or a
bound in the same run, since absolute times depend on the machine. Two libraries are compared by alternating queries, so
that other load affects both equally. Every query is new to the engine, so no response comes from a cache.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple
from urllib.parse import urlencode

import numpy as np
import torch

from benchmarks.data.random_checkpoint import write_random_checkpoint
from benchmarks.ingest.embedded_service import process_memory, processor_seconds, running_service
from benchmarks.search.synthetic_library import SyntheticLibrary, TargetedQuery, make_library, prepare_catalog
from benchmarks.soak.load_generator import LoadGenerator
from cinestrata_schemas.search import SearchResponse
from index.index_snapshot import IndexSnapshot
from index.scanning.exact_scan import use_one_thread_per_search
from index.shard_store import ShardStore
from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import load_backbone
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
    """Time several searches in turn, for queries 0, 1, 2, …; a round has ``size`` queries."""
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
        vector = encode_texts(backbone, backbone.tokenize([text]))[0, 0].float().numpy()
        # Stored vectors have more coordinates, for words.
        shard.search(np.pad(vector, (0, shard.dim - len(vector))), K)

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


def running_server(configured: Settings) -> AbstractContextManager[tuple[str, int]]:
    """Run a server for a library during the ``with`` block; yields its URL and process ID."""
    environment = {
        "CINESTRATA_DATA_DIR": str(configured.data_dir),
        "CINESTRATA_DATABASE_URL": configured.database_url,  # all libraries share one catalog
    }
    if configured.backbone is not None:
        environment["CINESTRATA_BACKBONE"] = configured.backbone
    return running_service(["serve"], environment)


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


ROUNDS = 5


class Row(NamedTuple):
    """A measured ratio, its target as text and whether it is met, and the figures behind it."""

    name: str
    ratio: float
    met: bool
    target: str
    detail: str


class _Libraries:
    """Creates synthetic libraries on demand and keeps them, since several measurements share one."""

    def __init__(self, root: Path, queries: int) -> None:
        self.queries = queries
        self._root = root
        self._next_id = 1

    @cache  # noqa: B019 (one object, which lives as long as the process)
    def library(
        self, backbone: Backbone, tasks: int, vectors: int, captioned: float = 1.0
    ) -> SyntheticLibrary:
        first_id = self._next_id
        self._next_id += vectors
        folder = self._root / f"library-{first_id}"
        counts = {"tasks": tasks, "videos": vectors // tasks, "queries": 2 * self.queries}
        return make_library(folder, backbone, **counts, first_id=first_id, seed=vectors, captioned=captioned)


def measure_overhead(libraries: _Libraries, backbone: Backbone, vectors: int) -> Row:
    """Measure a search's latency against one encoding by the frozen tower plus one scan."""
    library = libraries.library(backbone, 1, vectors)
    first, second = compare_latency(
        lower_bound_search(library, backbone),
        _search(start_engine(library)),
        [query.text for query in library.queries[: libraries.queries]],
        ROUNDS,
    )
    name = f"search over its bound, {vectors:,} vectors, {backbone.name.split('/')[0]}"
    return Row(name, second.ratio, second.ratio <= 1.25, "≤ 1.25", f"{first.p50:.1f} and {second.p50:.1f} ms")


def measure_captions(libraries: _Libraries, backbone: Backbone, vectors: int) -> Row:
    """Measure a search's latency where half of the videos have no captions against one where all have."""
    captioned, half = (libraries.library(backbone, 1, vectors, share) for share in (1.0, 0.5))
    first, second = compare_latency(
        _search(start_engine(captioned)),
        _search(start_engine(half)),
        [query.text for query in captioned.queries[: libraries.queries]],
        ROUNDS,
    )
    name = f"half of {vectors:,} videos without captions over all captioned"
    return Row(name, second.ratio, second.ratio <= 1.1, "≤ 1.1", f"{first.p50:.1f} and {second.p50:.1f} ms")


def measure_throughput(libraries: _Libraries, backbone: Backbone, vectors: int) -> Row:
    """Measure throughput with sixteen clients against one client, with a new server per round."""
    library = libraries.library(backbone, 100, vectors)
    texts = [query.text for query in library.queries]
    warm, alone = len(texts) // 10, len(texts) // 5
    rounds: list[tuple[ServerLoad, ServerLoad]] = []
    for _ in range(ROUNDS):
        with running_server(library.settings) as (url, pid):
            measure_load(url, pid, texts[:warm], 4)
            one = measure_load(url, pid, texts[warm : warm + alone], 1)
            rounds.append((one, measure_load(url, pid, texts[warm + alone :], 16)))
    ratio = median(many.rate / one.rate for one, many in rounds)
    one, many = (ServerLoad(*map(median, zip(*side, strict=True))) for side in zip(*rounds, strict=True))
    name = f"searches per second, 16 clients over 1, {backbone.name.split('/')[0]}"
    detail = (
        f"{one.rate:.0f} and {many.rate:.0f} per second; a search takes {one.server:.2f} and {many.server:.2f} ms of a "
        f"processor, and its client {one.client:.2f} and {many.client:.2f} ms of the same {os.cpu_count()}"
    )
    return Row(name, ratio, ratio >= 3, "≥ 3", detail)


def measure_memory(libraries: _Libraries, backbone: Backbone, vectors: int) -> Row:
    """Measure a server's memory for its vectors, beyond that for a library of a thousand vectors."""
    usage = []
    for size in (1000, vectors):
        library = libraries.library(backbone, 1, size)
        with running_server(library.settings) as (url, pid):
            measure_load(url, pid, [query.text for query in library.queries[:100]], 4)
            usage.append(process_memory(pid))
    small, large = usage
    stored = 2 * (vectors - 1000) * backbone.dim
    ratio = (large.mapped + large.own - small.mapped - small.own) / stored
    detail = (
        f"{(large.own - small.own) / stored:.2f} of it private, the rest mapped and shared; without vectors a process "
        f"uses {(small.mapped + small.own) / 2**20:.0f} MiB, {small.own / 2**20:.0f} of them private"
    )
    name = f"memory for {vectors:,} × {backbone.dim} vectors over their bytes in half precision"
    return Row(name, ratio, ratio <= 1.2, "≤ 1.2", detail)


def measure_median(libraries: _Libraries, backbone: Backbone, tasks: int, vectors: int) -> float:
    """Measure a library's median latency in milliseconds."""
    library = libraries.library(backbone, tasks, vectors)
    texts = [query.text for query in library.queries[: libraries.queries]]
    return compare_latency(_search(start_engine(library)), lambda _: None, texts, ROUNDS)[0].p50


def _search(engine: SearchEngine) -> Search:
    return lambda text: engine.search(text, K)


def main() -> None:
    """Run all measurements, print the rows and write them."""
    summary = (__doc__ or "").split("\n")[0]
    parser = argparse.ArgumentParser("python -m benchmarks.search.search_cost", description=summary)
    parser.add_argument("--out", type=Path, default=Path("bench-search"), help="folder of the results")
    parser.add_argument("--vectors", type=int, default=10**6, help="vectors of the large libraries")
    parser.add_argument("--max-vectors", type=int, default=10**7, help="maximum number of vectors")
    parser.add_argument("--queries", type=int, default=500, help="queries per comparison")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # as the service does
    rows: list[Row] = []
    growth: list[tuple[int, float]] = []
    with tempfile.TemporaryDirectory(prefix="cinestrata-bench-") as folder:
        prepare_catalog(Path(folder))
        libraries = _Libraries(Path(folder), options.queries)
        tiny = load_backbone("tiny")
        shaped = load_backbone(write_random_checkpoint("ViT-B-32", Path(folder) / "vit-b-32"))
        small, large = options.vectors // 10, options.vectors
        for measure, backbone, vectors in (
            (measure_overhead, tiny, large),
            (measure_overhead, shaped, large),
            (measure_captions, tiny, large),
            (measure_throughput, tiny, small),
            (measure_memory, shaped, large),
        ):
            rows.append(row := measure(libraries, backbone, vectors))
            verdict = "" if row.met else ", not met"
            print(f"{row.name}: {row.ratio:.2f} ({row.target}{verdict}; {row.detail})", flush=True)
        for vectors in (10**power for power in range(4, 8) if 10**power <= options.max_vectors):
            growth.append((vectors, measure_median(libraries, tiny, 10, vectors)))
            print("10 tasks, {:,} vectors: {:.2f} ms".format(*growth[-1]), flush=True)
    facts = {"rows": [row._asdict() for row in rows], "vectors_p50": growth}
    (options.out / "search.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
