"""Jobs of a service: ``cinestrata snapshot --url`` and ``compact --url``."""

from __future__ import annotations

import time
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from cli.commands.api_command import write_new_file
from cli.commands.task_commands import find_task
from cli.console import console, error_console, fail, print_json
from cli.missing_workers import WorkerWatch
from cli.service_client import connect

if TYPE_CHECKING:
    from cinestrata_schemas.operations import JobDetails, JobSpec
    from cli.service_client import ServiceClient

_POLL_SECONDS = 0.5


def run_remote_snapshot(url: str, target: Path | None) -> None:
    """Ask a worker of the service to write a snapshot, and optionally download it."""
    from cinestrata_schemas.operations import JobSpec

    client = connect(url, None)
    if target is not None and target.exists():
        fail(f"{target} already exists.", "Nothing was written. Choose a new file.")
    job = _run_job(client, JobSpec(kind="snapshot"))
    result = job.result or {}
    name = PurePath(str(result.get("path"))).name
    if target is not None:
        with client.stream("GET", f"/snapshots/{name}") as response:
            write_new_file(response, target)
    print_json(job)
    console.say(f"{name}: {result.get('files')} files, {result.get('bytes', 0):,} bytes, verified")
    if target is None:
        console.say(f"To download it: cinestrata api GET /snapshots/{name} --output {name}")
    else:
        console.say(f"Downloaded to {target}")
    if result.get("external_tasks"):
        console.say(
            f"The vectors of {result['external_tasks']} domains are in Milvus and not part of the snapshot."
        )


def run_remote_compaction(url: str, task: str | None) -> None:
    """Ask a worker of the service to free the disk space of deleted vectors."""
    from rich.filesize import decimal

    from cinestrata_schemas.operations import JobSpec

    client = connect(url, None)
    task_id = find_task(client, task).id if task is not None else None
    job = _run_job(client, JobSpec(kind="compact", task=task_id))
    result = job.result or {}
    before, after = (decimal(result.get(name, 0)) for name in ("bytes_before", "bytes_after"))
    print_json(job)
    console.say(
        f"{result.get('domains', 0)} domains: {result.get('deleted', 0)} vectors dropped, {before} before, "
        f"{after} now; the old files are removed within an hour"
    )


def _run_job(client: ServiceClient, spec: JobSpec) -> JobDetails:
    """Run a job and return it when it ends; exits with status 1 if it fails."""
    job = client.start_job(spec)
    workers = WorkerWatch(client)
    with error_console.status(f"Job {job.id} runs on a worker …"):
        while job.state in ("queued", "running"):
            workers.check()
            time.sleep(_POLL_SECONDS)
            job = next((other for other in client.get_operations().jobs if other.id == job.id), job)
    if job.state == "failed":
        fail(f"Job {job.id} failed: {job.error}", "See the worker's log.")
    return job
