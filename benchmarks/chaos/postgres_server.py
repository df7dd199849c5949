"""A PostgreSQL server from the ``pgserver`` wheel that can be killed and started again."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_SECONDS = 40.0  # for a start or a stop


class PostgresServer:
    """A server on a Unix socket."""

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
        """Start the server after it was killed. Fails while children of the previous process are running.

        Args:
            port: Port on loopback that replaces the Unix socket's; None: no TCP.
        """
        address = '-h ""' if port is None else f"-h 127.0.0.1 -p {port}"
        options = ["-w", "-t", "30", "-o", address, "-o", f"-k {self._socket.parent}"]
        with contextlib.suppress(subprocess.SubprocessError):
            self._control(*options, "-l", str(self._folder / "log"), "start")

    def stop(self) -> None:
        """Stop the server."""
        with contextlib.suppress(subprocess.SubprocessError):
            self._control("-w", "-m", "immediate", "stop")

    def _control(self, *arguments: str) -> None:
        pgserver = import_module("pgserver")  # its control program is generated at import time
        pgserver.pg_ctl(list(arguments), pgdata=self._folder, user=self._server.system_user, timeout=_SECONDS)

    def _pid(self) -> int | None:
        try:
            pid = int((self._folder / "postmaster.pid").read_text().splitlines()[0])
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, ValueError, IndexError):
            return None
        return None if state == "Z" else pid
