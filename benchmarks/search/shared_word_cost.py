"""Measure what a search costs in libraries whose domains share their words; a part of ``make bench-search``.

    python -m benchmarks.search.shared_word_cost --out DIR

The command writes shared-words.json and shared-words.md: latency, searched tasks and recall with 1, 10, 100 and 1,000
domains of the default method, and latency by kind of query. Queries to all libraries alternate, and ratios are medians
over rounds, so that other load on the machine affects all libraries equally. Every timed text is new to the engine.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np
import structlog
import torch

from benchmarks.reporting.markdown_tables import markdown_table
from benchmarks.search.search_latency import K, recall_by_routing, start_engine
from benchmarks.search.shared_word_library import make_shared_word_library
from benchmarks.search.synthetic_library import SyntheticLibrary
from models.backbones.backbone_loading import load_backbone
from service.catalog.migrations import upgrade
from service.core.settings import settings
from service.search.engine import SearchEngine

_ROUTES = ("auto", "all")
_WARM_UP = 3  # searches per library before the first measurement
_RARE = 2  # uses of a rare word in the queries


@dataclass(frozen=True)
class CostRow:
    """What searches cost in one library.

    Attributes:
        routing: Share of queries whose own domain is the likeliest.
        p50: Median latency of ``auto`` in milliseconds, over rounds.
        p99: 99th percentile latency of ``auto`` in milliseconds, over all queries.
        p50_all: Median latency of ``all`` in milliseconds, over rounds.
        encoding: Median time in milliseconds to encode the text alone.
        searched: Mean share of domains that ``auto`` searches.
        searched_all: Mean share of domains that ``all`` searches.
        recall: R@10 of ``auto``.
        recall_all: R@10 of ``all``.
        ratio: p50 over the first library's, median over rounds.
        ratio_all: The same with ``all``.
        bytes_per_task: Memory of a domain's query map.
    """

    tasks: int
    routing: float
    p50: float
    p99: float
    p50_all: float
    encoding: float
    searched: float
    searched_all: float
    recall: float
    recall_all: float
    ratio: float
    ratio_all: float
    bytes_per_task: float


@dataclass(frozen=True)
class KindRow:
    """What searches of one kind cost in one library.

    Attributes:
        p50: Median latency in milliseconds.
        ratio: p50 over the first library's, median over rounds.
        searched: Median number of searched domains.
    """

    kind: str
    tasks: int
    p50: float
    ratio: float
    searched: float


def _queries_by_kind(library: SyntheticLibrary, count: int) -> dict[str, list[str]]:
    """Make up to ``count`` distinct queries of each kind from the library's queries."""
    texts = [query.text for query in library.queries]
    frequencies = Counter(word for text in texts for word in text.split())
    pairs = {" ".join(text.split()[:2]): None for text in texts}
    return {
        "captions": texts[:count],
        "pairs of words": list(pairs)[:count],
        "words of one or two queries": [word for word, uses in frequencies.items() if uses <= _RARE][:count],
        "most frequent words": [word for word, _ in frequencies.most_common(count)],
    }


def measure_kinds(
    engines: Sequence[SearchEngine], libraries: Sequence[SyntheticLibrary], rounds: int, count: int
) -> list[KindRow]:
    """Measure the latency of ``count`` queries of each kind in each library; arguments as :func:`measure_costs`."""
    queries = [_queries_by_kind(library, count) for library in libraries]
    rows = []
    for kind in queries[0]:
        size = min(len(own[kind]) for own in queries) // rounds
        times = [[list[float]() for _ in range(rounds)] for _ in engines]
        searched = [list[int]() for _ in engines]
        for row in range(size * rounds):
            for engine, own, per_round, domains in zip(engines, queries, times, searched, strict=True):
                start = time.perf_counter()
                response = engine.search(own[kind][row], K)
                per_round[row // size].append(1000 * (time.perf_counter() - start))
                domains.append(sum(route.searched for route in response.routing))
        medians = [[median(each) for each in per_round] for per_round in times]
        for library, p50s, domains in zip(libraries, medians, searched, strict=True):
            ratio = median(a / b for a, b in zip(p50s, medians[0], strict=True))
            rows.append(KindRow(kind, library.tasks, median(p50s), ratio, median(domains)))
    return rows


def measure_costs(
    engines: Sequence[SearchEngine], libraries: Sequence[SyntheticLibrary], rounds: int
) -> list[CostRow]:
    """Measure latency, searched tasks and recall in each library.

    Args:
        engines: An engine for each library.
        libraries: Libraries to compare; ratios refer to the first.
        rounds: Number of rounds. A library's queries are distributed over them.
    """
    size = min(len(library.queries) for library in libraries) // rounds
    times: dict[tuple[int, str], list[list[float]]] = {}
    searched: dict[tuple[int, str], list[float]] = {}
    encoding: list[float] = []
    for engine, library in zip(engines, libraries, strict=True):
        for number in range(_WARM_UP):
            engine.search(f"{library.queries[number].text} {number}", K)
    for number in range(rounds):
        for places in (times.setdefault((i, r), []) for i in range(len(engines)) for r in _ROUTES):
            places.append([])
        for row in range(number * size, (number + 1) * size):
            for place, (engine, library) in enumerate(zip(engines, libraries, strict=True)):
                for routes in _ROUTES:
                    text = f"{library.queries[row].text} {routes}"  # a new text for each timed search
                    start = time.perf_counter()
                    response = engine.search(text, K, routes=routes)
                    times[place, routes][-1].append(1000 * (time.perf_counter() - start))
                    share = sum(route.searched for route in response.routing) / library.tasks
                    searched.setdefault((place, routes), []).append(share)
            encoding.append(_encoding_time(engines[0], f"{libraries[0].queries[row].text} alone"))
    rows = []
    for place, (engine, library) in enumerate(zip(engines, libraries, strict=True)):
        medians = {routes: [median(each) for each in times[place, routes]] for routes in _ROUTES}
        first = {routes: [median(each) for each in times[0, routes]] for routes in _ROUTES}
        ratios = {
            routes: median(a / b for a, b in zip(medians[routes], first[routes], strict=True))
            for routes in _ROUTES
        }
        recalls = recall_by_routing(engine, library.queries, list(_ROUTES))
        encoder = engine.snapshots.current().query_vectors.encoder
        rows.append(
            CostRow(
                tasks=library.tasks,
                routing=_routing_accuracy(engine, library),
                p50=median(medians["auto"]),
                p99=float(np.percentile(np.concatenate(times[place, "auto"]), 99)),
                p50_all=median(medians["all"]),
                encoding=median(encoding),
                searched=float(np.mean(searched[place, "auto"])),
                searched_all=float(np.mean(searched[place, "all"])),
                recall=recalls["auto"],
                recall_all=recalls["all"],
                ratio=ratios["auto"],
                ratio_all=ratios["all"],
                bytes_per_task=encoder.pinned_bytes / library.tasks,
            )
        )
    return rows


def _encoding_time(engine: SearchEngine, text: str) -> float:
    """Time the encoding of one new text by the frozen tower, with tokenization, in milliseconds."""
    encoder = engine.snapshots.current().query_vectors.encoder
    start = time.perf_counter()
    encoder.encode_with_backbone([text])
    return 1000 * (time.perf_counter() - start)


def _routing_accuracy(engine: SearchEngine, library: SyntheticLibrary) -> float:
    """Compute the share of queries whose own domain is the likeliest."""
    snapshot = engine.snapshots.current()
    task_of = {video: task for task, shard in snapshot.shards.items() for video in shard.ids.tolist()}
    tasks = list(snapshot.shards)
    tokens = snapshot.query_vectors.tokens([query.text for query in library.queries])
    routing = snapshot.route(tokens, [tasks] * len(library.queries))
    likeliest = [routed.tasks[0] for routed in routing]
    return float(np.mean([task_of[q.target] == t for q, t in zip(library.queries, likeliest, strict=True)]))


def _table(rows: Sequence[CostRow]) -> str:
    header = ["domains", "routing@1", "p50 in ms", "p99", "p50 over one domain", "domains searched"]
    header += [
        f"R@{K} over that of `all`",
        f"R@{K} of `all`",
        "p50 of `all` over one domain",
        "memory per domain",
    ]
    cells = [
        [
            f"{row.tasks:,}",
            f"{100 * row.routing:.0f} %",
            f"{row.p50:.1f}",
            f"{row.p99:.1f}",
            f"{row.ratio:.2f}",
            f"{100 * row.searched:.0f} %",
            f"{row.recall / row.recall_all:.3f}",
            f"{100 * row.recall_all:.1f}",
            f"{row.ratio_all:.2f}",
            f"{row.bytes_per_task / 1024:.0f} KiB",
        ]
        for row in rows
    ]
    return markdown_table(header, cells)


def _kind_table(rows: Sequence[KindRow]) -> str:
    header = ["queries", "domains", "p50 in ms", "p50 over the first library", "domains searched"]
    cells = [
        [row.kind, f"{row.tasks:,}", f"{row.p50:.1f}", f"{row.ratio:.2f}", f"{row.searched:g}"]
        for row in rows
    ]
    return markdown_table(header, cells)


def main() -> None:
    """Make the libraries, measure them, print and write the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.search.shared_word_cost", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--out", type=Path, default=Path("bench-search"), help="folder of the results")
    parser.add_argument("--tasks", type=int, nargs="+", default=[1, 10, 100, 1000], help="numbers of domains")
    parser.add_argument("--videos", type=int, default=100, help="videos per domain")
    parser.add_argument("--queries", type=int, default=100, help="queries per library")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of the measurement")
    parser.add_argument("--seed", type=int, default=1, help="seed of the libraries")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    torch.set_num_threads(1)  # as the service does
    with tempfile.TemporaryDirectory(prefix="cinestrata-bench-") as folder:
        os.environ |= {"CINESTRATA_DATA_DIR": folder, "CINESTRATA_LOG_LEVEL": "ERROR"}
        settings.cache_clear()
        upgrade(settings())
        backbone = load_backbone("small")
        libraries: list[SyntheticLibrary] = []
        for tasks in options.tasks:
            libraries.append(
                make_shared_word_library(
                    Path(folder) / f"shared-{tasks}",
                    backbone,
                    tasks=tasks,
                    videos=options.videos,
                    queries=options.queries,
                    first_id=1 + sum(library.vectors for library in libraries),
                    seed=options.seed * 10_000 + tasks,
                )
            )
        engines = [start_engine(library) for library in libraries]
        # First, because the other measurement ends with searches for the same captions.
        kinds = measure_kinds(engines, libraries, options.rounds, options.queries)
        rows = measure_costs(engines, libraries, options.rounds)
        engine = backbone.engine
    note = f"The encoding of a text alone takes {rows[0].encoding:.1f} ms in {engine}, the median of the same run."
    report = f"{_table(rows)}\n{note}\n\n{_kind_table(kinds)}\n"
    print(report)
    (options.out / "shared-words.md").write_text(report, encoding="utf-8")
    facts = {
        "rows": [asdict(row) for row in rows],
        "kinds": [asdict(row) for row in kinds],
        "arguments": {n: str(v) for n, v in vars(options).items()},
    }
    (options.out / "shared-words.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
