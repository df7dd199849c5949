"""Maintenance jobs of a running service: ``cinestrata snapshot --url`` and ``cinestrata compact --url``."""

from __future__ import annotations

import time
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from cli.commands.stored_snapshot_commands import download_to
from cli.commands.task_commands import find_task
from cli.console import console, error_console, fail, print_json
from cli.service_client import connect

if TYPE_CHECKING:
    from cinestrata_schemas.operations import JobDetails, JobSpec
    from cli.service_client import ServiceClient


_POLL_SECONDS = 0.5


def run_remote_snapshot(url: str, target: Path | None) -> None:
    """Let a worker of the service write a snapshot, and download it on request.

    Args:
        url: URL of the running service.
        target: New file; None leaves the snapshot in the data folder of the service only.
    """
    from cinestrata_schemas.operations import JobSpec

    client = connect(url, None)
    if target is not None and target.exists():
        fail(f"{target} exists already.", "Nothing was written. Name a new file.")
    job = _run_job(client, JobSpec(kind="snapshot"))
    result = job.result or {}
    name = PurePath(str(result.get("path"))).name
    if target is not None:
        download_to(client, name, target)
    print_json(job)
    console.print(
        f"{name}: {result.get('files')} files, {result.get('bytes', 0):,} bytes, verified", soft_wrap=True
    )
    if target is None:
        console.print("The service stores it: cinestrata snapshots --download newest", soft_wrap=True)
    else:
        console.print(f"Downloaded to {target}", soft_wrap=True)
    if result.get("external_tasks"):
        console.print(
            f"The vectors of {result['external_tasks']} tasks are in Milvus and not part of the snapshot.",
            soft_wrap=True,
        )


def run_remote_compaction(url: str, task: str | None) -> None:
    """Let a worker of the service free the disk space of deleted vectors.

    Args:
        url: URL of the running service.
        task: Name or id of a task; None compacts all tasks.
    """
    from cinestrata_schemas.operations import JobSpec

    client = connect(url, None)
    task_id = find_task(client, task).id if task is not None else None
    job = _run_job(client, JobSpec(kind="compact", task=task_id))
    result = job.result or {}
    print_json(job)
    console.print(
        f"{result.get('domains', 0)} domains: {result.get('deleted', 0)} vectors dropped, "
        f"{result.get('bytes_before', 0) / 1e6:.1f} MB before, {result.get('bytes_after', 0) / 1e6:.1f} MB now; "
        "the replaced files are removed in an hour",
        soft_wrap=True,
    )


def _run_job(client: ServiceClient, spec: JobSpec) -> JobDetails:
    """Start a job, and return it when it has ended; exits with status 1 if it fails."""
    job = client.start_job(spec)
    with error_console.status(f"Job {job.id} runs on a worker …"):
        while job.state in ("queued", "running"):
            time.sleep(_POLL_SECONDS)
            job = next((other for other in client.get_operations().jobs if other.id == job.id), job)
    if job.state == "failed":
        fail(f"Job {job.id} failed: {job.error}", "See the log of the worker.")
    return job
