"""Measure what learning one domain costs in libraries of many domains, by stage.

    python -m benchmarks.ingest.learning_growth --domains 100,1000,10000 --clips 12 --out DIR

The product's job learns two domains of twelve tiny clips with ``small`` and ``analytic``. The second is copied until
the library has the given number of domains, then four more, of any number of clips of ten seconds, are learned: the
first figures include what a process reads once, the others are medians of three. Wall time is with that of the child
process that decodes videos, CPU time is without it. The copies are synthetic: they have IDs, captions, routing profiles
and folds of their own, so that routing can tell them apart, but share weights (hard links) and vectors. Calibration
captions are drawn from all copies. Manifest and catalog are written at once, without events and rows of the recall
matrix. Bytes read include those in the page cache, but not mapped files.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from sqlalchemy import insert, update
from timm.data.imagenet_info import ImageNetInfo

from benchmarks.ingest.clip_files import write_ordinary_clips, write_tiny_clips
from benchmarks.ingest.embedded_service import process_memory
from benchmarks.reporting.markdown_tables import write_json
from cinestrata_schemas.tasks import TaskSpec
from index.arrays import batches
from models.releases.release_files import write_release
from models.releases.release_state import ParentRelease, ReleaseTask, caption_digest
from models.routing.routing_profiles import VOCABULARY, RoutingProfiles, profile_row
from service.catalog.database import session_scope
from service.catalog.migrations import upgrade
from service.catalog.tables import PositionCounter, Task, Video
from service.core.process_setup import configure_logging
from service.core.settings import settings
from service.search.library_words import write_words
from service.tasks import commands, lifecycle, probing
from trainer.evaluation.confidence_fitting import MAX_CAPTIONS
from trainer.task_data import draw_sample
from trainer.worker.job_environment import open_library
from trainer.worker.learning_job import process_claim

_VIDEOS, _NOUNS = 12, 8  # of a domain, and nouns in its captions
_TEMPLATES, _LEARNED = 2, 4  # domains learned before the copies, and measured after them
_NAMES = ImageNetInfo("imagenet-12k")


_JOBS = {
    "probing": (lifecycle.claim_probing, probing.probe),
    "loading": (lifecycle.claim_training, process_claim),
}


def _captions(number: int, count: int) -> list[str]:
    """Draw a domain's captions, one per video."""
    rng = np.random.default_rng(number)
    chosen = rng.choice(_NAMES.num_classes(), _NOUNS, replace=False)
    nouns = [_NAMES.index_to_description(row, detailed=False) for row in chosen]
    return ["a {} next to a {}".format(*rng.choice(nouns, 2, replace=False)) for _ in range(count)]


def learn(number: int, clips: Sequence[Path]) -> dict[str, float]:
    """Probe and learn a domain in this process; returns seconds and bytes by stage, and the peak memory."""
    texts = zip(clips, _captions(number, len(clips)), strict=True)
    videos = [{"uri": str(clip), "captions": [text]} for clip, text in texts]
    spec = TaskSpec.model_validate({"name": f"domain {number}", "videos": videos})
    task = commands.create_task(spec).task.id
    marks: list[tuple[str, float, float, int]] = []

    def mark(stage: str, call: Callable[..., Any] = lambda *_: None) -> Any:
        read = int(Path("/proc/self/io").read_text(encoding="ascii").split()[1])
        marks.append((stage, time.process_time(), time.monotonic(), read))
        return call(stage)

    for first, (take, job) in _JOBS.items():
        claim = take(task, "benchmark")
        assert claim is not None
        publishing = partial(mark, "publishing", lambda _, publish=claim.publishing: publish())
        with claim, patch.multiple(claim, advance=partial(mark, call=claim.advance), publishing=publishing):
            mark(first)
            job(claim)
    mark("end")
    stages, *clocks = zip(*marks, strict=True)
    spent = zip(("cpu_seconds", "wall_seconds", "bytes_read"), map(np.diff, clocks), strict=True)
    figures = {
        f"{kind}_{stage}": float(n) for kind, each in spent for stage, n in zip(stages, each, strict=False)
    }
    return figures | {"peak_bytes": process_memory(os.getpid()).peak}


def copy_domains(count: int) -> None:
    """Copy the newest domain until the library has ``count``."""
    library = open_library()
    store, manifest = library.store, library.manifest
    domain, segment = next(reversed(manifest.shards.items()))
    state, shard = library.release(segment.release), library.shard(domain)
    fold = state.fold
    assert shard is not None
    assert fold is not None
    releases, shards, newest = dict(manifest.releases), dict(manifest.shards), segment.release
    weights, calibration = store.release_folder(newest) / "weights.safetensors", list(state.calibration)
    fitted = [caption for caption in calibration if caption.task == domain]
    tasks, videos, now = list[dict[str, Any]](), list[dict[str, Any]](), datetime.now(UTC)
    for number in range(_TEMPLATES, count):
        key, name, shift = f"task-{number}", f"domain {number}", _VIDEOS * (number + 1 - _TEMPLATES)
        texts = dict(zip(shard.ids.tolist(), _captions(number, _VIDEOS), strict=True))
        for caption in fitted:
            place = {"task": key, "video": caption.video + shift, "text": texts[caption.video]}
            calibration.append(replace(caption, **place, ids=tuple(video + shift for video in caption.ids)))
        tokens, values = profile_row(texts.values(), float(state.config["word_evidence"]))
        digests = np.array([caption_digest(texts[video]) for video in fold.videos.tolist()])
        place = {"videos": fold.videos + shift, "ids": fold.ids + shift, "captions": digests}
        copy = replace(
            state,
            tasks=[*state.tasks[-1:] * number, ReleaseTask(key, name, segment.fingerprint)],
            profiles=RoutingProfiles(tokens, values, np.repeat([0, len(tokens)], [number, 1]), VOCABULARY),
            calibration=draw_sample(calibration, MAX_CAPTIONS) if number == count - 1 else (),
            fold=replace(fold, **place, tokens=tokens, values=values),
            tensors={},
            is_partial=True,
        )
        with store.staging() as staged:
            write_release(staged, copy, parent=ParentRelease(newest, number))
            (staged / weights.name).unlink()
            os.link(weights, staged / weights.name)
            entry = store.adopt_release(staged)
        newest, releases[entry.id] = entry.id, entry
        write = partial(store.write_shard, task=key, release=newest, fingerprint=segment.fingerprint)
        shards[key] = write(ids=shard.ids + shift, vectors=shard.vectors(shard.ids))
        row = {"id": key, "name": name, "name_key": name, "method": state.method, "state": "ready"}
        tasks.append({**row, **dict.fromkeys(("position", "learned_order"), number + 1), "created_at": now})
        for video, text in texts.items():
            split = "fold" if video in fold.videos else "train"
            place = {"vector_id": video + shift, "id": f"video-{video + shift}", "task_id": key, "uri": name}
            videos.append({**place, "captions": [text], "status": "accepted", "effective_split": split})
    training = {newest: manifest.training[segment.release]}
    changed = replace(manifest, release=newest, releases=releases, shards=shards, training=training)
    store.replace_manifest(manifest, changed)
    with session_scope(write=True) as session:
        session.execute(update(PositionCounter).values(last_position=count))
        session.execute(insert(Task), tasks)
        session.execute(insert(Video), videos)
    write_words()


def measure(count: int, size: int, folder: Path) -> dict[str, Any]:
    """Build a library of ``count`` domains, and learn more of ``size`` clips; returns figures as JSON values."""
    os.environ |= {"CINESTRATA_DATA_DIR": str(folder), "CINESTRATA_BACKBONE": "small"}
    configure_logging("console", "ERROR")
    upgrade(settings())
    media = settings().media_root
    templates = write_tiny_clips(media, _TEMPLATES * _VIDEOS)
    learned = write_ordinary_clips(media / "ordinary", _LEARNED * size)
    for number, part in enumerate(batches(templates, _VIDEOS)):
        learn(number, part)
    with patch("index.files.store_folder.sync"):
        copy_domains(count)
    first, *others = [learn(count + number, part) for number, part in enumerate(batches(learned, size))]
    medians = {name: float(np.median([each[name] for each in others])) for name in first}
    return {"domains": count, "clips": size, "first": first, "median": medians}


def main() -> None:
    """Parse the command line, measure, write JSON and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--domains", default="100,1000,10000", help="numbers of domains, separated by commas")
    parser.add_argument(
        "--clips", type=int, default=_VIDEOS, help="clips of each domain that is learned then"
    )
    parser.add_argument("--out", type=Path, default=Path("bench-growth"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for count in map(int, options.domains.split(",")):
        process = ProcessPoolExecutor(1, get_context("spawn"))
        with tempfile.TemporaryDirectory(prefix="cinestrata-growth-", dir=options.out) as folder, process:
            rows.append(process.submit(measure, count, options.clips, Path(folder).resolve()).result())
    write_json(options.out / "learning.json", rows)


if __name__ == "__main__":
    main()
