"""Connections through the proxy: forwarded, cut, refused, frozen and restored."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from benchmarks.chaos.tcp_proxy import TcpProxy


@pytest.fixture
def proxy() -> Iterator[TcpProxy]:
    """Proxy of a server that sends back what it receives."""
    server = socket.create_server(("127.0.0.1", 0))

    def echo(connection: socket.socket) -> None:
        with connection:
            while block := connection.recv(1024):
                connection.sendall(block)

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=echo, args=(connection,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    proxy = TcpProxy(lambda: socket.create_connection(server.getsockname()))
    yield proxy
    proxy.close()
    server.close()


def _connect(proxy: TcpProxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=10)


def _exchange(connection: socket.socket, text: bytes) -> bytes:
    connection.sendall(text)
    return connection.recv(1024)


def _is_cut(connection: socket.socket) -> bool:
    """Return whether a connection no longer answers: an error, or the end of the stream."""
    try:
        return _exchange(connection, b"again") == b""
    except ConnectionError:
        return True


def _is_refused(proxy: TcpProxy) -> bool:
    """Return whether a new connection fails, or is cut at once."""
    try:
        with _connect(proxy) as connection:
            return _is_cut(connection)
    except ConnectionError:
        return True


def test_connection_is_forwarded_and_cut(proxy: TcpProxy) -> None:
    with _connect(proxy) as connection:
        assert _exchange(connection, b"hello") == b"hello"
        assert not _is_cut(connection)
        proxy.cut()
        assert _is_cut(connection)
    assert _is_refused(proxy)
    proxy.restore()
    with _connect(proxy) as connection:
        assert _exchange(connection, b"restored") == b"restored"


def test_frozen_connection_continues_without_loss(proxy: TcpProxy) -> None:
    with _connect(proxy) as connection:
        assert _exchange(connection, b"first") == b"first"
        proxy.freeze()
        connection.sendall(b"second")
        connection.settimeout(0.2)
        with pytest.raises(TimeoutError):
            connection.recv(1024)
        proxy.restore()
        connection.settimeout(10)
        assert connection.recv(1024) == b"second"
