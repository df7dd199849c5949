"""What faults act on besides processes: the network to a server, a PostgreSQL server, and the volume of the data."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_BLOCK = 65_536
_PG_SECONDS = 40.0  # for a start or a stop of PostgreSQL
_SIZE = "512m"  # of a volume; the estimate for a task alone is 256 MiB


class TcpProxy:
    """A TCP proxy on 127.0.0.1 that forwards connections to a server until it is closed, and can cut or freeze them."""

    def __init__(self, connect: Callable[[], socket.socket]) -> None:
        self._connect = connect
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._lock = threading.Lock()
        self._is_cut = threading.Event()
        self._flowing = threading.Event()
        self._flowing.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True, name="tcp-proxy").start()

    def cut(self) -> None:
        """Reset all connections, and refuse new ones until :meth:`restore`."""
        self._is_cut.set()
        self._close_pairs()

    def freeze(self) -> None:
        """Stop forwarding, without closing any connection, until :meth:`restore`."""
        self._flowing.clear()

    def restore(self) -> None:
        """Forward again."""
        self._is_cut.clear()
        self._flowing.set()

    def close(self) -> None:
        """Stop listening, and close all connections."""
        self._listener.close()
        self.restore()
        self._close_pairs()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                if self._is_cut.is_set():
                    raise ConnectionRefusedError
                server = self._connect()
            except OSError:
                _reset(client)
                continue
            with self._lock:
                self._pairs.add((client, server))
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=self._forward, args=(source, target), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while block := source.recv(_BLOCK):
                self._flowing.wait()
                target.sendall(block)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _close_pairs(self) -> None:
        with self._lock:
            pairs, self._pairs = self._pairs, set()
        for pair in pairs:
            for end in pair:
                _reset(end)


def _reset(connection: socket.socket) -> None:
    """Close a connection so that its peer gets an error at once."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


class PostgresServer:
    """A server from the ``pgserver`` wheel on a Unix socket, which can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        from pgserver.postgres_server import get_server

        self._server: Any = get_server(folder)
        self._folder = folder
        self._socket = Path(self._server.get_postmaster_info().socket_dir) / ".s.PGSQL.5432"
        self.url: str = self._server.get_uri()

    @classmethod
    def create(cls, folder: Path) -> PostgresServer | None:
        """Start a server; None if the wheel is not installed."""
        return cls(folder) if find_spec("pgserver") else None

    def connect(self) -> socket.socket:
        """Open a connection to the server; raises OSError."""
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(self._socket))
        except OSError:
            connection.close()
            raise
        return connection

    def is_running(self) -> bool:
        """Check whether the server process exists."""
        return self._pid() is not None

    def kill(self) -> bool:
        """Kill the server process; its children end by themselves. Returns whether it was running."""
        pid = self._pid()
        if pid is None:
            return False
        os.kill(pid, signal.SIGKILL)
        return True

    def start(self, port: int | None = None) -> None:
        """Start the server after it was killed and its children have ended; a port on loopback replaces its socket."""
        address = '-h ""' if port is None else f"-h 127.0.0.1 -p {port}"
        options = ["-w", "-t", "30", "-o", address, "-o", f"-k {self._socket.parent}"]
        with contextlib.suppress(subprocess.SubprocessError):
            self._control(*options, "-l", str(self._folder / "log"), "start")

    def command(self, address: str, port: int) -> list[str]:
        """Stop the server, and build the command line that runs it for clients on the network of an address."""
        self._server.cleanup()  # otherwise, it would stop whichever process has the postmaster's ID when this one ends
        with (self._folder / "pg_hba.conf").open("a", encoding="utf-8") as rules:
            rules.write("host all all all trust\n")
        program = str(import_module("pgserver._commands").POSTGRES_BIN_PATH / "postgres")
        user = self._server.system_user  # PostgreSQL refuses to run as root
        command = ["setpriv", f"--reuid={user}", "--clear-groups", program] if user else [program]
        where = ("-k", str(self._socket.parent), "-h", address, "-p", str(port))
        return [*command, "-D", str(self._folder), *where]

    def stop(self) -> None:
        """Stop the server."""
        with contextlib.suppress(subprocess.SubprocessError):
            self._control("-w", "-m", "immediate", "stop")

    def _control(self, *arguments: str) -> None:
        pgserver = import_module("pgserver")  # its control program is generated at import time
        pgserver.pg_ctl([*arguments], pgdata=self._folder, user=self._server.system_user, timeout=_PG_SECONDS)

    def _pid(self) -> int | None:
        try:
            pid = int((self._folder / "postmaster.pid").read_text().splitlines()[0])
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, ValueError, IndexError):
            return None
        return None if state == "Z" else pid


class DataVolume:
    """A volume for a data folder: a small tmpfs that can be filled up or made read-only.

    Both need the right to mount. Without it, the volume is a plain folder whose disk cannot be filled, and read-only
    means files and folders without write permission.
    """

    def __init__(self, path: Path, size: str = _SIZE) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self.is_limited = _mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path))

    @contextmanager
    def full(self) -> Iterator[None]:
        """Fill the volume to its last byte during the ``with`` block."""
        filler = self.path / "filler"
        try:
            with filler.open("wb", buffering=0) as file:
                for size in (_BLOCK, 512, 1):
                    try:
                        while file.write(bytes(size)):
                            pass
                    except OSError as error:
                        if error.errno != errno.ENOSPC:
                            raise
                yield
        finally:
            filler.unlink(missing_ok=True)

    @contextmanager
    def read_only(self) -> Iterator[None]:
        """Refuse to create files or open them for writing during the ``with`` block.

        Files that a process already has open stay writable, as on a volume whose permissions change.
        """
        target = str(self.path)
        if _mount("--bind", target, target):
            _mount("-o", "remount,bind,ro", target)
            try:
                yield
            finally:
                # Files opened meanwhile belong to this mount, and must become writable again.
                _mount("-o", "remount,bind,rw", target)
                subprocess.run(["umount", "--lazy", target], check=True)
            return
        modes: dict[Path, int] = {}
        try:
            for path in [self.path, *self.path.rglob("*")]:
                with contextlib.suppress(FileNotFoundError):
                    mode = path.stat().st_mode
                    path.chmod(mode & ~0o222)
                    modes[path] = mode
            yield
        finally:
            for path, mode in modes.items():
                with contextlib.suppress(FileNotFoundError):
                    path.chmod(mode)

    def close(self) -> None:
        """Release the volume. A tmpfs loses its content."""
        if self.is_limited:
            subprocess.run(["umount", "--lazy", str(self.path)], check=False)


def _mount(*arguments: str) -> bool:
    """Run mount. False if this process has no right to."""
    try:
        return subprocess.run(["mount", *arguments], check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False
