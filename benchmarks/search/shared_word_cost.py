"""Measure what a search costs in libraries whose domains share their words; a part of ``make bench-search``.

    python -m benchmarks.search.shared_word_cost --out DIR

The command prints and writes shared-words.json: latency, searched domains and recall by number of domains of the
default method, latency by kind of query, and the time to plan. Queries to all libraries alternate, and ratios are
medians over rounds, so that other load on the machine affects all libraries equally. Every timed text is new to the
engine.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import torch

from benchmarks.reporting.markdown_tables import write_json
from benchmarks.search.search_cost import K, SearchTiming, measure_in_turn, measure_recall, start_engine
from benchmarks.search.synthetic_library import SyntheticLibrary, make_library, prepare_catalog
from cinestrata_schemas.search import MAX_BATCH_QUERIES, SearchQuery
from models.backbones.backbone_loading import load_backbone
from models.routing.router import Router
from models.routing.routing_profiles import RoutingProfiles
from service.search.engine import SearchEngine
from service.search.library_words import VideoTasks
from service.search.search_request import parse_requests
from service.search.text_search.executor import start_searches

_ROUTES = ("auto", "all")
_WARM_UP = 3  # searches per library before the first measurement
_PLANNED = (100, 1000, 10_000)  # domains
_RARE = 2  # uses of a rare word in the queries

Row = dict[str, Any]


def _queries_by_kind(library: SyntheticLibrary) -> dict[str, list[str]]:
    """Make distinct queries of each kind from the library's queries."""
    texts = [query.text for query in library.queries]
    frequencies = Counter(word for text in texts for word in text.split())
    return {
        "captions": texts,
        "pairs of words": list(dict.fromkeys(" ".join(text.split()[:2]) for text in texts)),
        "words of one or two queries": [word for word, uses in frequencies.items() if uses <= _RARE],
        "most frequent words": [word for word, _ in frequencies.most_common(len(texts))],
    }


def _figures(timing: SearchTiming) -> Row:
    """Select the figures of a row."""
    row = timing._asdict()
    return {name: row[name] for name in ("p50", "p99", "ratio")} | {"domains_searched": timing.median_tasks}


def measure_kinds(engines: list[SearchEngine], libraries: list[SyntheticLibrary], rounds: int) -> list[Row]:
    """Measure the latency of queries of each kind in each library."""
    queries = [_queries_by_kind(library) for library in libraries]
    rows = []
    for kind in queries[0]:
        size = min(len(texts_of[kind]) for texts_of in queries) // rounds
        searches = [
            lambda number, engine=engine, texts=texts_of[kind]: engine.search(texts[number], K)
            for engine, texts_of in zip(engines, queries, strict=True)
        ]
        measured = zip(libraries, measure_in_turn(searches, size, rounds), strict=True)
        rows += [
            {"kind": kind, "domains": library.tasks, **_figures(timing), "mean_searched": timing.mean_tasks}
            for library, timing in measured
        ]
    return rows


def measure_costs(engines: list[SearchEngine], libraries: list[SyntheticLibrary], rounds: int) -> list[Row]:
    """Measure latency, searched domains and recall in each library; ratios refer to the first."""
    size = min(len(library.queries) for library in libraries) // rounds
    pairs = list(zip(engines, libraries, strict=True))
    for engine, library in pairs:
        for number in range(_WARM_UP):
            engine.search(f"{library.queries[number].text} {number}", K)
    rows: list[Row] = [
        {"domains": library.tasks, "routing": _routing_accuracy(engine, library)} for engine, library in pairs
    ]
    for routes in _ROUTES:
        searches = [
            lambda number, engine=engine, library=library, routes=routes: engine.search(
                f"{library.queries[number].text} {routes}", K, routes=routes
            )
            for engine, library in pairs
        ]
        measured = measure_in_turn(searches, size, rounds)
        for row, (engine, library), timing in zip(rows, pairs, measured, strict=True):
            row[routes] = {
                **_figures(timing),
                "share_searched": timing.mean_tasks / library.tasks,
                "recall": measure_recall(engine, library.queries, routes),
            }
    return rows


def _encoding_milliseconds(engine: SearchEngine, texts: Sequence[str]) -> float:
    """Measure the median time to encode one new text by the frozen tower, with tokenization."""
    encoder = engine.snapshots.current().distinct_lineages[0].query_cache.encoder
    times = []
    for text in texts:
        start = time.perf_counter()
        encoder.encode_with_backbone([f"{text} alone"])
        times.append(1000 * (time.perf_counter() - start))
    return median(times)


def _routing_accuracy(engine: SearchEngine, library: SyntheticLibrary) -> float:
    """Compute the share of queries whose own domain is the likeliest."""
    snapshot = engine.snapshots.current()
    task_of = {video: task for task, shard in snapshot.shards.items() for video in shard.ids.tolist()}
    scope = snapshot.scope(snapshot.nonempty_tasks)
    routings = snapshot.route([query.text for query in library.queries], [scope] * len(library.queries))
    return fmean(
        task_of[query.target] == snapshot.task_ids[routing.log_weights.argmax()]
        for query, routing in zip(library.queries, routings, strict=True)
    )


def measure_planning(engine: SearchEngine, queries: Sequence[str]) -> list[Row]:
    """Measure the median time until the first round of a search is planned, without words and encoding.

    The domains are those of the library, repeated; each has routing evidence of its own in the router.
    """
    snapshot = engine.snapshots.current()
    requests = parse_requests([SearchQuery(q=query) for query in queries], engine.settings, is_batch=True)
    rows = []
    for count in _PLANNED:
        copies = -(-count // len(snapshot.shards))
        keys = {f"{task}~{copy}": (task, copy) for copy in range(copies) for task in snapshot.shards}
        profiles = snapshot.router.profiles
        grown = replace(
            snapshot,
            shards={key: snapshot.shards[task] for key, (task, _) in keys.items()},
            lineages={key: snapshot.lineages[task] for key, (task, _) in keys.items()},
            router=Router(RoutingProfiles.concatenate([profiles] * copies)),
            router_indices={
                key: snapshot.router_indices[task] + copy * len(profiles.has_captions)
                for key, (task, copy) in keys.items()
            },
            video_tasks=VideoTasks([np.empty(0, np.int64)] * len(keys)),
        )
        times = []
        for request in [*requests, *requests]:  # the first time, texts are encoded
            start = time.perf_counter()
            start_searches(grown, [request], engine.read_cache, with_words=False)
            times.append(1000 * (time.perf_counter() - start))
        rows.append({"domains": len(keys), "p50": median(times[len(requests) :])})
    return rows


def main() -> None:
    """Make the libraries, measure them, print and write the rows."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.search.shared_word_cost", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--out", type=Path, default=Path("bench-search"), help="folder of the results")
    parser.add_argument("--tasks", type=int, nargs="+", default=[1, 10, 100, 1000], help="numbers of domains")
    parser.add_argument("--videos", type=int, default=100, help="videos per domain")
    parser.add_argument("--queries", type=int, default=100, help="queries per library")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of the measurement")
    options = parser.parse_args()
    torch.set_num_threads(1)  # as the service does
    with tempfile.TemporaryDirectory(prefix="cinestrata-bench-") as folder:
        prepare_catalog(Path(folder))
        backbone = load_backbone("small")
        libraries: list[SyntheticLibrary] = []
        for tasks in options.tasks:
            libraries.append(
                make_library(
                    Path(folder) / f"shared-{tasks}",
                    backbone,
                    tasks=tasks,
                    videos=options.videos,
                    queries=options.queries,
                    first_id=1 + sum(library.vectors for library in libraries),
                    seed=10_000 + tasks,
                )
            )
        engines = [start_engine(library) for library in libraries]
        texts = [query.text for query in libraries[-1].queries]
        facts = {
            "planning": measure_planning(engines[-1], texts[:MAX_BATCH_QUERIES]),
            # First, because the other measurement ends with searches for the same captions.
            "kinds": measure_kinds(engines, libraries, options.rounds),
            "rows": measure_costs(engines, libraries, options.rounds),
            "encoding_ms": _encoding_milliseconds(engines[0], [query.text for query in libraries[0].queries]),
        }
    write_json(options.out / "shared-words.json", facts)


if __name__ == "__main__":
    main()
