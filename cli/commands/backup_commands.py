"""``cinestrata snapshot`` and ``cinestrata restore``: back up catalog and index without downtime."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from cli.console import CommandGroup, console, fail, print_json, progress_bar, refuse_call
from cli.embedded.data_folder import FolderBusy, data_folder_settings, hold_data_folder
from cli.options import AsJson, Data, Url
from index.files.durable_files import sync
from service.backups import backup_files

if TYPE_CHECKING:
    from service.core.settings import Settings

app = CommandGroup()


@app.command()
def snapshot(
    target: Annotated[
        Path | None,
        typer.Argument(help="New folder or .tar file. With --url: .tar file, or none.", show_default=False),
    ] = None,
    url: Url = None,
    data: Data = None,
    index_only: Annotated[
        bool, typer.Option("--index-only", help="Leave out the catalog (if you dump it separately).")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Back up catalog and index, and verify the backup.

    The service may keep running; with --url, one of its workers writes the backup.
    """
    if url:
        from cli.commands.maintenance_commands import run_remote_snapshot

        if index_only:
            refuse_call(
                "--index-only cannot be combined with --url.",
                "Use --data on the machine that runs the service.",
            )
        run_remote_snapshot(url, target)
        return
    if target is None:
        refuse_call("Missing argument TARGET.", "Give a folder or .tar file; optional only with --url.")
    from service.access.audit_log import command_line_actor, set_process_actor
    from service.backups.snapshots import write_snapshot

    settings = data_folder_settings(data)
    set_process_actor(command_line_actor())
    with progress_bar("bytes") as bar:
        task = bar.add_task("Copying", total=None)
        report = write_snapshot(
            settings,
            target.expanduser().absolute(),
            index_only=index_only,
            progress=lambda copied, total: bar.update(task, completed=copied, total=total),
        )
    print_json(asdict(report))
    console.say(f"{report.path}: {report.files} files, {report.bytes:,} bytes, verified")
    if report.external_tasks:
        console.say(
            f"The vectors of {report.external_tasks} domains are in Milvus, so the backup has only their "
            "IDs and digests. Back them up with milvus-backup now, and restore them before this backup."
        )


@app.command()
def restore(
    source: Annotated[Path, typer.Argument(help="Backup written by `cinestrata snapshot`.", exists=True)],
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Verify all checksums of a backup and restore it into a new data folder."""

    from index.integrity_audit import audit
    from service.access.audit_log import command_line_actor, set_process_actor
    from service.backups.backup_catalog import install_catalog, reserve_vector_ids
    from service.backups.snapshots import BACKUP_ERRORS
    from service.catalog.database import sqlite_path
    from service.core.errors import CinestrataError
    from service.storage.index_manifest import library_store
    from service.tasks.uploaded_videos import find_unstored_uploads, renew_uploads

    settings = data_folder_settings(data)
    set_process_actor(command_line_actor())
    try:
        with (
            hold_data_folder(settings.run_dir, settings.data_dir),
            TemporaryDirectory(dir=settings.data_dir, prefix=".restore-") as temporary,
            backup_files.open_backup(source) as open_file,
        ):
            work = Path(temporary)
            files = backup_files.read_description(open_file)
            catalog = sqlite_path(settings.database_url)
            _require_empty_target(settings, catalog, has_catalog=backup_files.CATALOG in files)
            for name, file in files.items():
                backup_files.copy_and_verify(open_file, name, file, work / name)
            store = library_store(settings.model_copy(update={"data_dir": work}))
            if faults := audit(store).problems:
                raise backup_files.BackupDamaged("; ".join(faults))
            uploads = renew_uploads()  # before a worker can compare them with the restored catalog
            last_video = store.last_video_id()
            if backup_files.CATALOG in files:
                backup_files.require_intact_catalog(work / backup_files.CATALOG)
                with (
                    ExitStack() as index,  # outlives the commit, so that a failed one moves the index back
                    install_catalog(
                        settings, work / backup_files.CATALOG, origin=source, last_video=last_video
                    ),
                ):
                    index.enter_context(_installed_index(work / "index", settings.index_dir))
            else:
                if catalog is None:
                    reserve_vector_ids(settings, last_video)
                with _installed_index(work / "index", settings.index_dir):
                    pass
    except FolderBusy as error:
        fail(str(error), "Stop it first.")
    except (*BACKUP_ERRORS, CinestrataError, KeyError) as error:
        fail(f"Nothing was restored from {source}: {error}", "Use another backup, or another data folder.")
    print_json(
        {"path": str(settings.data_dir), "files": len(files), "has_catalog": backup_files.CATALOG in files}
    )
    console.say(f"{settings.data_dir}: {len(files)} files, all checksums correct")
    if backup_files.CATALOG not in files:
        console.print("The backup has no catalog: restore your catalog dump with its own tool.")
    if unstored := find_unstored_uploads() if uploads and backup_files.CATALOG in files else uploads:
        console.say(
            f"{settings.uploads_dir}: {len(unstored)} uploads belong to no task in the catalog and will "
            "be removed after a day; copy any files you need."
        )


@contextmanager
def _installed_index(source: Path, target: Path) -> Iterator[None]:
    """Move a restored index into place; an exception in the ``with`` block moves it back."""
    os.rename(source, target)
    try:
        sync(target.parent)
        yield
    except BaseException:
        os.rename(target, source)
        raise


def _require_empty_target(settings: Settings, catalog: Path | None, *, has_catalog: bool) -> None:
    from service.backups.backup_catalog import find_catalog_rows

    # SQLite would apply a leftover write-ahead log to the restored catalog.
    targets = (settings.index_dir, *([catalog, Path(f"{catalog}-wal")] if catalog else []))
    existing = [path for path in targets if path.exists()]
    if existing:
        fail(f"{existing[0]} already exists.", "Restore into a new folder, or move the file away first.")
    filled = find_catalog_rows(settings) if has_catalog and catalog is None else None
    if filled is not None:
        fail(
            f"The database in CINESTRATA_DATABASE_URL is not empty: its table {filled} has rows.",
            "Restore into an empty database.",
        )
