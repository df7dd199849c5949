"""The bounded state of the library, and its versions."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import delete, update

from cinestrata_schemas.library import LibraryVersions
from cinestrata_schemas.tasks import TaskDetails
from service.catalog.database import now, session_scope
from service.catalog.operation_tables import WorkerReport
from service.catalog.tables import Shard, Task
from service.catalog.worker_reports import ALIVE, report_worker
from service.core.settings import Settings
from service.library.library_listing import list_shards
from service.library.library_status import MAX_ACTIVE, MAX_FIRST_DOMAINS, library_status
from service.tasks import commands, lifecycle
from tests.catalog_rows import add_release_and_shard, mark_learned
from tests.measured_library import add_measured_domains

Post = Callable[..., TaskDetails]


def _changed(before: LibraryVersions) -> set[str]:
    after = library_status().versions.model_dump()
    return {part for part, version in before.model_dump().items() if after[part] != version}


def _publish(task_id: str, order: int) -> None:
    mark_learned(task_id, order)
    add_release_and_shard(
        task_id,
        Shard(id=f"s{order}", release_id=f"r{order}", fingerprint="f", count=3, dim=8, bytes=200),
        order=order,
    )


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


def test_shards_are_listed_in_pages(catalog: Settings, post_probed: Post) -> None:
    for order, name in enumerate(["birds", "cars", "Kitchen"], 1):
        _publish(post_probed(name).id, order)
    first = list_shards(limit=2)
    assert [shard.task for shard in first.shards] == ["birds", "cars"]
    last = list_shards(limit=2, cursor=first.next_cursor)
    assert ([shard.task for shard in last.shards], last.next_cursor) == (["Kitchen"], None)
    assert [shard.task for shard in list_shards(text="KITCH").shards] == ["Kitchen"]
    degraded = list_shards({first.shards[0].task_id: "Damaged."}).shards[0].degraded
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


def test_failed_tasks_are_counted(catalog: Settings) -> None:
    add_measured_domains({(1, 1): 0.5, (2, 2): 0.5})
    with session_scope(write=True) as session:
        session.execute(update(Task).where(Task.id == "t1").values(state="failed", finished_at=now(session)))
    assert library_status().open_failures == 1
