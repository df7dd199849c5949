"""Milvus servers for tests.

By default tests use milvus-lite, a local ``.db`` file. With ``CINESTRATA_TEST_MILVUS_URI=http://host:19530`` they use a
database of their own on that server, so that the same tests cover a real server. ``tests/index/milvus/
test_standalone_server.py`` (slow) starts the standalone server of the PyPI package ``milvus`` and runs them on it.

Both kinds can be lost for a while: a server is reached through a relay in this process, which closes its connections;
milvus-lite is stopped, and started again by the next client.
"""

from __future__ import annotations

import os
import socket
import socketserver
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

URI_VARIABLE = "CINESTRATA_TEST_MILVUS_URI"


class Lite:
    """A ``.db`` file of milvus-lite, which one process at a time can open."""

    def __init__(self, path: Path) -> None:
        self.uri = str(path)

    def lose(self) -> None:
        """Stop the server."""
        from milvus_lite.server_manager import server_manager_instance

        server_manager_instance.release_server(self.uri)

    def restore(self) -> None:
        """Do nothing: the next client starts the server."""


class Server:
    """A database on a Milvus server, behind a relay."""

    def __init__(self, uri: str) -> None:
        self._relay = _Relay(uri)
        self.uri = urlsplit(uri)._replace(netloc=f"127.0.0.1:{self._relay.server_address[1]}").geturl()

    def lose(self) -> None:
        """Close all connections and reject new ones."""
        self._relay.close_connections()

    def restore(self) -> None:
        """Accept connections again."""
        self._relay.is_open = True

    def close(self) -> None:
        """Stop the relay."""
        self._relay.close_connections()
        self._relay.shutdown()
        self._relay.server_close()


Milvus = Lite | Server


@contextmanager
def fresh_milvus(folder: Path) -> Iterator[Milvus]:
    """An empty Milvus, which is removed afterwards."""
    uri = os.environ.get(URI_VARIABLE)
    if uri is None:
        lite = Lite(folder / "vectors.db")
        try:
            yield lite
        finally:
            lite.lose()
        return
    from pymilvus import MilvusClient

    name = f"test_{uuid.uuid4().hex}"
    admin = MilvusClient(uri)
    admin.create_database(name)
    server = Server(f"{uri.rstrip('/')}/{name}")
    try:
        yield server
    finally:
        server.close()
        inside = MilvusClient(uri, db_name=name)
        for collection in inside.list_collections():
            inside.drop_collection(collection)
        admin.drop_database(name)


class _Relay(socketserver.ThreadingTCPServer):
    """Forwards bytes in both directions until its connections are closed."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, uri: str) -> None:
        parts = urlsplit(uri)
        self.target = (parts.hostname or "127.0.0.1", parts.port or 19530)
        self.is_open = True
        self.sockets: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), _RelayHandler)
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def close_connections(self) -> None:
        self.is_open = False
        for each in list(self.sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class _RelayHandler(socketserver.BaseRequestHandler):
    server: _Relay

    def handle(self) -> None:
        if not self.server.is_open:
            return
        with socket.create_connection(self.server.target) as there:
            both = {self.request, there}
            self.server.sockets |= both
            back = threading.Thread(target=_forward, args=(there, self.request), daemon=True)
            back.start()
            _forward(self.request, there)
            back.join()
            self.server.sockets -= both


def _forward(source: Any, target: Any) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for each in (source, target):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
