"""Catalogs with many learned domains and realistic measures, without videos on disk.

Recall falls a little after each release, more for a few domains, and less within the own shard than among all shards;
the first of 40 domains is indexed without captions, and each seventh domain was appended to.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import numpy as np
from sqlalchemy import insert

from index.files.manifest_format import Manifest, ReleaseEntry, SegmentEntry, content_id
from models.encoders.families.low_rank_family import LOW_RANK_FAMILY
from service.catalog.database import session_scope
from service.catalog.migrations import upgrade
from service.catalog.tables import Recall, Release, Shard, Task
from service.core.domain_names import make_slug, name_key
from service.core.settings import settings

_TOPICS = (
    "cooking",
    "traffic",
    "football",
    "pottery",
    "surgery",
    "wildlife",
    "drone flights",
    "screen casts",
)
_PLACES = ("Lisbon", "Oslo", "Kyoto", "Quito", "Accra", "Perth", "Graz", "Tromsø", "Hanoi")
_GALLERIES = {
    "local": 0.0,
    "global": 0.22,
    "local_all": 0.06,
    "global_all": 0.3,
}  # recall that distractors cost
_MODES = {"pinned": 0.0, "latest": 0.004}  # recall that a release costs
_FORGOTTEN = 17  # each such domain loses much more


def fill_library(domains: int, *, seed: int = 7) -> None:
    """Write learned domains with releases, shards and recall cells into the catalog of this process.

    Args:
        domains: Number of domains.
        seed: Seed of the measures.
    """
    rng = np.random.default_rng(seed)
    start = datetime.now(UTC) - timedelta(hours=domains)
    upgrade(settings())
    settings().index_dir.mkdir(parents=True, exist_ok=True)
    settings().media_root.mkdir(parents=True, exist_ok=True)
    (settings().index_dir / "manifest.json").write_text(_manifest(domains, start).dumps())
    with session_scope(write=True) as session:
        orders = range(1, domains + 1)
        session.execute(insert(Task), [_task(order, start) for order in orders])
        session.execute(insert(Release), [_release(order, start) for order in orders])
        session.execute(insert(Shard), [_shard(order, start) for order in orders])
        for mode, loss in _MODES.items():
            session.execute(insert(Recall), list(_cells(domains, mode, loss, rng)))


def _name(order: int) -> str:
    topic, place = _TOPICS[order % len(_TOPICS)], _PLACES[order % len(_PLACES)]
    return f"{topic} {place.encode('ascii', 'ignore').decode()} {order}"


def _task(order: int, start: datetime) -> dict[str, object]:
    at = start + timedelta(hours=order)
    is_silent = order % 40 == 1 and order > 1
    counts = {"videos": 120, "accepted": 118, "rejected": 2, "train": 90, "val": 8, "test": 20}
    return {
        "id": f"tsk_{order:05d}",
        "position": order,
        "name": _name(order),
        "name_key": name_key(_name(order)),
        "slug": make_slug(_name(order)),
        "method": "strata",
        "settings": {},
        "state": "ready",
        "progress": {"stage": "ready", "fraction": 1.0},
        "counts": counts | {"appended": 12 if order % 7 == 0 else 0},
        "attempts": 0,
        "fencing_token": 1,
        "cancel_requested": False,
        "created_at": at - timedelta(minutes=40),
        "started_at": at - timedelta(minutes=38),
        "finished_at": at,
        "probed_at": at - timedelta(minutes=35),
        "release_id": _folder_id("release", order),
        "learned_order": order,
        "trained": not is_silent,
        "held_out": "derived" if order % 3 else "given",
    }


def _release(order: int, start: datetime) -> dict[str, object]:
    return {
        "id": _folder_id("release", order),
        "task_id": f"tsk_{order:05d}",
        "learned_order": order,
        "method": "strata",
        "backbone": "open_clip:ViT-B-32/openai",
        "kind": LOW_RANK_FAMILY.kind,
        "fingerprint": f"{order:064x}",
        "bytes": 4_700_000 + 9_000 * order,
        "created_at": start + timedelta(hours=order),
        "metrics": {"calibration_error": 0.02 + 0.001 * (order % 13)},
    }


def _shard(order: int, start: datetime) -> dict[str, object]:
    return {
        "id": _folder_id("shard", order),
        "task_id": f"tsk_{order:05d}",
        "release_id": _folder_id("release", order),
        "fingerprint": f"{order:064x}",
        "count": 118,
        "dim": 512,
        "bytes": 260_000,
        "created_at": start + timedelta(hours=order),
    }


def _manifest(domains: int, start: datetime) -> Manifest:
    releases = [_folder_id("release", order) for order in range(1, domains + 1)]
    return Manifest(
        generation=domains,
        created=start.isoformat(),
        release=releases[-1],
        releases={
            release: ReleaseEntry(release, 4_700_000, _files("release", order))
            for order, release in enumerate(releases, 1)
        },
        shards={
            f"tsk_{order:05d}": SegmentEntry(
                id=_folder_id("shard", order),
                task=f"tsk_{order:05d}",
                release=release,
                fingerprint=f"{order:064x}",
                count=118,
                dim=512,
                first_id=1000 * order,
                last_id=1000 * order + 117,
                bytes=260_000,
                files=_files("shard", order),
            )
            for order, release in enumerate(releases, 1)
        },
    )


def _files(kind: str, order: int) -> dict[str, str]:
    names = {
        "release": ("release.json", "adapters.safetensors"),
        "shard": ("shard.json", "vectors.faiss", "ids.npy"),
    }
    return {name: f"{order:064x}" for name in names[kind]}


def _folder_id(kind: str, order: int) -> str:
    return content_id(_files(kind, order))


def _cells(domains: int, mode: str, loss: float, rng: np.random.Generator) -> Iterator[dict[str, object]]:
    for gallery, distraction in _GALLERIES.items():
        for task in range(1, domains + 1):
            if task % 40 == 1 and task > 1:
                continue
            queries = int(rng.integers(20, 400))
            learned = rng.beta(8, 4)
            forgotten = 0.35 if task % _FORGOTTEN == 5 and gallery.startswith("global") else 0.0
            orders = [0] if gallery == "local" and mode == "pinned" else []
            for release in [*orders, *range(task, domains + 1)]:
                age = (release - task) / max(20, domains) if release else 0.0
                expected = learned - loss * min(release - task, 60) - (distraction + forgotten) * age**0.5
                expected = 0.12 if release == 0 else expected
                hits = rng.binomial(queries, min(0.99, max(0.02, expected))) if distraction or loss else None
                share = round(queries * min(0.99, expected)) if hits is None else hits
                yield {
                    "release_order": release,
                    "task_order": task,
                    "mode": mode,
                    "gallery": gallery,
                    "queries": queries,
                    "r1": share / queries,
                    "r5": min(1.0, share / queries + 0.15),
                    "r10": min(1.0, share / queries + 0.2),
                    "medr": 2.0,
                    "meanr": 4.5,
                    "routing1": min(1.0, share / queries + 0.1) if gallery == "global" else None,
                }
