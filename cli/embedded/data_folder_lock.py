"""Who runs on a data folder: a lock that dies with its holder, and a note of where to reach it.

The note is for the holder's user alone: it tells the broker's address, which may hold a password.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from cli.console import fail

if TYPE_CHECKING:
    from service.core.settings import Settings

__all__ = ["FolderBusy", "FolderLock", "data_folder_settings", "locked", "running"]

_NAME = "up.lock"
_TRIES, _TRY_SECONDS = 20, 0.01


class FolderBusy(Exception):
    """Another process runs on this data folder. ``holder`` is its note: pid, url, redis_url (any may be missing)."""

    def __init__(self, folder: Path, holder: dict[str, Any]) -> None:
        self.holder = holder
        who = f"process {holder['pid']}" if "pid" in holder else "another process"
        where = f" at {holder['url']}" if "url" in holder else ""
        super().__init__(f"Cinestrata already runs on {folder}: {who}{where}.")


class FolderLock:
    """The held lock. The kernel releases it when the process ends, however it ends."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def note(self, **facts: Any) -> None:
        """Replace what others read about the holder."""
        self._file.seek(0)
        self._file.truncate()
        json.dump({"pid": os.getpid(), **facts}, self._file)
        self._file.flush()


@contextmanager
def locked(run_dir: Path, data_dir: Path) -> Iterator[FolderLock]:
    """Hold the data folder for this process.

    Raises:
        FolderBusy: it is held already.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    # Opened for appending: the holder's note must survive the attempt of a second one.
    with _open(run_dir, "a+") as file:
        if not _taken(file):
            raise FolderBusy(data_dir, _read(file))
        lock = FolderLock(file)
        lock.note()
        yield lock
        file.truncate(0)


def data_folder_settings(data: Path | None) -> Settings:
    """The settings for work on this data folder (by default the environment's), in this process and its children.

    Where an embedded service runs on the folder, its broker is used.
    """
    from service.core.settings import settings

    if data is not None:
        os.environ["CINESTRATA_DATA_DIR"] = str(data)
    settings.cache_clear()
    if "CINESTRATA_REDIS_URL" not in os.environ:
        holder = running(settings().run_dir)
        if holder and "redis_url" in holder:
            os.environ["CINESTRATA_REDIS_URL"] = holder["redis_url"]
            settings.cache_clear()
    return settings()


def running(run_dir: Path) -> dict[str, Any] | None:
    """The note of whoever runs on this folder now, or None."""
    try:
        with _open(run_dir, "r") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return _read(file)
    except FileNotFoundError:
        return None
    return None


def _open(run_dir: Path, mode: Literal["r", "a+"]) -> IO[str]:
    """The lock's file, which only its owner can read. Leaves with a sentence where that is somebody else.

    Raises:
        FileNotFoundError: it is to be read, and is not there.
    """
    path = run_dir / _NAME
    flags = os.O_RDONLY if mode == "r" else os.O_RDWR | os.O_CREAT | os.O_APPEND
    try:
        descriptor = os.open(path, flags, 0o600)
        if mode != "r":
            os.fchmod(descriptor, 0o600)  # one that an earlier version made
    except PermissionError:
        fail(
            f"{path} belongs to another user, who runs Cinestrata on this folder, or once did.",
            "Run this as that user, or talk to the service with --url. Where nothing runs on the folder any more, "
            "remove the file.",
        )
    return os.fdopen(descriptor, mode, encoding="utf-8")


def _taken(file: IO[str]) -> bool:
    """Whether the lock is ours now. Who only looks whether it is held holds it for a moment, too."""
    for _ in range(_TRIES):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            time.sleep(_TRY_SECONDS)
    return False


def _read(file: IO[str]) -> dict[str, Any]:
    file.seek(0)
    try:
        note = json.load(file)
    except ValueError:  # being written just now
        return {}
    return note if isinstance(note, dict) else {}
