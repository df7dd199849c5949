"""The totals of the library and its Prometheus metrics."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from cinestrata_schemas.tasks import TaskDetails
from service.catalog.database import now, session_scope
from service.catalog.tables import Shard, Task
from service.core import errors
from service.core.settings import Settings
from service.library import prometheus_metrics
from service.library.library_listing import list_releases, list_shards
from service.library.library_status import library_status
from service.tasks import commands, lifecycle
from tests.catalog_rows import add_release_and_shard

Post = Callable[..., TaskDetails]


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
    assert (list_shards().shards[0].task, list_releases().releases[0].learned_order) == ("birds", 1)
    assert shown.degraded == {"birds": "vectors.faiss does not match its checksum"}
    assert shown.database == "ok"
    assert "doesn't respond" in shown.broker


def test_shard_missing_from_the_index_is_reported(sqlite_catalog: Settings, post_probed: Post) -> None:
    add_release_and_shard(post_probed("birds").id, SHARD, release_bytes=1000)
    assert "does not list" in library_status().degraded["birds"]


def test_damaged_manifest_is_reported(sqlite_catalog: Settings, post: Post) -> None:
    view = post()
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
    for work, lease, count in (
        ("probing", "held", 1),
        ("probing", "free", 0),
        ("learning", "held", 1),
        ("learning", "free", 1),
    ):
        assert f'cinestrata_active_tasks{{lease="{lease}",work="{work}"}} {count}.0' in text


def test_metrics_without_a_database(tmp_path: Path, settings_factory: Callable[..., Settings]) -> None:
    settings_factory(tmp_path, database_url="postgresql://nobody@127.0.0.1:1/none", upgraded=False)
    text = prometheus_metrics.render()[0].decode()
    assert "cinestrata_catalog_up 0.0" in text
    assert "cinestrata_tasks" not in text
