"""Backups of catalog and index: write a consistent one while all processes run, list, open and delete those of workers.

The index write lock is held while the catalog copy begins and the manifest is read. Every publication holds it until
the catalog is committed, so both show the same state. The lock is released before anything is copied.

Names of workers' backups have one fixed form, so none leads out of the folder ``backups``. Other files and links there
are left alone.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import stat
import tarfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import structlog
from sqlalchemy.exc import SQLAlchemyError

from cinestrata_schemas.operations import SnapshotDetails
from index.errors import ShardStoreError
from index.files.durable_files import sync
from index.files.manifest_format import Manifest
from index.files.store_folder import list_manifest_files
from index.shard_store import ShardStore
from service.access.audit_log import record_change
from service.backups import backup_files
from service.backups.backup_catalog import open_catalog_copy
from service.catalog.database import session_scope, sqlite_path
from service.core.errors import Conflict, NotFound, Unavailable
from service.core.settings import Settings, settings
from service.storage.disk_budget import RESERVE_BYTES
from service.storage.index_manifest import index_lock

_LOCK_SECONDS = 600.0  # compacting a large shard takes minutes
_ABANDONED_SECONDS = 24 * 3600
_TIME = "%Y%m%dT%H%M%SZ"
_NAME = re.compile(r"cinestrata-([0-9]{8}T[0-9]{6}Z)-[0-9]{1,19}\.tar", re.ASCII)
_PREFIX = ".snapshot-"
_FOLDER_NAME = re.compile(re.escape(_PREFIX) + r"[a-z0-9_]{8}", re.ASCII)  # as tempfile creates them

# Of a backup that cannot be written or read.
_FILE_ERRORS = (OSError, tarfile.TarError, sqlite3.Error)
BACKUP_ERRORS = (*_FILE_ERRORS, SQLAlchemyError, ShardStoreError, backup_files.BackupDamaged)

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class SnapshotReport:
    """A written and verified backup."""

    path: Path  # folder or archive
    files: int  # number of files that a restore copies: all but snapshot.json, which ``bytes`` includes
    bytes: int
    external_tasks: int  # number of tasks whose vectors are in another vector store, and so not in the backup


def write_snapshot(
    library: Settings,
    target: Path,
    *,
    index_only: bool = False,
    progress: backup_files.ProgressReport | None = None,
) -> SnapshotReport:
    """Write a backup to a new folder or ``.tar`` file, without the catalog if ``index_only``, and verify it.

    Raises Conflict if the target exists or the library is empty; Unavailable if the disk has no space, a file cannot be
    read, written or verified, or another process changed the index for ten minutes. An error leaves nothing behind.
    ``progress`` is called after each file with the copied and the total bytes.
    """
    if target.exists():
        raise Conflict(f"{target} already exists. Choose a new folder, or a new .tar file.")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=target.parent, prefix=_PREFIX) as folder:
            temporary = Path(folder)
            files, manifest = _collect_files(library, temporary, index_only)
            total = sum(file.bytes for file in files.values())
            _require_space(library, temporary, total)
            part = temporary / f"part{target.suffix}"
            backup_files.write_backup(part, files, progress)
            with backup_files.open_backup(part) as open_file:
                for name, file in files.items():
                    backup_files.copy_and_verify(open_file, name, file)
            count = len(files) - 1  # not counting the description, as a restore does
            _publish(library, part, target, {"files": count, "bytes": total, "index_only": index_only})
            sync(target.parent)
    except BACKUP_ERRORS as error:
        raise Unavailable(
            f"The backup failed: {error}. No files were left behind. Fix the reported cause, then try again.",
            60,
        ) from error
    external = sum(bool(shard.place) for shard in manifest.shards.values())
    return SnapshotReport(target, count, total, external)


def _require_space(library: Settings, temporary: Path, needed: int) -> None:
    """Refuse a backup that would fill its disk, or use up the library's reserve on the same disk."""
    reserve = RESERVE_BYTES if temporary.stat().st_dev == library.data_dir.stat().st_dev else 0
    free = shutil.disk_usage(temporary).free
    if free < needed + reserve:
        besides = f" besides the {reserve:,} bytes that stay free for the library" if reserve else ""
        raise Unavailable(
            f"The backup needs {needed:,} bytes{besides}, but {temporary.parent} has {free:,} bytes free. Free some "
            "space, or choose another folder.",
            60,
        )


def _publish(library: Settings, part: Path, target: Path, facts: dict[str, Any]) -> None:
    """Rename a finished backup in the transaction of its audit log entry, or else without one."""
    file = sqlite_path(library.database_url)
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
    library: Settings, temporary: Path, index_only: bool
) -> tuple[dict[str, backup_files.BackupFile], Manifest]:
    """Collect a backup's files by name, and the manifest. Files that may change are first copied to ``temporary``."""
    files: dict[str, backup_files.BackupFile] = {}
    store = ShardStore(library.index_dir)
    if index_only:
        manifest = _published_manifest(store)
    else:
        _published_manifest(store)  # otherwise the lock would create an empty library's folder
        with ExitStack() as stack:
            with index_lock(wait_seconds=_LOCK_SECONDS):
                write_catalog = stack.enter_context(open_catalog_copy(library))
                manifest = _published_manifest(store)
            if write_catalog is not None:
                file = sqlite_path(library.database_url)
                _require_space(library, temporary, file.stat().st_size if file is not None else 0)
                write_catalog(temporary / backup_files.CATALOG)
                files[backup_files.CATALOG] = backup_files.BackupFile.from_path(
                    temporary / backup_files.CATALOG
                )
    written = temporary / "manifest.json"
    written.write_text(manifest.dumps(), encoding="utf-8")
    files[backup_files.MANIFEST] = backup_files.BackupFile.from_path(written)
    for name, (path, digest) in list_manifest_files(store, manifest).items():
        files[f"index/{name}"] = backup_files.BackupFile(path, path.stat().st_size, digest)
    description = backup_files.write_description(
        temporary / backup_files.DESCRIPTION, files, generation=manifest.generation, release=manifest.release
    )
    return {backup_files.DESCRIPTION: description, **files}, manifest


def snapshot_name(at: datetime, job: int) -> str:
    """Name a backup by its UTC time and its job, so that a repeated run differs from that of a dead worker."""
    return f"cinestrata-{at:{_TIME}}-{job}.tar"


def list_snapshots() -> list[SnapshotDetails]:
    """List the stored backups, newest first."""
    snapshots = filter(None, map(_find_snapshot, _list_folder()))
    return sorted(snapshots, key=lambda snapshot: (snapshot.created_at, snapshot.name), reverse=True)


def snapshot_path(name: str) -> Path:
    """Find a stored backup's file; raise NotFound."""
    if _find_snapshot(name) is None:
        raise _unknown(name)
    return settings().backups_dir / name


def delete_snapshot(name: str) -> None:
    """Delete a backup; raise NotFound. Downloads in progress complete."""
    path = snapshot_path(name)
    with session_scope(write=True) as session:
        record_change(session, "snapshot.delete", name)
        session.flush()
        try:
            path.unlink()
            sync(path.parent)
        except FileNotFoundError:
            raise _unknown(name) from None
        except OSError as error:
            raise Unavailable(f"The snapshot {name} can't be deleted: {error.strerror}.", 30) from error


def _find_snapshot(name: str) -> SnapshotDetails | None:
    """Describe a regular file with the name of a backup; None for links, folders and missing files."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    try:
        created = datetime.strptime(match[1], _TIME).replace(tzinfo=UTC)
        status = os.lstat(settings().backups_dir / name)
    except (ValueError, OSError):  # digits that are not a date, or no file
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return SnapshotDetails(name=name, bytes=status.st_size, created_at=created)


def _unknown(name: str) -> NotFound:
    return NotFound(f"The data folder has no snapshot {name[:100]!r}.")


def sweep_unfinished_snapshots() -> int:
    """Remove killed processes' temporary folders from the folder ``backups``, and return how many.

    A folder stays for a day after its last change: even a slow backup writes more often. Links, and folders with other
    names, stay.
    """
    removed = 0
    for name in _list_folder():
        folder = settings().backups_dir / name
        if not _FOLDER_NAME.fullmatch(name) or folder.is_symlink() or not folder.is_dir():
            continue
        if _last_change(folder) < time.time() - _ABANDONED_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)
            removed += not folder.exists()
    return removed


def _last_change(folder: Path) -> float:
    """Find the newest change time in a folder, whose files may vanish meanwhile."""
    changed = 0.0
    for path in (folder, *folder.rglob("*")):
        with suppress(FileNotFoundError):
            changed = max(changed, path.lstat().st_mtime)
    return changed


def _list_folder() -> list[str]:
    try:
        return os.listdir(settings().backups_dir)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise Unavailable(f"The snapshots folder can't be read: {error.strerror}.", 30) from error
