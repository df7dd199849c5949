"""Alerts, stored snapshots, maintenance jobs and task progress on the command line."""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from cinestrata_schemas.operations import JobDetails, JobSpec
from cinestrata_schemas.tasks import TaskDetails, TaskProgress
from cli.commands import maintenance_commands
from cli.commands.task_commands import follow
from cli.console import console
from cli.service_client import ServiceClient
from index.files.manifest_format import Manifest
from service.catalog.database import session_scope
from service.catalog.operation_tables import Alert
from service.core.settings import Settings
from service.operations.maintenance_jobs import list_jobs, run_job
from service.tasks import broker
from tests.cli.answers import task_details
from tests.cli.invocation import run


class _ClientWithWorker(ServiceClient):
    """A service whose worker runs a job as soon as it is started."""

    def lacks_workers(self) -> bool:
        return False

    def start_job(self, spec: JobSpec) -> JobDetails:
        job = super().start_job(spec)
        run_job(job.id)
        return job


@pytest.fixture
def remote(folder: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A data folder whose jobs run; ``--url`` leads to it."""
    monkeypatch.setattr(maintenance_commands, "connect", lambda *_: _ClientWithWorker(None))
    monkeypatch.setattr(broker, "send_maintenance", lambda _: True)
    return folder


@pytest.mark.slow
def test_snapshot_of_a_service_is_stored_listed_downloaded_and_deleted(
    remote: Settings, publish_task: Callable[..., Manifest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_task("a", 2)
    monkeypatch.chdir(tmp_path)
    written = run("snapshot", "--url", "http://service")
    assert written.exit_code == 0, written.output
    assert "cinestrata snapshots --download newest" in written.output
    (stored,) = json.loads(run("snapshots", "--json").output)
    assert stored["name"] in run("snapshots").output
    report = json.loads(run("snapshots", "--download", "newest", "--json").output)
    assert (report["snapshot"], report["bytes"]) == (stored["name"], stored["bytes"])
    file = tmp_path / stored["name"]
    assert (file.stat().st_size, file.stat().st_mode & 0o77) == (stored["bytes"], 0)
    with tarfile.open(file) as archive:
        assert archive.getnames()
    again = run("snapshots", "--download", "newest")
    assert (again.exit_code, "already exists" in again.output) == (1, True)
    missing = run("snapshots", "--download", "cinestrata-20200101T000000Z-9.tar", "--to", "b.tar")
    assert (missing.exit_code, (tmp_path / "b.tar").exists()) == (1, False)
    both = run("snapshot", "c.tar", "--url", "http://service", "--json")
    assert json.loads(both.output)["state"] == "done"
    assert (tmp_path / "c.tar").stat().st_size > 0
    assert json.loads(run("snapshots", "--delete", stored["name"], "-y", "--json").output) == {
        "deleted": stored["name"]
    }


@pytest.mark.slow
def test_failed_job_of_a_service_is_an_error(
    remote: Settings, publish_task: Callable[..., Manifest], monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_task("a", 2)
    compacted = run("compact", "a", "--url", "http://service", "--json")
    assert json.loads(compacted.output)["result"]["domains"] == 0
    assert "0 vectors dropped" in run("compact", "--url", "http://service").output
    remote.backups_dir.write_text("no folder")
    failed = run("snapshot", "--url", "http://service")
    assert (failed.exit_code, list_jobs(1)[0].state) == (1, "failed")
    assert f"Job {list_jobs(1)[0].id} failed: " in failed.output


def test_alerts_are_listed_and_dismissed(folder: Settings) -> None:
    assert "No open alerts." in run("alerts").output
    with session_scope(write=True) as session:
        alert = Alert(
            kind="failed_tasks",
            value=2.0,
            threshold=1.0,
            raised_at=datetime.now(UTC),
        )
        session.add(alert)
        session.flush()
        number = alert.id
    listed = run("alerts").output
    assert re.fullmatch(rf"{number}  \d{{4}}-.*\n    .*2 .*failed.*\n", listed), listed
    assert json.loads(run("alerts", "--json").output)["open_count"] == 1
    assert run("alerts", "--dismiss", str(number)).exit_code == 0
    assert "failed" not in run("alerts").output
    assert "dismissed" in run("alerts", "--all").output


def test_followed_tasks_print_a_line_per_change_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [
        ("queued", TaskProgress(stage="queued")),
        ("training", TaskProgress(stage="training", epoch=1, epochs=2, eta_seconds=9)),
        ("training", TaskProgress(stage="training", epoch=1, epochs=2, eta_seconds=3)),
        ("training", TaskProgress(stage="training", epoch=2, epochs=2)),
        ("ready", TaskProgress(stage="ready", fraction=1.0)),
    ]

    def task(_: str) -> TaskDetails:
        state, progress = steps.pop(0)
        return task_details(id="t", name="rooms", state=state, progress=progress)

    monkeypatch.setattr("time.sleep", lambda _: None)
    with console.capture() as capture:
        follow(SimpleNamespace(get_task=task, lacks_workers=lambda: False), ["t"])  # type: ignore[arg-type]
    shown = capture.get().splitlines()
    assert shown[:4] == ["rooms: queued", "rooms: training 1/2", "rooms: training 2/2", "rooms: ready"]
    assert "ready" in shown[-1]
    assert capture.get().endswith("\n")


def test_forgetting_of_an_empty_library_is_explained(folder: Settings) -> None:
    assert "No domain has been measured" in run("forgetting").output
    assert json.loads(run("forgetting", "--json").output)["tasks"] == []
