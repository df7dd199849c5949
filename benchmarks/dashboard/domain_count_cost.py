"""Cost of one more learned domain, of one append and of the pages, in libraries of many domains.

    python -m benchmarks.dashboard.domain_count_cost --domains 100,300,1000 --out DIR

Earlier domains are written without training, since the cost does not depend on the values of weights: a release of
``strata`` with random updates of the text tower, a shard of 20 videos placed around the vectors of their captions, and
catalog rows with 8 held-out and 2 validation captions. Each domain has words of its own, and all of them share others.
The recall matrix is filled as well. Then the learning worker's job learns two domains of generated clips: the first one
evaluates all domains, because there is no rank ledger, and the second one continues its ledger. A job appends captioned
videos to a domain. Only ratios between sizes are comparable between machines.
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
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sqlalchemy import Engine, event, insert

from benchmarks.ingest.clip_files import write_tiny_clips
from benchmarks.search.synthetic_library import Rng, whole_words
from index.files.manifest_format import Manifest, ReleaseEntry, SegmentEntry
from index.shard_store import ShardStore
from models.backbones.backbone import Backbone
from models.encoders.encoder_registry import open_query_encoder
from models.encoders.families.low_rank_family import LOW_RANK_FAMILY
from models.releases.release_files import write_release
from models.releases.release_lineage import ParentRelease
from service.catalog.database import dispose, session_scope
from service.catalog.migrations import upgrade
from service.catalog.tables import PositionCounter, Recall, Release, Shard, Task, Video
from service.core.domain_names import make_slug, name_key
from service.core.schemas import AppendSpec, TaskSpec
from service.core.settings import settings
from service.tasks import commands, lifecycle, probing
from trainer.methods import start_method
from trainer.worker.append_job import run_append_job
from trainer.worker.job_environment import task_backbone
from trainer.worker.learning_job import run_learning_job

__all__ = ["fill_domains", "main", "measure_library"]

_VIDEOS, _HELD_OUT, _VALIDATION = 20, 8, 2  # of an earlier domain
_NEW_VIDEOS = 20  # of a learned domain, and of an append
_OWN_WORDS, _COMMON_WORDS = 12, 60
_COSINE = 0.7  # of a video and its caption
_GALLERIES = ("local", "global", "local_all", "global_all")
_RECIPE = {"rank": 4, "epochs": 1, "batch_size": 8}
_STAGES = {  # functions whose total time is reported, by name in the report
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


def fill_domains(backbone: Backbone, domains: int, *, seed: int = 0) -> None:
    """Write learned domains into the empty library of this process.

    Args:
        backbone: Backbone of the library.
        domains: Number of domains.
        seed: Seed of all random numbers.
    """
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    words = _vocabulary(backbone, domains, rng)
    store = ShardStore(settings().index_dir)
    method = start_method("strata", backbone, _RECIPE, None)
    releases: dict[str, ReleaseEntry] = {}
    shards: dict[str, SegmentEntry] = {}
    parent: ParentRelease | None = None
    videos: list[dict[str, Any]] = []
    for order in range(1, domains + 1):
        identifier, texts = (
            f"tsk_{order:05d}",
            [_caption(words[order], words[0], rng) for _ in range(_VIDEOS)],
        )
        method.record_task(identifier, _name(order), texts[_HELD_OUT + _VALIDATION :])
        state = method.release()
        for name in ("text.a", "text.b"):
            state.tensors[name] = torch.randn_like(state.tensors[name]) / 10
        with store.staging() as staged:
            write_release(staged, state, parent=parent)
            release = store.adopt_release(staged)
        alone = replace(state, tasks=state.tasks[-1:])
        encoder = open_query_encoder(backbone, alone, {identifier: alone})
        ids = np.arange(1 + (order - 1) * _VIDEOS, 1 + order * _VIDEOS)
        shards[identifier] = store.write_shard(
            task=identifier,
            release=release.id,
            fingerprint=state.fingerprint,
            ids=ids,
            vectors=_around(encoder.encode(texts, [identifier], "pinned")[:, 0], rng),
        )
        releases[release.id], parent = release, ParentRelease(release.id, order)
        videos += [_video(identifier, int(i), number, texts[number]) for number, i in enumerate(ids)]
    now = datetime.now(UTC)
    manifest = Manifest(
        generation=domains,
        created=now.isoformat(),
        release=parent.release if parent else None,
        releases=releases,
        shards=shards,
    )
    store.manifest_path.write_text(manifest.dumps())
    with session_scope(write=True) as session:
        for table, rows in (
            (Task, [_task(order, shard, now) for order, shard in enumerate(shards.values(), 1)]),
            (Release, [_release(entry, order, now) for order, entry in enumerate(releases.values(), 1)]),
            (Shard, [_shard(entry, now) for entry in shards.values()]),
            (Video, videos),
        ):
            session.execute(insert(table), rows)
        counter = session.get(PositionCounter, 1)
        if counter is not None:
            counter.last_position = domains
        for order in range(1, domains + 1):
            session.execute(insert(Recall), _cells(order))


def measure_library(folder: Path, domains: int) -> dict[str, Any]:
    """Fill a library, and measure two learned domains, an append, and answers of the API.

    Args:
        folder: Empty data folder; also the media root.
        domains: Number of earlier domains.

    Returns:
        Seconds, SQL statements and answers, as JSON values.
    """
    os.environ["CINESTRATA_DATA_DIR"] = str(folder / "data")
    os.environ["CINESTRATA_MEDIA_ROOT"] = str(folder / "media")
    os.environ |= {"CINESTRATA_BACKBONE": "tiny", "CINESTRATA_FRAMES": "2", "CINESTRATA_TORCH_THREADS": "1"}
    settings.cache_clear()
    clips = write_tiny_clips(folder / "media", 3 * _NEW_VIDEOS)
    for path in (settings().index_dir, settings().cache_dir):
        path.mkdir(parents=True, exist_ok=True)
    upgrade(settings())
    backbone = task_backbone()
    began = time.monotonic()
    fill_domains(backbone, domains)
    result: dict[str, Any] = {"domains": domains, "fill_seconds": time.monotonic() - began}
    words = _vocabulary(backbone, domains, np.random.default_rng(0))
    for number, name in enumerate(("learned without ledger", "learned with ledger")):
        own = clips[number * _NEW_VIDEOS : (number + 1) * _NEW_VIDEOS]
        spec = TaskSpec.model_validate(
            {"name": name, "method": "strata", "settings": _RECIPE, "videos": _specs(own, words[0])}
        )
        task = commands.create_task(spec).task.id
        _probe(task)
        result[name] = _measured(partial(run_learning_job, task))
        _require_ready(task)
    append = commands.append_videos(
        "tsk_00001", AppendSpec.model_validate({"videos": _specs(clips[2 * _NEW_VIDEOS :], words[0])})
    ).task.id
    _probe(append)
    result["append"] = _measured(partial(run_append_job, append))
    _require_ready(append)
    result["api"] = _measure_api()
    dispose()
    return result


def _measure_api() -> dict[str, Any]:
    from fastapi.testclient import TestClient

    from api.app import create_app

    answers: dict[str, Any] = {}
    began = time.monotonic()
    with TestClient(create_app(), base_url="http://127.0.0.1") as client:
        while client.get("/readyz").status_code != 200:
            time.sleep(0.05)
        answers["start of the query service"] = {"seconds": time.monotonic() - began}
        for path in (
            "/tasks",
            "/tasks?kind=domain&limit=10",
            "/tasks/tsk_00001",
            "/library",
            "/overview",
            "/forgetting",
            "/forgetting/map?bins=38",
            "/search?q=red+car",
        ):
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


def _probe(task: str) -> None:
    claim = lifecycle.claim_probing(task, "benchmark")
    assert claim is not None
    with claim:
        probing.probe(claim)


def _require_ready(task: str) -> None:
    details = commands.get_task(task)
    if details.state != "ready":
        raise RuntimeError(f"task {details.name} ended as {details.state}: {details.error}")


def _vocabulary(backbone: Backbone, domains: int, rng: Rng) -> list[list[str]]:
    """The common words, followed by the words of each domain."""
    words = whole_words(backbone)
    shuffled = [words[index] for index in rng.permutation(len(words))]
    common, rest = shuffled[:_COMMON_WORDS], shuffled[_COMMON_WORDS:]
    own = [[rest[i] for i in rng.choice(len(rest), _OWN_WORDS, replace=False)] for _ in range(domains)]
    return [common, *own]


def _caption(own: Sequence[str], common: Sequence[str], rng: Rng) -> str:
    words = [*rng.choice(own, 3, replace=False), *rng.choice(common, 5, replace=False)]
    return " ".join(words[index] for index in rng.permutation(len(words)))


def _around(captions: npt.NDArray[np.float32], rng: Rng) -> npt.NDArray[np.float32]:
    noise = rng.standard_normal(captions.shape, np.float32)
    noise /= np.linalg.norm(noise, axis=1, keepdims=True)
    vectors = _COSINE * captions + np.sqrt(1 - _COSINE**2) * noise
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


def _name(order: int) -> str:
    return f"domain {order}"


def _specs(paths: Sequence[Path], common: Sequence[str]) -> list[dict[str, Any]]:
    rng = np.random.default_rng(1)
    return [
        {"uri": str(path), "captions": [f"number {number} " + " ".join(rng.choice(common, 5, replace=False))]}
        for number, path in enumerate(paths)
    ]


def _video(task: str, vector_id: int, number: int, caption: str) -> dict[str, Any]:
    split = "test" if number < _HELD_OUT else "val" if number < _HELD_OUT + _VALIDATION else "train"
    return {
        "vector_id": vector_id,
        "id": f"vid_{vector_id:08d}",
        "task_id": task,
        "uri": f"{vector_id}.mp4",
        "effective_split": split,
        "captions": [caption],
        "extra": {},
        "status": "accepted",
        "content_hash": f"{vector_id:064x}",
    }


def _task(order: int, shard: SegmentEntry, at: datetime) -> dict[str, Any]:
    name = _name(order)
    counts = {"videos": _VIDEOS, "accepted": _VIDEOS, "test": _HELD_OUT, "val": _VALIDATION}
    return {
        "id": shard.task,
        "position": order,
        "name": name,
        "name_key": name_key(name),
        "slug": make_slug(name),
        "method": "strata",
        "state": "ready",
        "progress": {"stage": "ready", "fraction": 1.0},
        "counts": counts | {"train": _VIDEOS - _HELD_OUT - _VALIDATION},
        "created_at": at,
        "started_at": at,
        "finished_at": at,
        "probed_at": at,
        "release_id": shard.release,
        "learned_order": order,
        "trained": True,
        "held_out": "derived",
    }


def _release(entry: ReleaseEntry, order: int, at: datetime) -> dict[str, Any]:
    return {
        "id": entry.id,
        "task_id": f"tsk_{order:05d}",
        "learned_order": order,
        "method": "strata",
        "backbone": "tiny",
        "kind": LOW_RANK_FAMILY.kind,
        "fingerprint": f"{order:064x}",
        "bytes": entry.bytes,
        "created_at": at,
        "metrics": {},
    }


def _shard(entry: SegmentEntry, at: datetime) -> dict[str, Any]:
    return {
        "id": entry.id,
        "task_id": entry.task,
        "release_id": entry.release,
        "fingerprint": entry.fingerprint,
        "count": entry.count,
        "dim": entry.dim,
        "bytes": entry.bytes,
        "created_at": at,
    }


def _cells(release: int) -> list[dict[str, Any]]:
    """Row of the recall matrix."""
    return [
        {
            "release_order": release,
            "task_order": task,
            "mode": "pinned",
            "gallery": gallery,
            "queries": _HELD_OUT,
            "r1": 0.5,
            "r5": 0.75,
            "r10": 1.0,
            "medr": 2.0,
            "meanr": 3.0,
            "routing1": 0.75 if gallery == "global" else None,
        }
        for gallery in _GALLERIES
        for task in range(1, release + 1)
    ]


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
        with tempfile.TemporaryDirectory() as folder:
            results.append(measure_library(Path(folder), domains))
        print(json.dumps(results[-1]), file=sys.stderr)  # the next size may take much longer
    report = json.dumps(results, indent=2)
    print(report)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "domain-count-cost.json").write_text(report + "\n")


if __name__ == "__main__":
    main()
