"""The library's state and totals, and the versions of its parts."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import delete, update

from cinestrata_schemas.library import LibraryVersions
from cinestrata_schemas.tasks import TaskDetails
from service.catalog.database import now, session_scope
from service.catalog.leases import ALIVE, report_worker
from service.catalog.operation_tables import WorkerReport
from service.catalog.tables import Shard, Task
from service.core import errors
from service.core.list_parameters import ReleaseFilters, ShardFilters
from service.core.settings import Settings
from service.library import prometheus_metrics
from service.library.library_listing import list_releases, list_shards
from service.library.library_status import MAX_ACTIVE, MAX_FIRST_DOMAINS, library_status
from service.tasks import commands, lifecycle
from tests.catalog_rows import add_release_and_shard, mark_learned

Post = Callable[..., TaskDetails]


def _changed(before: LibraryVersions) -> set[str]:
    after = library_status().versions.model_dump()
    return {part for part, version in before.model_dump().items() if after[part] != version}


def _publish(task_id: str, order: int) -> None:
    mark_learned(task_id, order)
    shard = Shard(id=f"s{order}", release_id=f"r{order}", fingerprint="f", count=3, dim=8, bytes=200)
    add_release_and_shard(task_id, shard, order=order)


def test_versions_change_with_their_part(catalog: Settings, post: Post, post_probed: Post) -> None:
    view = post("birds")
    versions = library_status().versions
    assert _changed(versions) == set()
    claim = lifecycle.claim_probing(view.id, "prober")
    assert claim is not None
    assert _changed(versions) == {"tasks"}
    versions = library_status().versions
    with claim:
        claim.progress("probing", 0.5, done=1, total=2)
        assert _changed(versions) == set(), "unfinished tasks are part of the state itself"
        assert library_status().active[0].progress.fraction == 0.5
    commands.cancel_task(view.id)
    versions = library_status().versions
    learned = post_probed("cars")
    _publish(learned.id, 1)
    assert _changed(versions) == {"tasks", "measures", "storage"}
    versions = library_status().versions
    with session_scope(write=True) as session:
        session.get_one(Task, learned.id).error_hint = "Look."
    assert _changed(versions) == {"tasks"}


def test_state_is_bounded(sqlite_catalog: Settings, post: Post, post_probed: Post) -> None:
    for order in range(1, 11):
        _publish(post_probed(f"learned {order}").id, order)
    names = [post(f"waiting {number}", videos=1).name for number in range(11)]
    shown = library_status()
    assert (shown.domains, shown.shard_count, shown.release_count, shown.vectors) == (10, 10, 10, 30)
    assert [domain.task for domain in shown.first_domains] == [
        f"learned {order}" for order in range(1, MAX_FIRST_DOMAINS + 1)
    ]
    assert [task.name for task in shown.active] == names[:MAX_ACTIVE], "in the order of the queue"
    assert shown.tasks["queued"] == 11
    assert shown.failed is None
    first = commands.list_tasks()[-1].id
    with session_scope(write=True) as session:
        session.get_one(Task, first).state = "failed"
    failed = library_status().failed
    assert failed is not None
    assert failed.id == first
    assert library_status().open_failures == 1


def test_shards_are_listed_in_pages(catalog: Settings, post_probed: Post) -> None:
    for order, name in enumerate(["birds", "cars", "Kitchen"], 1):
        _publish(post_probed(name).id, order)
    first = list_shards(ShardFilters(limit=2))
    assert [shard.task for shard in first.shards] == ["birds", "cars"]
    last = list_shards(ShardFilters(limit=2, cursor=first.next_cursor))
    assert ([shard.task for shard in last.shards], last.next_cursor) == (["Kitchen"], None)
    assert [shard.task for shard in list_shards(ShardFilters(text="KITCH")).shards] == ["Kitchen"]
    degraded = list_shards(ShardFilters(), {first.shards[0].task_id: "Damaged."}).shards[0].degraded
    assert degraded == "Damaged."


def test_dead_workers_are_missing(catalog: Settings, post: Post) -> None:
    """A library that never had a worker needs none before a task waits."""
    status = library_status()
    assert (status.live_workers, status.missing_workers) == (0, False)
    with session_scope(write=True) as session:
        report_worker(session, None)
    status = library_status()
    assert (status.live_workers, status.missing_workers) == (1, False)
    with session_scope(write=True) as session:
        session.execute(update(WorkerReport).values(seen_at=now(session) - ALIVE))
    status = library_status()
    assert (status.live_workers, status.missing_workers) == (0, True)
    with session_scope(write=True) as session:
        session.execute(delete(WorkerReport))
    post("birds")
    assert library_status().missing_workers


SHARD = Shard(id="s1", release_id="r1", fingerprint="f", count=3, dim=8, bytes=200)


def test_status_counts_tasks_videos_and_bytes(catalog: Settings, post_probed: Post) -> None:
    view = post_probed("birds", videos=3)
    assert lifecycle.claim_training(view.id, "host:1:2") is not None
    add_release_and_shard(view.id, SHARD, release_bytes=1000)
    shown = library_status({view.id: "vectors.faiss does not match its checksum"})
    assert shown.tasks["probing"] == 1
    assert shown.tasks["ready"] == 0
    assert (shown.videos, shown.vectors, shown.bytes_shards, shown.bytes_releases) == (3, 3, 200, 1000)
    assert [(w.owner, w.task) for w in shown.workers] == [("host:1:2", "birds")]
    assert (
        list_shards(ShardFilters()).shards[0].task,
        list_releases(ReleaseFilters()).releases[0].learned_order,
    ) == ("birds", 1)
    assert shown.degraded == {"birds": "vectors.faiss does not match its checksum"}
    assert shown.database == "ok"
    assert "doesn't respond" in shown.broker


def test_missing_shard_and_damaged_manifest_are_reported(
    sqlite_catalog: Settings, post: Post, post_probed: Post
) -> None:
    add_release_and_shard(post_probed("birds").id, SHARD, release_bytes=1000)
    assert "does not list" in library_status().degraded["birds"]
    view = post("cars")
    sqlite_catalog.index_dir.mkdir()
    (sqlite_catalog.index_dir / "manifest.json").write_text("{")
    assert "manifest.json" in library_status().degraded["index"]
    with pytest.raises(errors.Unavailable, match=r"manifest\.json"):
        commands.cancel_task(view.id)


def test_broker_state_is_reported(
    tmp_path: Path, settings_factory: Callable[..., Settings], broker_url: str
) -> None:
    settings_factory(tmp_path, redis_url=broker_url)
    assert library_status().broker == "ok"


def test_metrics(catalog: Settings, post: Post) -> None:
    post("one")
    post("two")
    prometheus_metrics.SEARCH_SECONDS.labels("encode").observe(0.002)
    page, kind = prometheus_metrics.render()
    text = page.decode()
    assert kind.startswith("text/plain")
    assert 'cinestrata_tasks{state="queued"} 2.0' in text
    assert 'cinestrata_tasks{state="ready"} 0.0' in text
    assert "cinestrata_shards 0.0" in text
    assert "cinestrata_catalog_up 1.0" in text
    assert 'cinestrata_search_seconds_bucket{le="0.0025",stage="encode"}' in text


def test_metrics_tell_tasks_of_dead_workers(catalog: Settings, post: Post) -> None:
    """A task whose worker died keeps its state, so only its lease shows that nothing happens."""
    ids = [post(name).id for name in ("dead", "alive", "probing")]
    with session_scope(write=True) as session:
        at = now(session)
        for task_id, probed_at, seconds in zip(ids, (at, at, None), (-1, 60, 60), strict=True):
            task = session.get_one(Task, task_id)
            task.state = "training" if probed_at else "probing"
            task.probed_at, task.lease_expires_at = probed_at, at + timedelta(seconds=seconds)
    text = prometheus_metrics.render()[0].decode()
    for work, held, free in (("probing", 1, 0), ("learning", 1, 1)):
        assert f'cinestrata_active_tasks{{lease="held",work="{work}"}} {held}.0' in text
        assert f'cinestrata_active_tasks{{lease="free",work="{work}"}} {free}.0' in text


def test_metrics_without_a_database(tmp_path: Path, settings_factory: Callable[..., Settings]) -> None:
    settings_factory(tmp_path, database_url="postgresql://nobody@127.0.0.1:1/none", upgraded=False)
    text = prometheus_metrics.render()[0].decode()
    assert "cinestrata_catalog_up 0.0" in text
    assert "cinestrata_tasks" not in text
