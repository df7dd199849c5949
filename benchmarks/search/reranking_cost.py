"""Cost of re-ranking by frame vectors, relative to the same search without it.

    python -m benchmarks.search.reranking_cost

Libraries of the method ``analytic`` with 1 and 100 domains, whose shards have eight frame vectors per video. Searches
with and without re-ranking alternate, every text is new to the engine, and ratios are medians over rounds.
"""

from __future__ import annotations

import argparse
import logging
import os
import tempfile
from functools import partial
from pathlib import Path

import structlog
import torch

from benchmarks.reporting.markdown_tables import markdown_table
from benchmarks.search.search_latency import K, compare_latency, start_engine
from benchmarks.search.shared_word_library import make_shared_word_library
from models.backbones.backbone_loading import load_backbone
from service.catalog.migrations import upgrade
from service.core.settings import settings

__all__ = ["main"]


def main() -> None:
    """Make the libraries, measure them and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.search.reranking_cost", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--tasks", type=int, nargs="+", default=[1, 100], help="numbers of domains")
    parser.add_argument("--videos", type=int, default=10_000, help="videos per library")
    parser.add_argument("--frames", type=int, default=8, help="frame vectors per video")
    parser.add_argument("--queries", type=int, default=200, help="queries per library and search")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of the measurement")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    torch.set_num_threads(1)  # as the service does
    rows = []
    with tempfile.TemporaryDirectory(prefix="cinestrata-bench-") as folder:
        os.environ |= {"CINESTRATA_DATA_DIR": folder, "CINESTRATA_LOG_LEVEL": "ERROR"}
        settings.cache_clear()
        upgrade(settings())
        backbone = load_backbone("small")
        for number, tasks in enumerate(options.tasks):
            library = make_shared_word_library(
                Path(folder) / f"framed-{tasks}",
                backbone,
                tasks=tasks,
                videos=options.videos // tasks,
                queries=2 * options.queries,
                first_id=1 + number * options.videos,
                seed=tasks,
                frames=options.frames,
            )
            engine = start_engine(library)
            texts = [query.text for query in library.queries]
            found = compare_latency(
                partial(engine.search, k=K),
                partial(engine.search, k=K, rerank="frames"),
                list(zip(texts[::2], texts[1::2], strict=True)),
                options.rounds,
            )
            engine.close()
            rows.append(
                [
                    str(tasks),
                    f"{found.first.p50:.1f}",
                    f"{found.second.p50:.1f}",
                    f"{found.p50_ratio:.2f}",
                    f"{found.p99_ratio:.2f}",
                ]
            )
    print(markdown_table(["domains", "p50 in ms", "p50 with `rerank`", "p50 ratio", "p99 ratio"], rows))


if __name__ == "__main__":
    main()
