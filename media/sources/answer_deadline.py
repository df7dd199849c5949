"""A limit on the time until the headers of a response have arrived.

The read timeout of an HTTP client counts from the last byte, so a server that sends its headers byte by byte, or
interim responses without end, would occupy a thread forever.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from ssl import SSLContext
from typing import Any

import httpcore

_deadline: ContextVar[float | None] = ContextVar("answer_deadline", default=None)


@contextmanager
def answer_within(seconds: float) -> Iterator[None]:
    """Limit the time of all reads in the block, from connections of :class:`TimedNetwork`, together."""
    token = _deadline.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _deadline.reset(token)


class TimedNetwork(httpcore.NetworkBackend):
    """Network whose reads end at the deadline of :func:`answer_within`.

    Args:
        network: Opens the connections.
    """

    def __init__(self, network: httpcore.NetworkBackend) -> None:
        self._network = network

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        """Open a connection."""
        return _TimedStream(self._network.connect_tcp(host, port, timeout, local_address, socket_options))


class _TimedStream(httpcore.NetworkStream):
    def __init__(self, stream: httpcore.NetworkStream) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        deadline = _deadline.get()
        if deadline is not None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise httpcore.ReadTimeout("the headers are incomplete")
            timeout = left if timeout is None else min(timeout, left)
        return self._stream.read(max_bytes, timeout)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, timeout)

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return _TimedStream(self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
