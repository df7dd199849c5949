"""Measure what a search costs in libraries of different sizes; the first part of ``make bench-search``.

    python -m benchmarks.search.search_cost --out DIR

The command writes search.json, with latency by library size. Every other row is a ratio to another measurement or a
bound in the same run, since absolute times depend on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from functools import cache
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch

from benchmarks.data.random_checkpoint import write_random_checkpoint
from benchmarks.ingest.embedded_service import process_memory
from benchmarks.search.search_timing import (
    K,
    ServerLoad,
    compare_latency,
    lower_bound_search,
    measure_load,
    running_server,
    start_engine,
)
from benchmarks.search.synthetic_library import SyntheticLibrary, make_library, prepare_catalog
from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import load_backbone
from service.search.engine import SearchEngine

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


def _search(engine: SearchEngine):  # type: ignore[no-untyped-def]
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
