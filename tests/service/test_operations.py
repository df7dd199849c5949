"""State of the operation, and the compactions and snapshots that workers run on request."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import select, update

from cinestrata_schemas.operations import JobSpec
from cinestrata_schemas.tasks import TaskDetails
from service.catalog.database import now, session_scope
from service.catalog.leases import acquire, process_name, report_worker, sweep_worker_reports
from service.catalog.operation_tables import LeaseRow, MaintenanceJob, WorkerReport
from service.catalog.tables import Event
from service.core.errors import InvalidInput, NotFound
from service.core.settings import Settings
from service.library import deletion
from service.operations import list_jobs, operations_status, run_job, send_due_jobs, start_job
from service.tasks import lifecycle
from tests.audited_changes import audit_entries
from tests.service.search.caption_library import Library


def test_compaction_drops_deleted_vectors(learning: Library) -> None:
    deletion.delete_videos(["birds-0"])
    job = start_job(JobSpec(kind="compact"))
    assert job.state == "queued"
    assert start_job(JobSpec(kind="compact")).id == job.id  # one at a time
    run_job(job.id)
    (done,) = list_jobs()
    assert (done.state, done.error) == ("done", None)
    assert done.result is not None
    assert (done.result["domains"], done.result["deleted"]) == (1, 1)
    assert learning.store.manifest().tombstones == {}
    run_job(job.id)  # a repeated message has no effect
    assert start_job(JobSpec(kind="compact", task="cars")).id != job.id


@pytest.mark.slow
def test_snapshot_is_a_verified_archive(learning: Library, configured: Settings) -> None:
    run_job(start_job(JobSpec(kind="snapshot")).id)
    (done,) = list_jobs()
    assert done.state == "done", done.error
    assert done.result is not None
    path = Path(done.result["path"])
    assert path.parent == configured.data_dir / "backups"
    with tarfile.open(path) as archive:
        names = archive.getnames()
    assert len(set(names) - {"snapshot.json"}) == done.result["files"]
    assert {"catalog.sqlite3", "snapshot.json", "index/manifest.json"} <= set(names)
    (entry,) = audit_entries(action=["snapshot.create"])
    assert (entry.target, entry.details["bytes"]) == (str(path), done.result["bytes"])


def test_failed_job_reports_its_reason_and_its_worker(
    learning: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_task: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(deletion, "compact", fail)
    deletion.delete_videos(["birds-0"])
    run_job(start_job(JobSpec(kind="compact", task="birds")).id)
    (failed,) = list_jobs()
    assert (failed.state, failed.error) == ("failed", "[Errno 28] No space left on device")
    with session_scope() as session:
        (report,) = session.scalars(select(WorkerReport)).all()
    assert "No space left on device" in (report.error or "")


def test_job_of_a_dead_worker_starts_again_at_most_three_times(
    tmp_path: Path, settings_factory: Callable[..., Settings], broker_url: str
) -> None:
    settings_factory(tmp_path, redis_url=broker_url)
    job = start_job(JobSpec(kind="compact"))
    with session_scope(write=True) as session:
        session.execute(update(MaintenanceJob).values(state="running", attempts=3))
        assert acquire(session, "job", str(job.id)) is not None
    run_job(job.id)
    assert list_jobs()[0].state == "running"  # its worker lives
    with session_scope(write=True) as session:
        session.execute(update(LeaseRow).values(until=now(session) - timedelta(seconds=1)))
    assert send_due_jobs() == 0  # the first message still waits in the queue
    run_job(job.id)
    assert list_jobs()[0].error == "The worker stopped 3 times. See its log, then repeat the job."


def test_invalid_jobs_are_refused(sqlite_catalog: Settings) -> None:
    with pytest.raises(NotFound):
        start_job(JobSpec(kind="compact", task="nobody"))
    with pytest.raises(InvalidInput, match="contains all domains"):
        start_job(JobSpec(kind="snapshot", task="x"))
    assert list_jobs() == []


def test_running_and_waiting_tasks_are_shown(
    catalog: Settings, post_probed: Callable[..., TaskDetails]
) -> None:
    first, second = post_probed("a"), post_probed("b")
    claim = lifecycle.claim_training(first.id, "host:7:8")
    assert claim is not None
    claim.advance("training")
    with session_scope(write=True) as session:
        at = now(session)
        for step in range(250):
            data = {
                "stage": "training",
                "fraction": step / 250,
                "loss": 1 / (step + 1),
                "videos_per_second": 2.0,
            }
            session.add(Event(task_id=first.id, at=at + timedelta(seconds=step), kind="progress", data=data))
    status = operations_status()
    assert ([task.id for task in status.queue], status.waiting) == ([second.id], 1)
    (running,) = status.running
    assert (running.id, running.state, len(running.points)) == (first.id, "training", 200)
    assert running.points[-1].loss == pytest.approx(1 / 250)
    assert running.points[-1].videos_per_second == 2
    assert [point.at for point in running.points] == sorted(point.at for point in running.points)
    claim.fail("Training diverged.")
    (worker,) = operations_status().workers
    assert (worker.name, worker.error) == ("host:7", "Task 'a': Training diverged.")


def test_dead_workers_are_marked_and_forgotten(catalog: Settings) -> None:
    with session_scope(write=True) as session:
        report_worker(session, 123)
        report_worker(session, 456)
    (worker,) = operations_status().workers
    assert (worker.name, worker.alive, worker.free_bytes) == (process_name(), True, 456)
    with session_scope(write=True) as session:
        session.execute(update(WorkerReport).values(seen_at=now(session) - timedelta(minutes=2)))
    assert not operations_status().workers[0].alive
    with session_scope(write=True) as session:
        session.execute(update(WorkerReport).values(seen_at=now(session) - timedelta(days=2)))
        sweep_worker_reports(session)
    assert operations_status().workers == []
