"""State, totals and alerts of the library, the versions of its parts, and the gauges of its measures."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import delete, select, update

from cinestrata_schemas.library import AlertDetails, LibraryVersions
from cinestrata_schemas.tasks import TaskDetails
from service.catalog.database import now, session_scope
from service.catalog.leases import ALIVE, report_worker
from service.catalog.operation_tables import Alert, Delivery, Webhook, WorkerReport
from service.catalog.tables import Recall, Shard, Task
from service.core import errors
from service.core.list_parameters import ReleaseFilters, ShardFilters
from service.core.settings import Settings
from service.library import prometheus_metrics
from service.library.alerts import evaluate_alerts, open_alerts
from service.library.library_listing import list_releases, list_shards
from service.library.library_status import MAX_ACTIVE, MAX_FIRST_DOMAINS, library_status
from service.library.prometheus_metrics import REGISTRY
from service.tasks import commands, lifecycle
from tests.catalog_rows import add_release_and_shard, mark_learned
from tests.measured_library import add_measured_domains

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


def test_dead_workers_are_missing(catalog: Settings, post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that never had a worker needs none before a task waits."""
    monkeypatch.setattr("service.library.library_status._loaded_at", float("inf"))
    status = library_status()
    assert (status.live_workers, status.missing_workers) == (0, False)
    with session_scope(write=True) as session:
        report_worker(session, None)
    status = library_status()
    assert (status.live_workers, status.missing_workers) == (1, False)
    with session_scope(write=True) as session:
        session.execute(update(WorkerReport).values(seen_at=now(session) - ALIVE))
    assert not library_status().missing_workers, (
        "a worker that was started with this process may still be loading"
    )
    monkeypatch.setattr("service.library.library_status._loaded_at", float("-inf"))
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


def shown_alerts() -> list[AlertDetails]:
    """Evaluate the alerts, and list them."""
    evaluate_alerts()
    with session_scope() as session:
        return open_alerts(session, 10)


def set_recall(value: float) -> None:
    """Compute the recall of the second release on the first domain; a new cell marks the change of the matrix."""
    with session_scope(write=True) as session:
        row = session.scalars(select(Recall).where(Recall.release_order == 2, Recall.task_order == 1)).one()
        session.delete(row)
        session.flush()
        facts = {column.key: getattr(row, column.key) for column in Recall.__table__.columns}
        session.add(Recall(**facts | {"id": facts["id"] + 10, "r1": value}))


@pytest.fixture
def two_domains(catalog: Settings) -> None:
    """Two domains of 100 queries; the first was learned with recall@1 of 0.5."""
    cells = {(1, 1): 0.5, (2, 1): 0.5, (2, 2): 0.8}
    add_measured_domains(cells, queries=lambda i, t: 100)


def test_loss_in_a_frozen_shard_raises_one_alert_until_it_recovers(two_domains: None) -> None:
    assert shown_alerts() == []
    set_recall(0.49)  # a loss of 0.01 crosses nothing yet
    assert shown_alerts() == []
    set_recall(0.39)
    (alert,) = shown_alerts()
    assert (alert.kind, alert.task, alert.value) == ("forgetting_local", "domain 1", pytest.approx(0.11))
    assert alert.message == (
        "Domain “domain 1” has lost 11.0 points of recall@1 in its own shard; the threshold is 2.0 points."
    )
    set_recall(0.41)
    (lasting,) = shown_alerts()
    assert (lasting.id, lasting.value) == (alert.id, pytest.approx(0.09)), "of the last round"
    status = library_status()
    assert ([shown.id for shown in status.alerts], status.open_alerts) == ([alert.id], 1)
    assert b'cinestrata_alerts{kind="forgetting_local"} 1.0' in prometheus_metrics.render()[0]
    set_recall(0.5)
    assert shown_alerts() == []


@pytest.mark.parametrize(
    ("mode", "gallery", "is_raised"),
    [
        ("pinned", "local", False),  # ranks in a frozen shard cannot change: only the queries did
        ("pinned", "global", True),
        ("latest", "local", True),
        ("latest", "global", True),
    ],
)
def test_loss_with_changed_queries_raises_an_alert_unless_the_shard_is_frozen(
    sqlite_catalog: Settings, mode: str, gallery: str, is_raised: bool
) -> None:
    for each in ("local", "global"):
        cells = {(1, 1): 0.8, (2, 1): 0.2 if each == gallery else 0.8, (2, 2): 0.8}
        add_measured_domains(cells, mode=mode, gallery=each, queries=lambda i, t: 100 - i)
    assert [alert.kind for alert in shown_alerts()] == ([f"forgetting_{gallery}"] if is_raised else [])


@pytest.mark.parametrize(("queries", "now_found"), [(19, 0.0), (20, 0.3)])
def test_loss_within_chance_raises_no_alert(sqlite_catalog: Settings, queries: int, now_found: float) -> None:
    """Few queries, and a loss among all shards whose interval contains 0."""
    add_measured_domains({(1, 1): 0.5, (2, 1): 0.5, (2, 2): 0.8}, queries=lambda i, t: queries)
    cells = {(1, 1): 0.5, (2, 1): now_found, (2, 2): 0.8}
    add_measured_domains(cells, gallery="global", queries=lambda i, t: queries)
    assert shown_alerts() == []


def test_two_workers_raise_an_alert_once_and_send_one_message(two_domains: None) -> None:
    with session_scope(write=True) as session:
        events = ["alert.raised", "alert.cleared"]
        fields = {"url": "https://example.com/", "secret": "s", "events": events, "enabled": True}
        session.add(Webhook(id="w", created_at=now(session), **fields))
    set_recall(0.2)
    with ThreadPoolExecutor(4) as threads:
        for round_ in [threads.submit(evaluate_alerts) for _ in range(4)]:
            round_.result()
    with session_scope() as session:
        assert len(session.scalars(select(Alert)).all()) == 1
        (message,) = session.scalars(select(Delivery)).all()
    assert (message.event, message.payload["data"]["task_id"]) == ("alert.raised", "t1")
    set_recall(0.5)
    evaluate_alerts()
    with session_scope() as session:
        messages = session.scalars(select(Delivery).order_by(Delivery.id)).all()
    assert [message.event for message in messages] == events
    raised, cleared = (set(message.payload["data"]) for message in messages)
    assert cleared - raised == {"cleared_at"}
    assert cleared == set(AlertDetails.model_fields)


MEASURES = ("recall", "forgetting", "router_accuracy", "unfound_domains")


def _samples(*names: str) -> dict[tuple[str, ...], float]:
    """Return the values of gauges whose names begin with these, by name and labels."""
    prefixes = tuple(f"cinestrata_{name}" for name in names)
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in REGISTRY.collect()
        for sample in family.samples
        if sample.name.startswith(prefixes)
    }


def test_gauges_are_those_of_the_served_release(catalog: Settings) -> None:
    assert _samples(*MEASURES, "gpu_memory") == {("cinestrata_unfound_domains",): 0}, "an empty library"
    cells = {(1, 1): 0.8, (2, 1): 0.5, (2, 2): 0.9}
    add_measured_domains(cells, queries=lambda i, t: 100)
    add_measured_domains(cells, gallery="global", queries=lambda i, t: 100)
    samples = _samples(*MEASURES)
    assert samples["cinestrata_recall", "local"] == pytest.approx(0.7)
    assert samples["cinestrata_recall_queries", "local"] == 200
    assert samples["cinestrata_forgetting", "local"] == pytest.approx(0.3)
    assert samples["cinestrata_router_accuracy",] == pytest.approx(0.7)
    assert samples["cinestrata_unfound_domains",] == 0


def test_number_of_series_does_not_grow_with_the_library(sqlite_catalog: Settings) -> None:
    add_measured_domains({(i, t): 0.5 for i in range(1, 4) for t in range(1, i + 1)})
    few = len(_samples(*MEASURES))
    add_measured_domains({(i, t): 0.5 for i in range(4, 30) for t in range(1, i + 1)})
    assert len(_samples(*MEASURES)) == few


def test_gpu_memory_is_that_of_running_workers(catalog: Settings) -> None:
    gpus = [{"device": n, "used_bytes": used, "total_bytes": 100} for n, used in enumerate((90, 5))]
    with session_scope(write=True) as session:
        at = now(session)
        for name, age, reported in (
            ("trainer:1", 30, [{"device": 0, "used_bytes": 1, "total_bytes": 100}]),
            ("trainer:2", 10, gpus),
            ("stopped:1", 120, gpus),
            ("without:1", 10, None),
        ):
            session.add(WorkerReport(name=name, seen_at=at - timedelta(seconds=age), gpus=reported))
    assert _samples("gpu_memory") == {
        ("cinestrata_gpu_memory_used_bytes", "trainer", "0"): 90,
        ("cinestrata_gpu_memory_used_bytes", "trainer", "1"): 5,
        ("cinestrata_gpu_memory_total_bytes", "trainer", "0"): 100,
        ("cinestrata_gpu_memory_total_bytes", "trainer", "1"): 100,
    }
