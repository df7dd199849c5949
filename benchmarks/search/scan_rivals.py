"""Compare the speed of vector search: a shard against other libraries on the same vectors and queries in one process.

    export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
    python -m benchmarks.search.scan_rivals --rows 100000 --dim 512 --out folder

Every search runs in one thread. The order of the libraries rotates with each repetition, so that other load and cache
contents affect all of them. Results are medians; a ratio is the median of a rival's time over the shard's, so the shard
is faster where it is above one. The *bound* is the time to read the stored bytes once. Exact rivals are faiss
``IndexFlatIP``, numpy in single precision, and usearch (exact, both precisions) if installed.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt

from index.scanning.exact_scan import use_one_thread_per_search
from index.shard_store import ShardStore
from index.shards.faiss_vector_store import FaissShard
from index.store_options import AnnPolicy

_K = 10
_BATCHES = (1, 16, 64)  # queries per call

Vectors = npt.NDArray[np.float32]
Search = Callable[[Vectors], npt.NDArray[np.int64]]
Times = dict[str, dict[str, float]]  # median seconds and ratio by library


def measure(rows: int, dim: int, repeats: int) -> dict[str, Times]:
    """Measure median seconds and ratio to the shard, by queries per call and library; all must find what faiss does."""
    use_one_thread_per_search()
    faiss.omp_set_num_threads(1)
    dice = np.random.default_rng(0)
    queries, videos = (_unit(dice.standard_normal((count, dim), np.float32)) for count in (256, rows))
    with TemporaryDirectory() as folder:
        searches = {"shard": _shard_search(Path(folder), videos), **_exact_rivals(videos)}
        truth = searches["faiss flat"](queries[:10])
        for name, search in searches.items():
            results = np.concatenate([search(query[None]) for query in queries[:10]])
            hits = sum(len(np.intersect1d(*pair)) for pair in zip(results, truth, strict=True))
            if hits < 0.97 * truth.size:
                raise RuntimeError(f"{name} finds {hits} of {truth.size} results")
        stored = videos.astype(np.float16).view(np.uint64)
        searches["bound"] = lambda _: np.asarray(stored.max(keepdims=True))
        return {str(batch): _times(searches, queries, batch, repeats) for batch in _BATCHES}


def _unit(vectors: Vectors) -> Vectors:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def _shard_search(root: Path, videos: Vectors) -> Search:
    """Write the vectors as a shard, whose IDs are their rows, and return its search."""
    store = ShardStore(root, policy=AnnPolicy(exact_rows=len(videos)))
    ids = np.arange(len(videos))
    entry = store.write_shard(task="t", release="r", fingerprint="f", ids=ids, vectors=videos)
    shard = FaissShard([(store.shard_folder(entry.id), entry)], np.empty(0, np.int64), store.segment_cache)

    def search(queries: Vectors) -> npt.NDArray[np.int64]:
        one = len(queries) == 1
        hits = [shard.search(queries[0], _K)] if one else shard.search_many(queries, _K)
        return np.stack([each.ids for each in hits])

    return search


def _exact_rivals(videos: Vectors) -> dict[str, Search]:
    flat = faiss.IndexFlatIP(videos.shape[1])
    flat.add(videos)

    def by_numpy(queries: Vectors) -> npt.NDArray[np.int64]:
        scores = queries @ videos.T
        best = np.argpartition(scores, -_K, axis=1)[:, -_K:]
        order = np.argsort(-np.take_along_axis(scores, best, axis=1), axis=1)
        return np.take_along_axis(best, order, axis=1)

    rivals: dict[str, Search] = {
        "faiss flat": lambda queries: np.asarray(flat.search(queries, _K)[1]),
        "numpy": by_numpy,
    }
    if not find_spec("usearch"):
        print("usearch is not installed")
        return rivals
    usearch = import_module("usearch.index")

    for name, dtype in (("usearch f16", np.float16), ("usearch f32", np.float32)):
        stored = videos.astype(dtype)

        def by_usearch(queries: Vectors, stored: npt.NDArray[Any] = stored) -> npt.NDArray[np.int64]:
            converted = queries.astype(stored.dtype)
            matches = usearch.search(stored, converted, _K, usearch.MetricKind.IP, exact=True, threads=1)
            return np.asarray(matches.keys, np.int64).reshape(len(queries), -1)

        rivals[name] = by_usearch
    return rivals


def _times(searches: Mapping[str, Search], queries: Vectors, batch: int, repeats: int) -> Times:
    names = list(searches)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(-1, repeats):  # the first turn is a warm-up
        batch_queries = np.ascontiguousarray(
            np.take(queries, range(turn * batch, (turn + 1) * batch), 0, mode="wrap")
        )
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            start = perf_counter()
            searches[name](batch_queries)
            if turn >= 0:
                seconds[name].append(perf_counter() - start)
    shard = np.array(seconds["shard"])
    return {
        name: {"seconds": float(np.median(taken)), "ratio": float(np.median(np.array(taken) / shard))}
        for name, taken in seconds.items()
    }


def main() -> None:
    """Run the benchmark, print the results and write scan.json."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.search.scan_rivals", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path, required=True, help="folder for scan.json")
    options = parser.parse_args()
    if any(os.environ.get(name) != "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")):
        parser.error("set OMP_NUM_THREADS=1 and OPENBLAS_NUM_THREADS=1: the comparison uses one thread")
    measured = measure(options.rows, options.dim, options.repeats)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "scan.json").write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    for batch, times in measured.items():
        for name, row in times.items():
            print(f"{batch:>3} per call {name:12} {1e3 * row['seconds']:9.3f} ms {row['ratio']:6.2f} ×")


if __name__ == "__main__":
    main()
