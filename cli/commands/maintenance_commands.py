"""``cinestrata delete``, ``compact``, ``move`` and ``doctor``, and the jobs of a service: compaction and snapshots."""

from __future__ import annotations

import json
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.filesize import decimal

from cinestrata_schemas.operations import JobDetails, JobSpec
from cli.commands.api_command import write_new_file
from cli.commands.task_commands import find_task
from cli.console import (
    CommandGroup,
    console,
    error_console,
    fail,
    plain_table,
    print_json,
    progress_bar,
    refuse_call,
)
from cli.embedded.data_folder import data_folder_settings
from cli.options import AsJson, Data, Url
from cli.service_client import FINAL_STATES, ServiceClient, WorkerWatch, connect

if TYPE_CHECKING:
    from service.library.deletion import StorageUsage

app = CommandGroup()


@app.command()
def delete(
    videos: Annotated[
        list[str] | None, typer.Argument(metavar="VIDEO_ID...", help="IDs of the videos.", show_default=False)
    ] = None,
    task: Annotated[str | None, typer.Option(help="Domain (name or ID) to delete instead of videos.")] = None,
    confirmed: Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation prompt.")] = False,
    as_json: AsJson = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """Permanently delete videos or a domain. Searches, training and evaluation no longer use them."""
    chosen = videos or []
    if bool(chosen) is (task is not None):
        refuse_call("Give video IDs, or one domain with --task.")
    client = connect(url, data)
    chosen_task = None if task is None else find_task(client, task)
    if chosen_task is not None and chosen_task.state not in FINAL_STATES:  # fails before the prompt
        fail(
            f"Domain {chosen_task.name!r} is {chosen_task.state} and cannot be deleted.",
            f"Cancel it first: cinestrata tasks cancel {chosen_task.id}",
        )
    if not confirmed:
        target = f"video {chosen[0]!r}" if len(chosen) == 1 else f"{len(chosen)} videos"
        if chosen_task is not None:
            target = f"domain {chosen_task.name!r} and all {chosen_task.counts.videos} of its videos"
        typer.confirm(f"Permanently delete {target}?", abort=True)
    outcome = client.remove_videos(chosen) if chosen_task is None else client.delete_task(chosen_task.id)
    print_json(outcome)
    console.print(f"{len(outcome.deleted)} deleted")
    for video in outcome.not_found:
        error_console.print(f"There is no video {video!r}.")


@app.command()
def compact(
    task: Annotated[str | None, typer.Argument(help="Name or ID of a domain (default: all).")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show the disk space that deleted vectors take.")
    ] = False,
    as_json: AsJson = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """Free the disk space of deleted vectors. Searches continue, and nothing is re-embedded."""
    if url:
        if dry_run:
            refuse_call("--dry-run cannot be combined with --url.", "The library page shows the disk space.")
        _compact_remotely(url, task)
        return
    from service.access.audit_log import command_line_actor, set_process_actor
    from service.catalog.migrations import upgrade
    from service.library.deletion import (
        compact,
        storage_usage,
        sweep_frame_caches,
        sweep_index,
        sweep_orphan_thumbnails,
        update_shard_rows,
    )
    from service.search.library_words import write_words
    from service.storage import index_manifest

    upgrade(data_folder_settings(data))
    set_process_actor(command_line_actor())
    usages = storage_usage(task)
    if dry_run:
        print_json(usages)
    _print_usages(usages)
    if dry_run:
        return
    manifest = index_manifest.read_manifest()
    # An earlier compaction may have ended before this step.
    update_shard_rows(manifest, manifest.shards, "shard.compact")
    for usage in usages:
        if usage.is_compactable:
            with error_console.status(f"Compacting {usage.name} …"):
                compacted = compact(usage.task_id)
            console.print(
                f"{usage.name}: {usage.deleted} vectors dropped, {decimal(usage.bytes)} before, "
                f"{decimal(compacted.bytes)} now; the old files are removed within an hour"
            )
    write_words(compact=True)
    sweep_index()
    sweep_frame_caches()
    sweep_orphan_thumbnails()
    print_json(storage_usage(task))


def _print_usages(usages: Sequence[StorageUsage]) -> None:
    table = plain_table("domain")
    for heading in ("vectors", "deleted", "share", "segments", "size"):
        table.add_column(heading, justify="right", no_wrap=True)
    for usage in usages:
        share = f"{usage.deleted / max(usage.vectors, 1):.1%}"
        counts = (str(usage.vectors), str(usage.deleted), share, str(usage.segments))
        table.add_row(usage.name, *counts, decimal(usage.bytes))
    console.print(table)


_POLL_SECONDS = 0.5


def run_remote_snapshot(url: str, target: Path | None) -> None:
    """Ask a worker of the service to write a snapshot, and optionally download it."""
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
        console.say(f"The vectors of {result['external_tasks']} domains are in Milvus, not in the snapshot.")


def _compact_remotely(url: str, task: str | None) -> None:
    """Ask a worker of the service to free the disk space of deleted vectors."""
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


@app.command()
def move(
    to: Annotated[Literal["faiss", "milvus"], typer.Option(help="Target vector store.")],
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Copy the vectors of all domains to another vector store.

    The service may keep running, and nothing is re-embedded.
    """
    from index.errors import ShardStoreError
    from index.files.manifest_format import task_of
    from service.access.audit_log import command_line_actor, set_process_actor
    from service.catalog.migrations import upgrade
    from service.library.deletion import update_shard_rows
    from service.storage.index_manifest import library_store

    settings = data_folder_settings(data)
    if not settings.milvus.uri:
        fail("CINESTRATA_MILVUS__URI is not set.", "Set it to the Milvus server to move to or from.")
    upgrade(settings)
    set_process_actor(command_line_actor())
    store = library_store(settings.model_copy(update={"vector_store": to}))
    moved = 0
    try:
        manifest = store.manifest()
        places = [(task_of(key), shard.place) for key, shard in manifest.shards.items() if shard.count]
        nonempty = {task for task, _ in places}
        pending = list(dict.fromkeys(task for task, place in places if bool(place) is not (to == "milvus")))
        # An earlier move may have ended before this step.
        update_shard_rows(manifest, manifest.shards, "shard.move")
        with progress_bar("domains") as bar:
            row = bar.add_task(f"Moving to {to}", total=len(pending))
            for task in pending:
                update_shard_rows(store.move(task), [task], "shard.move")
                moved += 1
                bar.advance(row)
    except (OSError, ShardStoreError) as error:
        fail(
            f"Moving stopped after {moved} domains: {error}",
            "Fix the reported cause and run the command again; it continues with the next domain.",
        )
    print_json({"store": to, "moved": moved, "already_there": len(nonempty) - len(pending)})
    console.say(f"{moved} domains moved to {to}; {len(nonempty) - len(pending)} were already there.")
    if settings.vector_store != to:
        console.say(f"New domains still use the other store: set CINESTRATA_VECTOR_STORE={to}.")


@app.command()
def doctor(
    data: Data = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON document instead of lines.")] = False,
    backup: Annotated[
        Path | None,
        typer.Option(
            "--restore-from",
            help="First restore damaged index files from this backup, and recreate missing previews.",
            exists=True,
        ),
    ] = None,
) -> None:
    """Check software, storage, services and library. Exits with status 1 if a check fails."""
    from cli.commands.doctor import CHECKS
    from cli.commands.library_checks import RestoreReport, restore_files
    from service.backups.backup_files import BackupDamaged

    settings = data_folder_settings(data)
    report = RestoreReport()
    if backup is not None:
        try:
            with error_console.status("Restoring …"):
                report = restore_files(settings, backup)
        except (OSError, tarfile.TarError, BackupDamaged) as error:
            fail(f"Nothing was restored: {error}", "Name a backup written by `cinestrata snapshot`.")
    if not as_json:
        for color, word, lines in (("green", "restored", report.restored), ("red", "lost", report.lost)):
            for line in lines:
                console.print(f"{word:<8}", style=color, end="")
                console.say(f"  {line}")
    results: list[dict[str, str | bool]] = []
    for name, check in CHECKS.items():
        with error_console.status(f"Checking {name} …"):
            try:
                ok, detail = True, check(settings)
            except Exception as error:
                ok, detail = False, str(error) or type(error).__name__
        results.append({"check": name, "ok": ok, "detail": detail})
        if not as_json:
            console.print("ok    " if ok else "failed", style="green" if ok else "red", end="")
            console.say(f"  {name:<12} {detail}")
    all_ok = all(result["ok"] for result in results)
    if as_json:
        body = {"ok": all_ok, "checks": results, "restored": report.restored, "lost": report.lost}
        print(json.dumps(body, ensure_ascii=False, indent=1))
    if not all_ok:
        raise typer.Exit(1)
