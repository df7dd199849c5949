"""A TCP proxy for a server, whose connections can be cut or frozen."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

_BLOCK = 65_536


class TcpProxy:
    """Forwards connections to a server until it is closed.

    Args:
        connect: Opens a connection to the server.

    Attributes:
        port: Port on 127.0.0.1 that clients connect to.
    """

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
            if self._is_cut.is_set():
                _reset(client)
                continue
            try:
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
