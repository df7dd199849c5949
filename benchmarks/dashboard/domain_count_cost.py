"""Cost of one more learned domain, of one append and of the pages, in libraries of many domains.

    python -m benchmarks.dashboard.domain_count_cost --domains 100,300,1000 --out DIR

Earlier domains are written without training (:mod:`benchmarks.dashboard.learned_domains`). Then the learning worker's
job learns two domains of generated clips: the first one evaluates all domains, because there is no rank ledger, and the
second one continues its ledger. A job appends captioned videos to a domain. Only ratios between sizes are comparable
between machines.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import Engine, event

from benchmarks.dashboard.answer_cost import PATHS
from benchmarks.dashboard.learned_domains import RECIPE, fill_domains, task_id
from benchmarks.ingest.clip_files import write_tiny_clips
from service.catalog.database import dispose
from service.catalog.migrations import upgrade
from service.core.schemas import AppendSpec, TaskSpec
from service.core.settings import settings
from service.tasks import commands, lifecycle, probing
from trainer.worker.append_job import run_append_job
from trainer.worker.job_environment import task_backbone
from trainer.worker.learning_job import run_learning_job

__all__ = ["main", "measure_library"]

_NEW_VIDEOS = 20  # of a learned domain, and of an append
_STAGES = {  # names of functions whose total time is reported, and their names in the report
    "train_task": "training",
    "pinned_releases": "pinned releases",
    "calibrate_release": "calibration",
    "fit_library_confidence": "confidence of the library",
    "build_evaluation_tasks": "routing evidence of all queries",
    "evaluate_row": "recall row, evidence included",
    "read_ledger": "reading the rank ledger",
    "save_ledger": "writing the rank ledger",
    "publish_task": "publication",
    "measure_append": "measurement of the append",
}


def measure_library(folder: Path, domains: int) -> dict[str, Any]:
    """Fill a library, and measure two learned domains, an append, and answers of the API.

    Args:
        folder: Empty data folder; also the media root.
        domains: Number of earlier domains.

    Returns:
        Seconds, SQL statements and answers, as JSON values.
    """
    os.environ |= {
        "CINESTRATA_DATA_DIR": str(folder / "data"),
        "CINESTRATA_MEDIA_ROOT": str(folder / "media"),
        "CINESTRATA_BACKBONE": "tiny",
        "CINESTRATA_FRAMES": "2",
        "CINESTRATA_TORCH_THREADS": "1",
    }
    settings.cache_clear()
    clips = iter(write_tiny_clips(folder / "media", 3 * _NEW_VIDEOS))
    for path in (settings().index_dir, settings().cache_dir):
        path.mkdir(parents=True, exist_ok=True)
    upgrade(settings())
    backbone = task_backbone()
    began = time.monotonic()
    words = fill_domains(backbone, domains)
    result: dict[str, Any] = {"domains": domains, "fill_seconds": time.monotonic() - began}
    for name in ("learned without ledger", "learned with ledger"):
        fields = {"name": name, "method": "strata", "settings": RECIPE, "videos": _next_videos(clips, words)}
        task = commands.create_task(TaskSpec.model_validate(fields)).task.id
        result[name] = _run_task(task, run_learning_job)
    spec = AppendSpec.model_validate({"videos": _next_videos(clips, words)})
    result["append"] = _run_task(commands.append_videos(task_id(1), spec).task.id, run_append_job)
    result["api"] = _measure_api()
    dispose()
    return result


def _next_videos(clips: Iterator[Path], words: Sequence[str]) -> list[dict[str, Any]]:
    """The next videos, with captions of common words."""
    rng = np.random.default_rng(1)
    return [
        {"uri": str(path), "captions": [f"number {number} " + " ".join(rng.choice(words, 5, replace=False))]}
        for number, path in enumerate(islice(clips, _NEW_VIDEOS))
    ]


def _run_task(task: str, job: Callable[[str], object]) -> dict[str, Any]:
    """Probe a task and measure the job of its worker.

    Raises:
        RuntimeError: The task did not become ready.
    """
    claim = lifecycle.claim_probing(task, "benchmark")
    assert claim is not None
    with claim:
        probing.probe(claim)
    measured = _measured(partial(job, task))
    details = commands.get_task(task)
    if details.state != "ready":
        raise RuntimeError(f"task {details.name} ended as {details.state}: {details.error}")
    return measured


def _measure_api() -> dict[str, Any]:
    from fastapi.testclient import TestClient

    from api.app import create_app

    answers: dict[str, Any] = {}
    began = time.monotonic()
    with TestClient(create_app(), base_url="http://127.0.0.1") as client:
        while client.get("/readyz").status_code != 200:
            time.sleep(0.05)
        answers["start of the query service"] = {"seconds": time.monotonic() - began}
        for path in (*PATHS, f"/tasks/{task_id(1)}", "/search?q=red+car"):
            for call in ("first", "again"):
                with _counted_statements() as statements:
                    start = time.monotonic()
                    response = client.get(path)
                    seconds = time.monotonic() - start
                response.raise_for_status()
                answers.setdefault(path, {"bytes": len(response.content)})[call] = {
                    "seconds": seconds,
                    "statements": statements[0],
                }
    return answers


def _measured(job: Callable[[], object]) -> dict[str, Any]:
    """Seconds of a job and of its stages, and its number of SQL statements."""
    profile = cProfile.Profile()
    with _counted_statements() as statements:
        began = time.monotonic()
        profile.runcall(job)
        seconds = time.monotonic() - began
    stages: dict[str, float] = {}
    stats: Any = pstats.Stats(profile)
    for (_, _, function), (_, _, _, total, _) in stats.stats.items():
        if function in _STAGES:
            stages[_STAGES[function]] = stages.get(_STAGES[function], 0.0) + total
    return {"seconds": seconds, "statements": statements[0], "stages": stages}


@contextmanager
def _counted_statements() -> Iterator[list[int]]:
    count = [0]

    def add(*_: object) -> None:
        count[0] += 1

    event.listen(Engine, "before_cursor_execute", add)
    try:
        yield count
    finally:
        event.remove(Engine, "before_cursor_execute", add)


def main() -> None:
    """Measure libraries of several sizes, each in a process of its own, and print JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--domains", default="100,300,1000", help="numbers of earlier domains")
    parser.add_argument("--out", type=Path, help="folder of the report")
    options = parser.parse_args()
    results = []
    for domains in map(int, options.domains.split(",")):
        # A process of its own, because modules cache the files that they have read.
        with (
            tempfile.TemporaryDirectory() as folder,
            ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool,
        ):
            results.append(pool.submit(measure_library, Path(folder), domains).result())
        print(json.dumps(results[-1]), file=sys.stderr)  # the next size may take much longer
    report = json.dumps(results, indent=2)
    print(report)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "domain-count-cost.json").write_text(report + "\n")


if __name__ == "__main__":
    main()
