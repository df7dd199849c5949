"""List, open and delete the backups that workers have written, and remove what killed processes left unfinished.

Names have one fixed form, so none leads out of the folder ``backups``. Other files and links there are left alone.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from cinestrata_schemas.operations import SnapshotDetails
from index.files.durable_files import sync
from service.access.audit_log import record_change
from service.catalog.database import session_scope
from service.core.errors import NotFound, Unavailable
from service.core.settings import settings

_TIME = "%Y%m%dT%H%M%SZ"
_NAME = re.compile(r"cinestrata-([0-9]{8}T[0-9]{6}Z)-[0-9]{1,19}\.tar", re.ASCII)


def snapshot_name(at: datetime, job: int) -> str:
    """Name the file of a backup.

    Args:
        at: Time of the backup in UTC.
        job: Number of the job. It tells a repeated run from that of a dead worker, whose file may exist.
    """
    return f"cinestrata-{at:{_TIME}}-{job}.tar"


def list_snapshots() -> list[SnapshotDetails]:
    """List the stored backups, newest first."""
    try:
        names = os.listdir(settings().backups_dir)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise Unavailable(f"The snapshots folder can't be read: {error.strerror}.", 30) from error
    found = []
    for name in names:
        created, size = _creation_time(name), _size(name)
        if created is not None and size is not None:
            found.append(SnapshotDetails(name=name, bytes=size, created_at=created))
    return sorted(found, key=lambda each: (each.created_at, each.name), reverse=True)


def snapshot_path(name: str) -> Path:
    """Find a stored backup's file.

    Raises:
        NotFound: There is no such backup.
    """
    if _creation_time(name) is None or _size(name) is None:
        raise _unknown(name)
    return settings().backups_dir / name


def delete_snapshot(name: str) -> None:
    """Delete a backup. Downloads in progress complete.

    Raises:
        NotFound: There is no such backup.
        Unavailable: The file cannot be deleted.
    """
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


def _creation_time(name: str) -> datetime | None:
    match = _NAME.fullmatch(name)
    try:
        return datetime.strptime(match[1], _TIME).replace(tzinfo=UTC) if match else None
    except ValueError:  # digits that are not a date
        return None


def _size(name: str) -> int | None:
    """Measure a regular file in the folder; None for links, folders and missing files."""
    try:
        status = os.lstat(settings().backups_dir / name)
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _unknown(name: str) -> NotFound:
    return NotFound(f"The data folder has no snapshot {name[:100]!r}.")


_PREFIX = ".snapshot-"
_FOLDER_NAME = re.compile(re.escape(_PREFIX) + r"[a-z0-9_]{8}", re.ASCII)  # as tempfile creates them
_LOCK = "lock"
_ABANDONED_SECONDS = 3600


@contextmanager
def snapshot_folder(parent: Path) -> Iterator[Path]:
    """Create a temporary folder that no sweep removes, and remove it after the ``with`` block."""
    with TemporaryDirectory(dir=parent, prefix=_PREFIX) as name, open(Path(name, _LOCK), "wb") as lock:
        with suppress(OSError):  # without file locks, the folder's age protects it
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield Path(name)


def sweep_unfinished_snapshots() -> int:
    """Remove killed processes' temporary folders from the folder ``backups``, and return how many.

    A folder stays while its process is alive, and for an hour after its last change. Links, and folders with other
    names, stay.

    Raises:
        Unavailable: The folder ``backups`` cannot be read.
    """
    try:
        found = [path for path in settings().backups_dir.iterdir() if _FOLDER_NAME.fullmatch(path.name)]
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise Unavailable(f"The snapshots folder can't be read: {error.strerror}.", 30) from error
    return sum(_remove(path) for path in found if _is_abandoned(path))


def _is_abandoned(folder: Path) -> bool:
    """Check whether nothing in the folder has changed for an hour and no process holds its lock."""
    try:
        if folder.is_symlink() or not folder.is_dir():
            return False
        if _last_change(folder) >= time.time() - _ABANDONED_SECONDS:
            return False
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:  # its process removed it, or was killed before making the lock
        return folder.exists()
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _last_change(folder: Path) -> float:
    """Find the newest change time in a folder. Files may vanish meanwhile: SQLite deletes its journals."""
    changed = folder.lstat().st_mtime
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            with suppress(FileNotFoundError):
                changed = max(changed, os.lstat(os.path.join(parent, name)).st_mtime)
    return changed


def _remove(folder: Path) -> bool:
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()
