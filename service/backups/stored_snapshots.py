"""The backups that workers have written to the folder ``backups``: list, download path and deletion.

A name has one form, so no name leads out of the folder. Other files there, and links, are neither listed nor touched.
"""

from __future__ import annotations

import os
import re
import stat
from datetime import UTC, datetime
from pathlib import Path

from cinestrata_schemas.operations import SnapshotDetails
from index.files.durable_files import sync
from service.audit.audit_log import record_change
from service.catalog.database import session_scope
from service.core.errors import NotFound, Unavailable
from service.core.settings import settings

__all__ = ["delete_snapshot", "list_snapshots", "snapshot_name", "snapshot_path"]

_TIME = "%Y%m%dT%H%M%SZ"
_NAME = re.compile(r"cinestrata-([0-9]{8}T[0-9]{6}Z)-[0-9]{1,19}\.tar", re.ASCII)


def snapshot_name(at: datetime, job: int) -> str:
    """Return the file name of a backup.

    Args:
        at: Time of the backup in UTC.
        job: Number of the job, which distinguishes a repeated run of a dead worker, whose file may exist.
    """
    return f"cinestrata-{at:{_TIME}}-{job}.tar"


def list_snapshots() -> list[SnapshotDetails]:
    """Return the stored backups, newest first."""
    try:
        names = os.listdir(settings().backups_dir)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise Unavailable(f"The folder of the snapshots cannot be read: {error.strerror}.", 30) from error
    found = []
    for name in names:
        created, size = _creation_time(name), _size(name)
        if created is not None and size is not None:
            found.append(SnapshotDetails(name=name, bytes=size, created_at=created))
    return sorted(found, key=lambda each: (each.created_at, each.name), reverse=True)


def snapshot_path(name: str) -> Path:
    """Return the path of a backup.

    Raises:
        NotFound: there is no such backup.
    """
    if _creation_time(name) is None or _size(name) is None:
        raise _unknown(name)
    return settings().backups_dir / name


def delete_snapshot(name: str) -> None:
    """Delete a backup. Downloads that have begun are completed.

    Raises:
        NotFound: there is no such backup.
        Unavailable: the file cannot be deleted.
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
            raise Unavailable(f"The snapshot {name} cannot be deleted: {error.strerror}.", 30) from error


def _creation_time(name: str) -> datetime | None:
    match = _NAME.fullmatch(name)
    try:
        return datetime.strptime(match[1], _TIME).replace(tzinfo=UTC) if match else None
    except ValueError:  # digits that are no date
        return None


def _size(name: str) -> int | None:
    """Size of a regular file in the folder; None for links, folders and absent files."""
    try:
        status = os.lstat(settings().backups_dir / name)
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _unknown(name: str) -> NotFound:
    return NotFound(f"The data folder has no snapshot {name[:100]!r}.")
