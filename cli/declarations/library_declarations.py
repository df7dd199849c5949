"""Commands that check, compact, move and back up a library, and list its changes."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

import typer

from cli.console import refuse_call, report_errors
from cli.shared_options import AsJson, Data, Url

__all__ = ["app"]

app = typer.Typer()


@app.command()
@report_errors
def compact(
    task: Annotated[str | None, typer.Argument(help="Name or id of a task (default: all).")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show the disk space of deleted vectors.")
    ] = False,
    as_json: AsJson = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """Free the disk space of deleted vectors. Searches continue, and nothing is embedded again."""
    if url:
        from cli.commands.maintenance_command import run_remote_compaction

        if dry_run:
            refuse_call("--dry-run cannot be combined with --url.", "The library page shows the disk space.")
        run_remote_compaction(url, task)
        return
    from cli.commands.deletion_commands import run_compact

    run_compact(task, dry_run, data)


@app.command()
@report_errors
def doctor(
    data: Data = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document instead of lines.")
    ] = False,
    backup: Annotated[
        Path | None,
        typer.Option(
            "--restore-from",
            help="First restore damaged files of the index from this backup, and make missing previews again.",
            exists=True,
        ),
    ] = None,
) -> None:
    """Check software, storage, services and library. Exits with status 1 if a check fails."""
    from cli.commands.doctor import run_doctor

    run_doctor(data, as_json, backup)


@app.command()
@report_errors
def move(
    to: Annotated[Literal["faiss", "milvus"], typer.Option("--to", help="Target vector store.")],
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Copy the vectors of all tasks to another vector store. The service may run, and nothing is embedded again."""
    from cli.commands.move_command import run_move

    run_move(to, data)


@app.command()
@report_errors
def snapshot(
    target: Annotated[
        Path | None,
        typer.Argument(
            help="New folder, or new .tar file. With --url: new .tar file, or none.", show_default=False
        ),
    ] = None,
    url: Url = None,
    data: Data = None,
    index_only: Annotated[
        bool, typer.Option("--index-only", help="Omit the catalog, because it was dumped separately.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Back up catalog and index, and verify the backup. The service may run; with --url, one of its workers does it."""
    if url:
        from cli.commands.maintenance_command import run_remote_snapshot

        if index_only:
            refuse_call(
                "--index-only cannot be combined with --url.", "Use --data on the machine of the service."
            )
        run_remote_snapshot(url, target)
        return
    if target is None:
        refuse_call(
            "Missing argument TARGET.", "Name a new folder or a new .tar file; only --url needs none."
        )
    from cli.commands.backup_commands import run_snapshot

    run_snapshot(target, data, index_only)


@app.command()
@report_errors
def restore(
    source: Annotated[Path, typer.Argument(help="Backup that `cinestrata snapshot` wrote.", exists=True)],
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Restore a backup into a new data folder, after verifying all checksums."""
    from cli.commands.backup_commands import run_restore

    run_restore(source, data)


@app.command()
@report_errors
def forgetting(
    as_json: AsJson = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """Show the recall of each domain when it was learned and now. With --json, the whole recall matrix."""
    from cli.commands.forgetting_command import run_forgetting

    run_forgetting(url, data)


@app.command()
@report_errors
def audit(
    actor: Annotated[
        str | None, typer.Option("--actor", help="Only changes of this user, key or process.")
    ] = None,
    action: Annotated[
        list[str] | None,
        typer.Option(
            "--action",
            help="Only this action, such as task.delete, or a resource, such as task; may be repeated.",
        ),
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", help="Only changes of the resource with this id.")
    ] = None,
    address: Annotated[
        str | None, typer.Option("--address", help="Only requests from this network address.")
    ] = None,
    text: Annotated[str | None, typer.Option("--text", help="Only entries that contain this text.")] = None,
    after: Annotated[datetime | None, typer.Option("--after", help="Earliest time (UTC).")] = None,
    before: Annotated[datetime | None, typer.Option("--before", help="Latest time (UTC).")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="Maximum number of entries.")] = 50,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print all entries as JSON lines, oldest first; --limit has no effect."),
    ] = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """List changes with actor, time and address, newest first."""
    from cli.commands.audit_command import run_audit

    conditions = {
        "actor": actor,
        "action": action or None,
        "target": target,
        "address": address,
        "text": text,
        "after": after,
        "before": before,
    }
    run_audit(conditions, limit, as_json, url, data)
