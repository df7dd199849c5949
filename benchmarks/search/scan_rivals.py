"""Compare the speed of vector search: a shard against other libraries on the same vectors and queries in one process.

    export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
    python -m benchmarks.search.scan_rivals --rows 100000 --dim 512 --out folder

Every search runs in one thread. The order of the libraries rotates with each repetition, so that other load and cache
contents affect all of them. Results are medians; a ratio is the median of a rival's time over the shard's, so the shard
is faster where it is above one. The *bound* is the time to read the stored bytes once.

Exact rivals are faiss ``IndexFlatIP``, numpy in single precision, and usearch (exact, both precisions) if installed.

Video vectors scatter around topics in a subspace of a few dozen dimensions, shifted by a common mean, as in CLIP's
image and text towers; a text is close to its video in that subspace, and has a different shift.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt

from index.hits import merge_hits
from index.scanning.exact_scan import use_one_thread_per_search
from index.scanning.search_options import AnnPolicy
from index.shard_store import ShardStore
from index.shards.faiss_vector_store import FaissShard

_K = 10
_RECALL_QUERIES = 10
_LATENT = 48  # dimensions of the subspace
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")

Vectors = npt.NDArray[np.float32]
Search = Callable[[Vectors], npt.NDArray[np.int64]]


@dataclass(frozen=True)
class Plan:
    """Sizes of the benchmark.

    Attributes:
        rows: Number of vectors.
        dim: Dimensions of a vector.
        shards: Number of shards; rivals search all vectors in one index.
        repeats: Repetitions of each measurement, each with another query.
        batches: Numbers of queries per call.
        seed: Seed for all random numbers.
    """

    rows: int = 100_000
    dim: int = 512
    shards: int = 1
    repeats: int = 15
    batches: tuple[int, ...] = (1, 16, 64)
    seed: int = 0


def texts_and_videos(rows: int, texts: int, dim: int, seed: int) -> tuple[Vectors, Vectors]:
    """Draw random unit vectors of texts ``[texts, dim]`` and videos ``[rows, dim]``; see the module docstring."""
    dice = np.random.default_rng(seed)
    basis = dice.normal(size=(_LATENT, dim)).astype(np.float32) / np.sqrt(dim)
    topics = dice.normal(size=(max(rows // 250, 4), _LATENT)).astype(np.float32)
    means = dice.normal(size=(2, dim)).astype(np.float32) / np.sqrt(dim) * 3
    owner = dice.integers(0, len(topics), rows)
    videos = np.empty((rows, dim), np.float32)
    latent = np.empty((rows, _LATENT), np.float32)
    for start in range(0, rows, 65_536):
        of = owner[start : start + 65_536]
        latent[start : start + len(of)] = topics[of] + 0.6 * dice.normal(size=(len(of), _LATENT))
        noise = dice.normal(size=(len(of), dim)).astype(np.float32) * (1.5 / np.sqrt(dim))
        videos[start : start + len(of)] = latent[start : start + len(of)] @ basis + means[0] + noise
    videos /= np.linalg.norm(videos, axis=1, keepdims=True)
    meant = latent[dice.integers(0, rows, texts)] + 0.4 * dice.normal(size=(texts, _LATENT))
    spoken = meant.astype(np.float32) @ basis + means[1] + dice.normal(size=(texts, dim)) / np.sqrt(dim)
    return (spoken / np.linalg.norm(spoken, axis=1, keepdims=True)).astype(np.float32), videos


def measure(plan: Plan, say: Callable[[str], object] = lambda line: None) -> dict[str, Any]:
    """Run all of a plan's measurements.

    Args:
        plan: Sizes of the benchmark.
        say: Called with one line before each step.

    Returns:
        The results as JSON values.
    """
    use_one_thread_per_search()
    faiss.omp_set_num_threads(1)
    queries, videos = texts_and_videos(plan.rows, 256, plan.dim, plan.seed)
    found: dict[str, Any] = {
        "plan": asdict(plan),
        "faiss": faiss.__version__,
        "numpy": np.__version__,
        "exact": {},
        "skipped": [],
    }
    with TemporaryDirectory() as folder:
        ours = _shards(Path(folder), videos, plan.shards)
        rivals = {"shard": _ours(ours), **_exact_rivals(videos, found["skipped"])}
        checked = queries[:_RECALL_QUERIES]
        truth = np.stack([rivals["faiss flat"](query[None])[0] for query in checked])
        stored = videos.astype(np.float16).view(np.uint64)
        for batch in plan.batches:
            say(f"{plan.rows} × {plan.dim}, {batch} per call")
            timed = dict(rivals)
            if batch == 1:
                timed["bound"] = lambda _: np.asarray(stored.max(keepdims=True))
            found["exact"][str(batch)] = _times(timed, queries, batch, plan.repeats)
        found["recall"] = {name: _recall(rival, checked, truth) for name, rival in rivals.items()}
    return found


def _shards(root: Path, videos: Vectors, count: int) -> dict[str, FaissShard]:
    """Write the vectors to a store with this many shards; a vector's ID is its row."""
    store = ShardStore(root, policy=AnnPolicy(exact_rows=len(videos)))
    shards: dict[str, FaissShard] = {}
    for number, ids in enumerate(np.array_split(np.arange(len(videos)), count)):
        entry = store.write_shard(
            task=str(number),
            release="r",
            fingerprint="f",
            ids=ids,
            vectors=videos[ids[0] : ids[-1] + 1],
        )
        parts = [(store.shard_folder(entry.id), entry)]
        shards[entry.task] = FaissShard(parts, np.empty(0, np.int64), store.segment_cache)
    return shards


def _ours(shards: Mapping[str, FaissShard]) -> Search:
    def search(queries: Vectors) -> npt.NDArray[np.int64]:
        if len(queries) == 1:
            each = {task: [shard.search(queries[0], _K)] for task, shard in shards.items()}
        else:
            each = {task: shard.search_many(queries, _K) for task, shard in shards.items()}
        if len(shards) == 1:
            return np.stack([hits.ids for hits in each["0"]])
        return np.array(
            [
                [hit.id for hit in merge_hits({task: hits[row] for task, hits in each.items()}, _K)]
                for row in range(len(queries))
            ]
        )

    return search


def _exact_rivals(videos: Vectors, skipped: list[str]) -> dict[str, Search]:
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
        skipped.append("usearch is not installed")
        return rivals
    usearch = import_module("usearch.index")

    for name, dtype in (("usearch f16", np.float16), ("usearch f32", np.float32)):
        stored = videos.astype(dtype)

        def by_usearch(queries: Vectors, stored: npt.NDArray[Any] = stored) -> npt.NDArray[np.int64]:
            found = usearch.search(
                stored, queries.astype(stored.dtype), _K, usearch.MetricKind.IP, exact=True, threads=1
            )
            return np.asarray(found.keys, np.int64).reshape(len(queries), -1)

        rivals[name] = by_usearch
    return rivals


def _times(
    rivals: Mapping[str, Search], queries: Vectors, batch: int, repeats: int
) -> dict[str, dict[str, float]]:
    """Measure the median seconds per call and the median ratio to the shard, by library."""
    names = list(rivals)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(-1, repeats):  # the first turn is a warm-up
        batch_queries = np.ascontiguousarray(
            np.take(queries, range(turn * batch, (turn + 1) * batch), 0, mode="wrap")
        )
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            start = time.perf_counter()
            rivals[name](batch_queries)
            if turn >= 0:
                seconds[name].append(time.perf_counter() - start)
    return {
        name: {
            "seconds": float(np.median(taken)),
            "ratio": float(np.median(np.array(taken) / np.array(seconds["shard"]))),
        }
        for name, taken in seconds.items()
    }


def _recall(search: Search, queries: Vectors, truth: npt.NDArray[np.int64]) -> float:
    """Measure a search's recall, one query per call."""
    found = [len(set(search(query[None])[0]) & set(best)) for query, best in zip(queries, truth, strict=True)]
    return sum(found) / truth.size


def table(found: Mapping[str, Any]) -> str:
    """Format the results as text."""
    lines = []
    for batch, times in found["exact"].items():
        lines.append(f"exact, {batch} per call")
        lines += [_line(name, row, found["recall"].get(name)) for name, row in times.items()]
    return "\n".join([*lines, *found["skipped"]])


def _line(name: str, row: Mapping[str, Any], recall: float | None) -> str:
    end = "" if recall is None else f"   recall {recall:.3f}"
    return f"  {name:12} {row['seconds'] * 1e3:9.3f} ms   {row['ratio']:6.2f} ×{end}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, run the benchmark, print the results and write scan.json."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.search.scan_rivals", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--rows", type=int, default=Plan.rows)
    parser.add_argument("--dim", type=int, default=Plan.dim)
    parser.add_argument("--shards", type=int, default=Plan.shards)
    parser.add_argument("--repeats", type=int, default=Plan.repeats)
    parser.add_argument("--batches", type=int, nargs="+", default=list(Plan.batches))
    parser.add_argument("--out", type=Path, required=True, help="folder for scan.json")
    options = vars(parser.parse_args(arguments))
    out: Path = options.pop("out")
    if any(os.environ.get(name) != "1" for name in _THREAD_VARIABLES):
        parser.error(
            f"set {' and '.join(f'{name}=1' for name in _THREAD_VARIABLES)}: the comparison uses one thread"
        )
    plan = Plan(**{**options, "batches": tuple(options["batches"])})
    found = measure(plan, say=lambda line: sys.stderr.write(line + "\n"))
    out.mkdir(parents=True, exist_ok=True)
    (out / "scan.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(table(found) + "\n")


if __name__ == "__main__":
    main()
