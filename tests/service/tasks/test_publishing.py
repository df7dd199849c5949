"""Publication of tasks: manifest and catalog agree, also if the worker dies between the two writes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from sqlalchemy import func, select

from cinestrata_schemas.tasks import TaskDetails
from index.files.manifest_format import SegmentEntry
from index.shard_store import ShardStore
from service.catalog.database import session_scope
from service.catalog.tables import Recall, Release, Shard, Task
from service.core.errors import Conflict
from service.core.settings import Settings, settings
from service.tasks import commands, lifecycle
from tests.audited_changes import audit_entries

Post = Callable[..., TaskDetails]


class Died(BaseException):
    """Simulated end of the process."""


def _staged(store: ShardStore, task_id: str, number: int) -> tuple[Any, SegmentEntry]:
    folder = store.stage()
    (folder / "release.json").write_text(f'{{"after": "{task_id}"}}')
    release = store.adopt_release(folder)
    vectors = np.eye(4, dtype=np.float32)[:2]
    shard = store.write_shard(
        task=task_id,
        release=release.id,
        fingerprint="f" * 64,
        ids=np.array([number, number + 1]),
        vectors=vectors,
    )
    return release, shard


def _facts(release: Any, shard: SegmentEntry, *recalls: tuple[str, Recall]) -> dict[str, Any]:
    return {
        "release": Release(
            id=release.id,
            method="ffa_tame",
            backbone="tiny",
            kind="tame",
            fingerprint="f" * 64,
            bytes=release.bytes,
        ),
        "shard": Shard(
            id=shard.id,
            release_id=shard.release,
            fingerprint=shard.fingerprint,
            count=shard.count,
            dim=shard.dim,
            bytes=shard.bytes,
        ),
        "recalls": recalls,
        "trained": True,
    }


def _recall(task_id: str, r1: float, **more: Any) -> tuple[str, Recall]:
    facts = {"mode": "latest", "gallery": "local", "queries": 10, "medr": 1.0, "meanr": 1.0}
    return task_id, Recall(**facts, r1=r1, r5=r1, r10=r1, **more)


def _publish(task_id: str, number: int, *recalls: tuple[str, Recall]) -> int:
    store = ShardStore(settings().index_dir)
    claim = lifecycle.claim_training(task_id, "worker")
    assert claim is not None
    release, shard = _staged(store, task_id, number)
    with claim.publishing() as publication:
        store.publish(release=release, shards=[shard])
        return publication.complete(**_facts(release, shard, *recalls))


def test_published_task_is_ready(catalog: Settings, post_probed: Post) -> None:
    first, second = post_probed("first"), post_probed("second")
    assert _publish(first.id, 1, _recall(first.id, 0.9), _recall(first.id, 0.3, release_order=0)) == 1
    assert _publish(second.id, 3, _recall(first.id, 0.7), _recall(second.id, 0.8)) == 2
    view = commands.get_task(second.id)
    assert (view.state, view.learned_order, view.trained) == ("ready", 2, True)
    assert view.release == ShardStore(settings().index_dir).manifest().release
    assert view.finished_at is not None
    entry = audit_entries(action=["task.publish"])[-1]
    assert (entry.target, entry.details["release"]) == (second.id, view.release)
    with session_scope() as session:
        cells = session.execute(select(Recall.release_order, Recall.task_order, Recall.r1)).all()
    assert sorted(map(tuple, cells)) == [(0, 1, 0.3), (1, 1, 0.9), (2, 1, 0.7), (2, 2, 0.8)]


def test_publication_interrupted_after_the_manifest_is_completed(
    catalog: Settings, post_probed: Post, expire: Callable
) -> None:
    view = post_probed()
    store = ShardStore(settings().index_dir)
    claim = lifecycle.claim_training(view.id, "dies")
    assert claim is not None
    release, shard = _staged(store, view.id, 1)
    with suppress(Died), claim.publishing():
        store.publish(release=release, shards=[shard])
        raise Died
    assert view.id in store.manifest().shards
    assert commands.get_task(view.id).state == "probing"

    with pytest.raises(Conflict, match="already published"):
        commands.cancel_task(view.id)
    expire(view.id)
    assert lifecycle.reconcile().recovered == (view.id,)

    assert _publish(view.id, 1, _recall(view.id, 0.5)) == 1
    assert store.manifest().generation == 1
    assert commands.get_task(view.id).state == "ready"


def test_published_task_cannot_fail_or_be_cancelled(
    catalog: Settings, post_probed: Post, expire: Callable
) -> None:
    view = post_probed()
    claim = lifecycle.claim_training(view.id, "dies")
    assert claim is not None
    commands.cancel_task(view.id)
    store = ShardStore(settings().index_dir)
    release, shard = _staged(store, view.id, 1)
    store.publish(release=release, shards=[shard])
    with session_scope(write=True) as session:
        session.get_one(Task, view.id).attempts = 99
    expire(view.id)
    assert lifecycle.reconcile().recovered == (view.id,)
    assert _publish(view.id, 1) == 1


def test_cancellation_before_the_manifest_takes_effect(sqlite_catalog: Settings, post_probed: Post) -> None:
    view = post_probed()
    claim = lifecycle.claim_training(view.id, "worker")
    assert claim is not None
    commands.cancel_task(view.id)
    with claim, claim.publishing():
        pytest.fail("published a cancelled task")
    assert commands.get_task(view.id).state == "cancelled"


@pytest.mark.slow
def test_completion_is_idempotent(catalog: Settings, post_probed: Post) -> None:
    view = post_probed()
    store = ShardStore(settings().index_dir)
    claim = lifecycle.claim_training(view.id, "worker")
    assert claim is not None
    release, shard = _staged(store, view.id, 1)
    with claim.publishing() as publication:
        assert publication.complete(**_facts(release, shard, _recall(view.id, 0.4))) == 1
        assert publication.complete(**_facts(release, shard, _recall(view.id, 0.5))) == 1
    with session_scope() as session:
        assert session.scalars(select(Recall.r1)).all() == [0.5]
        assert session.scalar(select(func.count()).select_from(Release)) == 1
        assert session.scalar(select(func.count()).select_from(Shard)) == 1
