"""Temporary folders of backups: created with a lock, and removed after their process was killed."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from service.core.errors import Unavailable
from service.core.settings import settings

__all__ = ["snapshot_folder", "sweep_unfinished_snapshots"]

_PREFIX = ".snapshot-"
_NAME = re.compile(re.escape(_PREFIX) + r"[a-z0-9_]{8}", re.ASCII)  # as tempfile forms them
_LOCK = "lock"
_ABANDONED_SECONDS = 3600


@contextmanager
def snapshot_folder(parent: Path) -> Iterator[Path]:
    """Create a temporary folder that no sweep removes, and remove it after the ``with`` block.

    Args:
        parent: Folder that it is created in.
    """
    with TemporaryDirectory(dir=parent, prefix=_PREFIX) as name, open(Path(name, _LOCK), "wb") as lock:
        with suppress(OSError):  # a file system without locks: the age protects the folder
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield Path(name)


def sweep_unfinished_snapshots() -> int:
    """Remove temporary folders of killed processes from the folder ``backups``; returns their number.

    A folder stays while its process is alive, and for an hour after its last change. Links and folders of other names
    stay.

    Raises:
        Unavailable: the folder ``backups`` cannot be read.
    """
    try:
        found = [path for path in settings().backups_dir.iterdir() if _NAME.fullmatch(path.name)]
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise Unavailable(f"The folder of the snapshots cannot be read: {error.strerror}.", 30) from error
    return sum(_remove(path) for path in found if _is_abandoned(path))


def _is_abandoned(folder: Path) -> bool:
    """Whether nothing in the folder has changed for an hour, and no process holds its lock."""
    try:
        if folder.is_symlink() or not folder.is_dir():
            return False
        if _last_change(folder) >= time.time() - _ABANDONED_SECONDS:
            return False
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:  # removed by its process, or killed before it made the lock
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
    """Time of the last change in a folder. Files may vanish meanwhile: SQLite deletes its journals."""
    changed = folder.lstat().st_mtime
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            with suppress(FileNotFoundError):
                changed = max(changed, os.lstat(os.path.join(parent, name)).st_mtime)
    return changed


def _remove(folder: Path) -> bool:
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()
