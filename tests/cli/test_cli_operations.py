"""Stored snapshots, maintenance jobs and task progress on the command line."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
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
from service.core.settings import Settings
from service.operations import list_jobs, run_job
from service.tasks import broker
from tests.cli.invocation import run, task_details


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
def test_snapshot_of_a_service_is_stored_and_downloaded(
    remote: Settings, publish_task: Callable[..., Manifest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_task("a", 2)
    monkeypatch.chdir(tmp_path)
    written = run("snapshot", "--url", "http://service")
    assert written.exit_code == 0, written.output
    (stored,) = json.loads(run("api", "GET", "/snapshots").output)
    assert f"cinestrata api GET /snapshots/{stored['name']} --output" in " ".join(written.output.split())
    both = run("snapshot", "c.tar", "--url", "http://service", "--json")
    assert json.loads(both.output)["state"] == "done"
    assert (tmp_path / "c.tar").stat().st_size > 0
    with tarfile.open(tmp_path / "c.tar") as archive:
        assert archive.getnames()


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


def test_followed_tasks_print_a_line_per_change_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [
        ("queued", TaskProgress(stage="queued")),
        ("training", TaskProgress(stage="training", epoch=1, epochs=2, loss=9.0)),
        ("training", TaskProgress(stage="training", epoch=1, epochs=2, loss=3.0)),
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
