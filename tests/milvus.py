"""A Milvus for tests: milvus-lite, or a database of its own on the server that ``CINESTRATA_TEST_MILVUS_URI`` names.

Either can be lost for a while. A server is reached through a relay in this process, which hangs up; milvus-lite is
stopped, and started anew by the next client.
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

VARIABLE = "CINESTRATA_TEST_MILVUS_URI"


class Lite:
    """A ``.db`` file, which one process at a time can open."""

    def __init__(self, path: Path) -> None:
        self.uri = str(path)

    def lose(self) -> None:
        from milvus_lite.server_manager import server_manager_instance

        server_manager_instance.release_server(self.uri)

    def find(self) -> None:
        """The next client starts it."""


class Server:
    """A database behind a relay."""

    def __init__(self, uri: str) -> None:
        self._relay = _Relay(uri)
        self.uri = urlsplit(uri)._replace(netloc=f"127.0.0.1:{self._relay.server_address[1]}").geturl()

    def lose(self) -> None:
        self._relay.hang_up()

    def find(self) -> None:
        self._relay.open = True

    def close(self) -> None:
        self._relay.hang_up()
        self._relay.shutdown()
        self._relay.server_close()


Milvus = Lite | Server


@contextmanager
def fresh_milvus(folder: Path) -> Iterator[Milvus]:
    """One with nothing in it; nothing is left of it afterwards."""
    uri = os.environ.get(VARIABLE)
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
    """Passes bytes on in both directions, until it hangs up."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, uri: str) -> None:
        parts = urlsplit(uri)
        self.target = (parts.hostname or "127.0.0.1", parts.port or 19530)
        self.open = True
        self.sockets: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), _Passing)
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def hang_up(self) -> None:
        self.open = False
        for each in list(self.sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class _Passing(socketserver.BaseRequestHandler):
    server: _Relay

    def handle(self) -> None:
        if not self.server.open:
            return
        with socket.create_connection(self.server.target) as there:
            both = {self.request, there}
            self.server.sockets |= both
            back = threading.Thread(target=_pass, args=(there, self.request), daemon=True)
            back.start()
            _pass(self.request, there)
            back.join()
            self.server.sockets -= both


def _pass(source: Any, target: Any) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for each in (source, target):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
