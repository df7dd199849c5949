"""Measure what a search costs in libraries of different sizes; the first part of ``make bench-search``.

    python -m benchmarks.search.search_cost --out DIR

The command writes search.json and search.md, with latency by library size. Every other row is a ratio to another
measurement or a bound in the same run, since absolute times depend on the machine.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from statistics import median

import structlog
import torch

from benchmarks.data.random_checkpoint import write_random_checkpoint
from benchmarks.reporting.markdown_tables import markdown_table
from benchmarks.search.search_latency import (
    K,
    compare_latency,
    lower_bound_search,
    recall_by_routing,
    start_engine,
)
from benchmarks.search.server_load import ServerLoad, measure_load, process_memory, running_server
from benchmarks.search.synthetic_library import SyntheticLibrary, make_library
from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import load_backbone
from service.catalog.migrations import upgrade
from service.core.settings import settings
from service.search.engine import SearchEngine

ROUNDS = 5
_MILLION = 10**6


@dataclass(frozen=True)
class Row:
    """A row in the table.

    Attributes:
        name: Name of the measurement.
        target: Target for the ratio, as text.
        met: Whether the target is met.
        detail: Figures behind the ratio.
    """

    name: str
    ratio: float
    target: str
    met: bool
    detail: str


class _LibraryCache:
    """Creates synthetic libraries on demand and keeps them, since several measurements share one."""

    def __init__(self, root: Path, captions: int) -> None:
        self.root = root
        self.captions = captions
        self._libraries: dict[tuple[str, int, int], SyntheticLibrary] = {}
        self._next_id = 1

    def library(self, backbone: Backbone, tasks: int, vectors: int) -> SyntheticLibrary:
        key = backbone.name, tasks, vectors
        if key not in self._libraries:
            folder = self.root / f"library-{len(self._libraries)}"
            self._libraries[key] = make_library(
                folder,
                backbone,
                tasks=tasks,
                vectors=vectors,
                captions=self.captions,
                first_id=self._next_id,
                seed=self._next_id,
            )
            self._next_id += vectors
        return self._libraries[key]


def measure_hundred_tasks(
    libraries: _LibraryCache, backbone: Backbone, vectors: int, queries: int
) -> list[Row]:
    """Measure latency with a hundred tasks against one task with the same number of vectors."""
    one, hundred = (libraries.library(backbone, tasks, vectors) for tasks in (1, 100))
    engines = start_engine(one), start_engine(hundred)
    pairs = [(a.text, b.text) for a, b in zip(one.queries, hundred.queries, strict=False)][:queries]
    comparison = compare_latency(_search(engines[0]), _search(engines[1]), pairs, ROUNDS)
    rows = [
        Row(
            f"100 tasks over 1, {vectors:,} vectors, {backbone.name.split('/')[0]}: {name}",
            ratio,
            "≤ 1.2",
            ratio <= 1.2,
            f"{first:.1f} and {second:.1f} ms; {comparison.second.tasks:.1f} of 100 tasks encoded",
        )
        for name, ratio, first, second in (
            ("p50", comparison.p50_ratio, comparison.first.p50, comparison.second.p50),
            ("p99", comparison.p99_ratio, comparison.first.p99, comparison.second.p99),
        )
    ]
    recalls = recall_by_routing(engines[1], hundred.queries[queries:], ["auto", "all"])
    share = recalls["auto"] / recalls["all"]
    detail = f"R@{K} {100 * recalls['auto']:.1f} and {100 * recalls['all']:.1f}"
    rows.append(Row(f"R@{K} of `auto` over `all` routes, 100 tasks", share, "≥ 0.99", share >= 0.99, detail))
    vague = [(text, text) for text in hundred.vague_queries]
    worst = compare_latency(_search(engines[0]), _search(engines[1]), vague, ROUNDS)
    rows.append(
        Row(
            "the same for queries without a word of any task: p50",
            worst.p50_ratio,
            "none",
            True,
            f"{worst.first.p50:.1f} and {worst.second.p50:.1f} ms; {worst.second.tasks:.1f} tasks encoded",
        )
    )
    return rows


def measure_overhead(libraries: _LibraryCache, backbone: Backbone, vectors: int, queries: int) -> Row:
    """Measure a search's latency against one encoding by the frozen tower plus one scan."""
    library = libraries.library(backbone, 1, vectors)
    comparison = compare_latency(
        lower_bound_search(library, backbone),
        _search(start_engine(library)),
        [(a.text, a.text) for a in library.queries[:queries]],
        ROUNDS,
    )
    return Row(
        f"search over its bound, {vectors:,} vectors, {backbone.name.split('/')[0]}",
        comparison.p50_ratio,
        "≤ 1.25",
        comparison.p50_ratio <= 1.25,
        f"{comparison.first.p50:.1f} and {comparison.second.p50:.1f} ms",
    )


def measure_throughput(libraries: _LibraryCache, backbone: Backbone, vectors: int) -> Row:
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
    one, many = (
        ServerLoad(
            *(median(values) for values in zip(*(astuple(each[place]) for each in rounds), strict=True))
        )
        for place in (0, 1)
    )
    return Row(
        f"searches per second, 16 clients over 1, {backbone.name.split('/')[0]}",
        ratio,
        "≥ 3",
        ratio >= 3,
        f"{one.rate:.0f} and {many.rate:.0f} per second; a search takes {one.server:.2f} and {many.server:.2f} ms of a "
        f"processor, and its client {one.client:.2f} and {many.client:.2f} ms of the same {os.cpu_count()}",
    )


def measure_memory(libraries: _LibraryCache, backbone: Backbone, vectors: int) -> Row:
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
    own = (large.own - small.own) / stored
    return Row(
        f"memory for {vectors:,} × {backbone.dim} vectors over their bytes in half precision",
        ratio,
        "≤ 1.2",
        ratio <= 1.2,
        f"{own:.2f} of it private, the rest mapped and shared; without vectors a process uses "
        f"{(small.mapped + small.own) / 2**20:.0f} MiB, {small.own / 2**20:.0f} of them private",
    )


def measure_growth(
    libraries: _LibraryCache, backbone: Backbone, sizes: Sequence[tuple[int, int]], queries: int
) -> list[float]:
    """Measure median latency in milliseconds for libraries of (tasks, vectors)."""
    latencies: list[float] = []
    for tasks, vectors in sizes:
        library = libraries.library(backbone, tasks, vectors)
        texts = [(query.text, query.text) for query in library.queries[:queries]]
        engine = start_engine(library)
        latencies.append(compare_latency(_search(engine), lambda _: None, texts, ROUNDS).first.p50)
    return latencies


def _search(engine: SearchEngine):  # type: ignore[no-untyped-def]
    return lambda text: engine.search(text, K)


def main() -> None:
    """Run all measurements, then print and write the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.search.search_cost", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--out", type=Path, default=Path("bench-search"), help="folder of the results")
    parser.add_argument("--vectors", type=int, default=_MILLION, help="vectors of the large libraries")
    parser.add_argument("--max-tasks", type=int, default=1000, help="maximum number of tasks")
    parser.add_argument("--max-vectors", type=int, default=10**7, help="maximum number of vectors")
    parser.add_argument("--queries", type=int, default=500, help="queries per comparison")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    torch.set_num_threads(1)  # as the service does
    with tempfile.TemporaryDirectory(prefix="cinestrata-bench-") as folder:
        root = Path(folder)
        os.environ |= {"CINESTRATA_DATA_DIR": folder, "CINESTRATA_LOG_LEVEL": "ERROR"}
        settings.cache_clear()
        upgrade(settings())
        libraries, tiny, shaped = (
            _LibraryCache(root, 2 * options.queries),
            load_backbone("tiny"),
            load_backbone(write_random_checkpoint("ViT-B-32", root / "vit-b-32")),
        )
        small, queries = options.vectors // 10, options.queries
        rows: list[Row] = []
        for measured in (
            lambda: measure_hundred_tasks(libraries, tiny, small, queries),
            lambda: measure_hundred_tasks(libraries, shaped, small, queries // 2),
            lambda: [measure_overhead(libraries, tiny, options.vectors, queries)],
            lambda: [measure_overhead(libraries, shaped, options.vectors, queries // 2)],
            lambda: [measure_throughput(libraries, tiny, small)],
            lambda: [measure_throughput(libraries, shaped, small)],
            lambda: [measure_memory(libraries, shaped, options.vectors)],
        ):
            for row in measured():
                print(f"{row.name}: {row.ratio:.2f} ({row.target}; {row.detail})", flush=True)
                rows.append(row)
        tasks = [count for count in (1, 3, 10, 30, 100, 300, 1000) if count <= options.max_tasks]
        vectors = [10**power for power in range(4, 8) if 10**power <= options.max_vectors]
        by_tasks = measure_growth(libraries, tiny, [(count, small) for count in tasks], queries)
        by_vectors = measure_growth(libraries, tiny, [(10, count) for count in vectors], queries // 2)
    header = ["measured", "ratio", "target", "met", "figures"]
    cells = [[r.name, f"{r.ratio:.2f}", r.target, "yes" if r.met else "**no**", r.detail] for r in rows]
    growth = [
        *([f"{small:,}", f"{count:,}", f"{p50:.2f}"] for count, p50 in zip(tasks, by_tasks, strict=True)),
        *([f"{count:,}", "10", f"{p50:.2f}"] for count, p50 in zip(vectors, by_vectors, strict=True)),
    ]
    engines = f"`tiny` runs in {tiny.engine}, ViT-B/32 in {shaped.engine}.\n"
    tables = (engines, markdown_table(header, cells), markdown_table(["vectors", "tasks", "p50 ms"], growth))
    (options.out / "search.md").write_text("\n".join(tables), encoding="utf-8")
    facts = {
        "rows": [asdict(row) for row in rows],
        "p50_by_tasks": dict(zip(map(str, tasks), by_tasks, strict=True)),
        "p50_by_vectors": dict(zip(map(str, vectors), by_vectors, strict=True)),
        "machine": {"system": platform.platform(), "cpus": os.cpu_count(), "engine": tiny.engine},
        "arguments": {name: str(value) for name, value in vars(options).items()},
    }
    (options.out / "search.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    print(f"Written to {options.out}.")


if __name__ == "__main__":
    main()
