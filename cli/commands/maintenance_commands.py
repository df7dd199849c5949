"""Stored snapshots (``cinestrata snapshots``), and the jobs of ``snapshot --url`` and ``compact --url``."""

from __future__ import annotations

import os
import time
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from cli.commands.task_commands import find_task
from cli.console import console, error_console, fail, plain_table, print_json, report_errors
from cli.missing_workers import WorkerWatch
from cli.service_client import connect
from cli.shared_options import AsJson, Data, Url

if TYPE_CHECKING:
    from cinestrata_schemas.operations import JobDetails, JobSpec
    from cli.service_client import ServiceClient

app = typer.Typer()

_POLL_SECONDS = 0.5


def run_remote_snapshot(url: str, target: Path | None) -> None:
    """Ask a worker of the service to write a snapshot, and optionally download it.

    Args:
        url: URL of the running service.
        target: New file; None leaves the snapshot in the service's data folder only.
    """
    from cinestrata_schemas.operations import JobSpec

    client = connect(url, None)
    if target is not None and target.exists():
        fail(f"{target} already exists.", "Nothing was written. Choose a new file.")
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
            f"The vectors of {result['external_tasks']} domains are in Milvus and not part of the snapshot.",
            soft_wrap=True,
        )


def run_remote_compaction(url: str, task: str | None) -> None:
    """Ask a worker of the service to free the disk space of deleted vectors.

    Args:
        url: URL of the running service.
        task: Name or ID of a domain; None compacts all domains.
    """
    from rich.filesize import decimal

    from cinestrata_schemas.operations import JobSpec

    client = connect(url, None)
    task_id = find_task(client, task).id if task is not None else None
    job = _run_job(client, JobSpec(kind="compact", task=task_id))
    result = job.result or {}
    before, after = (decimal(result.get(name, 0)) for name in ("bytes_before", "bytes_after"))
    print_json(job)
    console.print(
        f"{result.get('domains', 0)} domains: {result.get('deleted', 0)} vectors dropped, {before} before, "
        f"{after} now; the old files are removed within an hour",
        soft_wrap=True,
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


@app.command()
@report_errors
def snapshots(
    downloaded: Annotated[
        str | None,
        typer.Option(
            "--download",
            metavar="NAME",
            help="Download this snapshot, or the `newest`, to a new file for `restore`.",
        ),
    ] = None,
    target: Annotated[
        Path | None,
        typer.Option(
            "--to", help="New file for --download (default: the snapshot's name, in the current folder)."
        ),
    ] = None,
    deleted: Annotated[
        str | None, typer.Option("--delete", metavar="NAME", help="Permanently delete this stored snapshot.")
    ] = None,
    confirmed: Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation prompt.")] = False,
    as_json: AsJson = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """List the snapshots that a service stores, newest first, or download or delete one.

    Snapshots are written by `cinestrata snapshot --url` and on the library page.
    """
    from cli.service_client import connect

    client = connect(url, data)
    if downloaded is not None:
        name = _find(client, downloaded)
        file = target or Path(name)
        download_to(client, name, file)
        print_json({"snapshot": name, "path": str(file), "bytes": file.stat().st_size})
        console.print(f"{file}: {file.stat().st_size:,} bytes", soft_wrap=True)
    elif deleted is not None:
        name = _find(client, deleted)
        if not confirmed:
            typer.confirm(f"Permanently delete {name}?", abort=True, err=True)
        client.delete_snapshot(name)
        print_json({"deleted": name})
        console.print(f"{name} was deleted.")
    else:
        _list(client)


def _list(client: ServiceClient) -> None:
    stored = client.list_snapshots()
    print_json(stored)
    table = plain_table("snapshot", "written")
    table.add_column("MB", justify="right")
    for snapshot in stored:
        table.add_row(
            snapshot.name,
            f"{snapshot.created_at.astimezone():%Y-%m-%d %H:%M}",
            f"{snapshot.bytes / 1e6:,.1f}",
        )
    console.print(table if stored else "There are no stored snapshots.")


def download_to(client: ServiceClient, name: str, target: Path) -> None:
    """Download a stored snapshot to a new file; exits with an error if the file exists.

    An error leaves nothing behind.
    """
    try:
        # It contains the catalog, with key hashes and webhook secrets.
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        fail(f"{target} already exists.", "Nothing was downloaded. Choose a new file.")
    except OSError as error:
        _fail_to_write(target, error)
    try:
        with os.fdopen(descriptor, "wb") as file:
            client.download_snapshot(name, file)
    except BaseException as error:
        target.unlink(missing_ok=True)
        if isinstance(error, OSError):
            _fail_to_write(target, error)
        raise


def _fail_to_write(target: Path, error: OSError) -> NoReturn:
    fail(
        f"{target} cannot be written: {error.strerror}.",
        "Choose a file on a disk that this user can write to.",
    )


def _find(client: ServiceClient, name: str) -> str:
    names = [snapshot.name for snapshot in client.list_snapshots()]
    if name == "newest" and names:
        return names[0]
    if name not in names:
        fail(f"There is no stored snapshot {name!r}.", "See `cinestrata snapshots`.")
    return name
