"""Write a consistent backup of catalog and index while all processes run.

The index write lock is held while the catalog copy begins and the manifest is read. Every publication holds it until
the catalog is committed, so both show the same state. The lock is released before anything is copied.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tarfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from sqlalchemy.exc import SQLAlchemyError

from index.errors import ShardStoreError
from index.files.durable_files import sync
from index.files.manifest_format import Manifest
from index.files.store_folder import list_manifest_files
from index.shard_store import ShardStore
from service.access.audit_log import record_change
from service.backups.backup_catalog import open_catalog_copy
from service.backups.backup_files import (
    CATALOG,
    DESCRIPTION,
    MANIFEST,
    BackupDamaged,
    BackupFile,
    ProgressReport,
    open_backup,
    verify_files,
    write_backup,
    write_description,
)
from service.backups.stored_snapshots import snapshot_folder
from service.catalog.database import session_scope, sqlite_path
from service.core.errors import Conflict, Unavailable
from service.core.settings import Settings
from service.storage.disk_budget import RESERVE_BYTES
from service.storage.index_manifest import index_lock

_LOCK_SECONDS = 600.0  # compacting a large shard takes minutes

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class SnapshotReport:
    """A written and verified backup.

    Attributes:
        path: Folder or archive.
        files: Number of files that a restore copies: all but ``snapshot.json``.
        bytes: Total size, including ``snapshot.json``.
        external_tasks: Number of tasks whose vectors are in another vector store, and so not in the backup.
    """

    path: Path
    files: int
    bytes: int
    external_tasks: int


def write_snapshot(
    settings: Settings, target: Path, *, index_only: bool = False, progress: ProgressReport | None = None
) -> SnapshotReport:
    """Write a backup and verify it. An error leaves nothing behind.

    Args:
        target: New folder, or new file that ends in ``.tar``.
        index_only: Whether to leave out the catalog.
        progress: Called after each file with the copied and the total bytes.

    Raises:
        Conflict: The target exists, or the library is empty.
        Unavailable: The disk has no space, a file cannot be read, written or verified, or another process changed the
            index for ten minutes.
    """
    if target.exists():
        raise Conflict(f"{target} already exists. Choose a new folder, or a new .tar file.")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with snapshot_folder(target.parent) as temporary:
            files, manifest = _collect_files(settings, temporary, index_only)
            total = sum(file.bytes for file in files.values())
            _require_space(settings, temporary, total)
            part = temporary / f"part{target.suffix}"
            write_backup(part, files, progress)
            with open_backup(part) as open_file:
                verify_files(open_file, files)
            count = len(files) - 1  # not counting the description, as a restore does
            _publish(settings, part, target, {"files": count, "bytes": total, "index_only": index_only})
            sync(target.parent)
    except (
        OSError,
        ShardStoreError,
        SQLAlchemyError,
        sqlite3.Error,
        tarfile.TarError,
        BackupDamaged,
    ) as error:
        raise Unavailable(
            f"The backup failed: {error}. No files were left behind. Fix the reported cause, then try again.",
            60,
        ) from error
    external = sum(bool(shard.place) for shard in manifest.shards.values())
    return SnapshotReport(target, count, total, external)


def _require_space(settings: Settings, temporary: Path, needed: int) -> None:
    """Refuse a backup that would fill its disk, or use up the library's reserve on the same disk."""
    reserve = RESERVE_BYTES if _is_same_disk(temporary, settings.data_dir) else 0
    free = shutil.disk_usage(temporary).free
    if free < needed + reserve:
        besides = f" besides the {reserve:,} bytes that stay free for the library" if reserve else ""
        raise Unavailable(
            f"The backup needs {needed:,} bytes{besides}, but {temporary.parent} has {free:,} bytes free. Free some "
            "space, or choose another folder.",
            60,
        )


def _is_same_disk(first: Path, second: Path) -> bool:
    return first.stat().st_dev == second.stat().st_dev


def _publish(settings: Settings, part: Path, target: Path, facts: dict[str, Any]) -> None:
    """Rename a finished backup, in the transaction of its audit log entry.

    A catalog that does not respond does not prevent a backup of the index.
    """
    file = sqlite_path(settings.database_url)
    if file is None or file.exists():
        try:
            with session_scope(write=True) as session:
                record_change(session, "snapshot.create", str(target), facts)
                session.flush()
                os.rename(part, target)
        except Unavailable as error:
            log.warning("snapshot_not_in_audit_log", path=str(target), reason=str(error))
    if not target.exists():
        os.rename(part, target)


def _published_manifest(store: ShardStore) -> Manifest:
    manifest = store.manifest()
    if manifest.release is None:
        raise Conflict("The library is empty: there is nothing to back up.")
    return manifest


def _collect_files(
    settings: Settings, temporary: Path, index_only: bool
) -> tuple[dict[str, BackupFile], Manifest]:
    """Collect a backup's files by name, and the manifest. Files that may change are first copied to ``temporary``."""
    files: dict[str, BackupFile] = {}
    store = ShardStore(settings.index_dir)
    if index_only:
        manifest = _published_manifest(store)
    else:
        _published_manifest(store)  # otherwise the lock would create an empty library's folder
        with ExitStack() as stack:
            with index_lock(wait_seconds=_LOCK_SECONDS):
                write_catalog = stack.enter_context(open_catalog_copy(settings))
                manifest = _published_manifest(store)
            if write_catalog is not None:
                file = sqlite_path(settings.database_url)
                _require_space(settings, temporary, file.stat().st_size if file is not None else 0)
                write_catalog(temporary / CATALOG)
                files[CATALOG] = BackupFile.from_path(temporary / CATALOG)
    written = temporary / "manifest.json"
    written.write_text(manifest.dumps(), encoding="utf-8")
    files[MANIFEST] = BackupFile.from_path(written)
    for name, (path, digest) in list_manifest_files(store, manifest).items():
        files[f"index/{name}"] = BackupFile(path, path.stat().st_size, digest)
    description = write_description(
        temporary / DESCRIPTION, files, generation=manifest.generation, release=manifest.release
    )
    return {DESCRIPTION: description, **files}, manifest
