"""``cinestrata snapshot`` and ``cinestrata restore``: a consistent backup of catalog and index, without downtime.

The catalog is copied first. If a task is published in between, the manifest contains its shard before the catalog
calls it ready. That is the state after a worker's death, and the next worker completes it.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from cli.commands.backup_catalog import has_catalog_rows, installed_catalog, write_catalog_copy
from cli.commands.backup_files import (
    CATALOG,
    DESCRIPTION,
    MANIFEST,
    BackupDamaged,
    BackupFile,
    copy_and_verify,
    open_backup,
    read_description,
    require_intact_catalog,
    verify_files,
    write_backup,
    write_description,
)
from cli.console import console, fail, print_json
from cli.embedded.data_folder import data_folder_settings
from cli.embedded.data_folder_lock import FolderBusy, hold_data_folder
from index.files.durable_files import sync

if TYPE_CHECKING:
    from service.core.settings import Settings

__all__ = ["run_restore", "run_snapshot"]


def run_snapshot(target: Path, data: Path | None, index_only: bool) -> None:
    """Write a backup and verify it. After an error nothing is left of it.

    Args:
        target: New folder, or new file that ends in ``.tar``.
        data: Data folder; None takes it from the environment.
        index_only: Whether to omit the catalog.
    """
    from sqlalchemy.exc import SQLAlchemyError

    from index.errors import ShardStoreError

    settings = data_folder_settings(data)
    target = target.expanduser().absolute()
    if target.exists():
        fail(f"{target} already exists.", "Name a new folder, or a new .tar file.")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=target.parent, prefix=".snapshot-") as temporary:
            files = _collect_files(settings, Path(temporary), index_only)
            external_tasks = _count_external_tasks(files[MANIFEST].path)
            total = sum(file.bytes for file in files.values())
            free = shutil.disk_usage(temporary).free
            if free < total:
                fail(
                    f"The backup needs {total:,} bytes, but {target.parent} has {free:,} bytes free.",
                    "Free some space, or choose another folder.",
                )
            part = Path(temporary) / f"part{target.suffix}"
            write_backup(part, files)
            with open_backup(part) as open_file:
                verify_files(open_file, files)
            os.rename(part, target)
            sync(target.parent)
    except (
        OSError,
        ShardStoreError,
        SQLAlchemyError,
        sqlite3.Error,
        tarfile.TarError,
        BackupDamaged,
    ) as error:
        fail(
            f"The backup failed: {error}",
            "No files were left behind. Correct the reported cause, then try again.",
        )
    print_json({"path": str(target), "files": len(files), "bytes": total, "external_tasks": external_tasks})
    console.print(f"{target}: {len(files)} files, {total:,} bytes, verified", soft_wrap=True)
    if external_tasks:
        console.print(
            f"The vectors of {external_tasks} tasks are in Milvus and not part of the backup, which contains their "
            "ids and digests. Back them up with milvus-backup now, and restore them before you restore this backup.",
            soft_wrap=True,
        )


def run_restore(source: Path, data: Path | None) -> None:
    """Verify a backup and restore it into a data folder without catalog and index.

    Args:
        source: Folder or archive that ``cinestrata snapshot`` wrote.
        data: Data folder; None takes it from the environment.
    """
    from sqlalchemy.exc import SQLAlchemyError

    from index.errors import ShardStoreError
    from index.integrity_audit import audit
    from service.catalog.database import sqlite_path
    from service.core.errors import CinestrataError
    from service.storage.vector_store_selection import library_store

    settings = data_folder_settings(data)
    try:
        with (
            hold_data_folder(settings.run_dir, settings.data_dir),
            TemporaryDirectory(dir=settings.data_dir, prefix=".restore-") as temporary,
            open_backup(source) as open_file,
        ):
            work = Path(temporary)
            files = read_description(open_file)
            catalog = sqlite_path(settings.database_url)
            _require_empty_target(settings, catalog, has_catalog=CATALOG in files)
            for name, file in files.items():
                copy_and_verify(open_file, name, file, work / name)
            faults = audit(library_store(settings.model_copy(update={"data_dir": work}))).problems
            if faults:
                raise BackupDamaged("; ".join(faults))
            if CATALOG in files:
                require_intact_catalog(work / CATALOG)
                with installed_catalog(settings, work / CATALOG):
                    os.rename(work / "index", settings.index_dir)
            else:
                os.rename(work / "index", settings.index_dir)
            sync(settings.data_dir)
    except FolderBusy as error:
        fail(str(error), "Stop it first.")
    except (
        OSError,
        ShardStoreError,
        CinestrataError,
        SQLAlchemyError,
        sqlite3.Error,
        tarfile.TarError,
        KeyError,
        BackupDamaged,
    ) as error:
        fail(f"Nothing was restored from {source}: {error}", "Use another backup, or another data folder.")
    print_json({"path": str(settings.data_dir), "files": len(files), "has_catalog": CATALOG in files})
    console.print(f"{settings.data_dir}: {len(files)} files, all checksums correct", soft_wrap=True)
    if CATALOG not in files:
        console.print("The backup has no catalog: restore the dump of the catalog with its own tool.")


def _require_empty_target(settings: Settings, catalog: Path | None, *, has_catalog: bool) -> None:
    # SQLite would apply a write-ahead log that was left behind to the restored catalog.
    targets = (settings.index_dir, *([catalog, Path(f"{catalog}-wal")] if catalog else []))
    existing = [path for path in targets if path.exists()]
    if existing:
        fail(f"{existing[0]} already exists.", "Restore into a new folder, or move the file away first.")
    if has_catalog and catalog is None and has_catalog_rows(settings):
        fail(
            "The database that CINESTRATA_DATABASE_URL names contains tasks already.",
            "Restore into an empty database.",
        )


def _collect_files(settings: Settings, temporary: Path, index_only: bool) -> dict[str, BackupFile]:
    """The files of a backup by name; files that may change are copied to ``temporary`` first."""
    from index.manifest_files import list_manifest_files
    from index.shard_store import ShardStore

    files: dict[str, BackupFile] = {}
    if not index_only:
        copy = temporary / CATALOG
        if write_catalog_copy(settings, copy):
            files[CATALOG] = BackupFile.from_path(copy)
    store = ShardStore(settings.index_dir)
    manifest = store.manifest()
    if manifest.release is None:
        fail("The library is empty: there is nothing to back up.")
    written = temporary / "manifest.json"
    written.write_text(manifest.dumps(), encoding="utf-8")
    files[MANIFEST] = BackupFile.from_path(written)
    for name, (path, digest) in list_manifest_files(store, manifest).items():
        files[f"index/{name}"] = BackupFile(path, path.stat().st_size, digest)
    description = write_description(
        temporary / DESCRIPTION, files, generation=manifest.generation, release=manifest.release
    )
    return {DESCRIPTION: description, **files}


def _count_external_tasks(manifest: Path) -> int:
    """Number of tasks whose vectors are in another vector store."""
    from index.files.manifest_format import Manifest

    shards = Manifest.loads(manifest.read_text(encoding="utf-8")).shards
    return sum(bool(shard.place) for shard in shards.values())
