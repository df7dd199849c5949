"""Libraries of many learned domains, written without training.

The cost of one more domain does not depend on the values of weights: a domain has a release of ``strata`` with random
updates of the text tower, a shard of 20 videos placed around the vectors of their captions, and catalog rows with 8
held-out and 2 validation captions. Each domain has words of its own, and all of them share others. The recall matrix is
filled as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sqlalchemy import insert

from benchmarks.search.synthetic_library import Rng, whole_words
from index.files.manifest_format import Manifest, ReleaseEntry, SegmentEntry
from index.shard_store import ShardStore
from models.backbones.backbone import Backbone
from models.encoders.encoder_registry import open_query_encoder
from models.encoders.families.low_rank_family import LOW_RANK_FAMILY
from models.releases.release_files import write_release
from models.releases.release_lineage import ParentRelease
from service.catalog.database import session_scope
from service.catalog.tables import PositionCounter, Recall, Release, Shard, Task, Video
from service.core.domain_names import make_slug, name_key
from service.core.settings import settings
from trainer.methods import start_method

__all__ = ["RECIPE", "fill_domains", "task_id"]

RECIPE = {"rank": 4, "epochs": 1, "batch_size": 8}  # settings of strata
_VIDEOS, _HELD_OUT, _VALIDATION = 20, 8, 2
_OWN_WORDS, _COMMON_WORDS = 12, 60
_COSINE = 0.7  # of a video and its caption
_GALLERIES = ("local", "global", "local_all", "global_all")


def task_id(order: int) -> str:
    """Identifier of the task with a learned order."""
    return f"tsk_{order:05d}"


def fill_domains(backbone: Backbone, domains: int, *, seed: int = 0) -> list[str]:
    """Write learned domains into the empty library of this process.

    Args:
        backbone: Backbone of the library.
        domains: Number of domains.
        seed: Seed of all random numbers.

    Returns:
        The words that the domains share.
    """
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    common, own = _draw_words(backbone, domains, rng)
    store = ShardStore(settings().index_dir)
    method = start_method("strata", backbone, RECIPE, None)
    releases: dict[str, ReleaseEntry] = {}
    shards: dict[str, SegmentEntry] = {}
    parent: ParentRelease | None = None
    videos: list[dict[str, Any]] = []
    for order in range(1, domains + 1):
        task = task_id(order)
        captions = [_caption(own[order - 1], common, rng) for _ in range(_VIDEOS)]
        method.record_task(task, _name(order), captions[_HELD_OUT + _VALIDATION :])
        state = method.release()
        for name in ("text.a", "text.b"):
            state.tensors[name] = torch.randn_like(state.tensors[name]) / 10
        with store.staging() as staged:
            write_release(staged, state, parent=parent)
            release = store.adopt_release(staged)
        alone = replace(state, tasks=state.tasks[-1:])
        encoder = open_query_encoder(backbone, alone, {task: alone})
        ids = np.arange(1 + (order - 1) * _VIDEOS, 1 + order * _VIDEOS)
        shards[task] = store.write_shard(
            task=task,
            release=release.id,
            fingerprint=state.fingerprint,
            ids=ids,
            vectors=_around(encoder.encode(captions, [task], "pinned")[:, 0], rng),
        )
        releases[release.id], parent = release, ParentRelease(release.id, order)
        videos += [_video(task, int(id_), number, captions[number]) for number, id_ in enumerate(ids)]
    now = datetime.now(UTC)
    manifest = Manifest(
        generation=domains,
        created=now.isoformat(),
        release=parent.release if parent else None,
        releases=releases,
        shards=shards,
    )
    store.manifest_path.write_text(manifest.dumps())
    _write_rows(list(releases.values()), list(shards.values()), videos, now)
    return common


def _write_rows(
    releases: Sequence[ReleaseEntry],
    shards: Sequence[SegmentEntry],
    videos: Sequence[dict[str, Any]],
    now: datetime,
) -> None:
    with session_scope(write=True) as session:
        for table, rows in (
            (Task, [_task(order, shard, now) for order, shard in enumerate(shards, 1)]),
            (Release, [_release(entry, order, now) for order, entry in enumerate(releases, 1)]),
            (Shard, [_shard(entry, now) for entry in shards]),
            (Video, videos),
        ):
            session.execute(insert(table), rows)
        session.get_one(PositionCounter, 1).last_position = len(shards)
        for order in range(1, len(shards) + 1):
            session.execute(insert(Recall), _cells(order))


def _draw_words(backbone: Backbone, domains: int, rng: Rng) -> tuple[list[str], list[list[str]]]:
    """The common words, and the words of each domain."""
    words = whole_words(backbone)
    shuffled = [words[index] for index in rng.permutation(len(words))]
    common, rest = shuffled[:_COMMON_WORDS], shuffled[_COMMON_WORDS:]
    own = [[rest[i] for i in rng.choice(len(rest), _OWN_WORDS, replace=False)] for _ in range(domains)]
    return common, own


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
        "task_id": task_id(order),
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
