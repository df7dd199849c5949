"""Server HTTP protocol that limits the request head and allows one host.

uvicorn's parser keeps a request's target, header fields and trailers in memory until they end: without a limit, a
single connection without credentials could fill the memory. It also accepts several ``Host`` fields, and a proxy may
route by a different one than the service checks (RFC 9112, section 3.2).
"""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 * 1024  # the limit of the other parser of uvicorn (h11)

_REASON = b"The head of the request is too large."
_REFUSAL = b"\r\n".join(
    (
        b"HTTP/1.1 431 Request Header Fields Too Large",
        b"content-type: text/plain; charset=utf-8",
        b"content-length: %d" % len(_REASON),
        b"connection: close",
        b"",
        _REASON,
    )
)


class HeadLimitProtocol(HttpToolsProtocol):
    """Closes a connection that sends more than :data:`MAX_HEAD_BYTES` without a byte of a body, or several hosts.

    Heads, trailers and chunk extensions count. A head that arrives in one piece with its end is already parsed; its
    size is that of one read.
    """

    _pending_bytes = 0  # since the last end of a head or body part
    _is_in_head = False
    _is_in_message = False

    def data_received(self, data: bytes) -> None:
        """Parse received bytes, and refuse a head that does not end."""
        self._pending_bytes += len(data)
        super().data_received(data)
        if not self._is_in_message:
            self._pending_bytes = 0
        if self._pending_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            if self._is_in_head and (self.cycle is None or self.cycle.response_complete):
                self.transport.write(_REFUSAL)
            self.transport.close()

    def on_message_begin(self) -> None:
        """Begin a head."""
        self._is_in_head = self._is_in_message = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """End a head; a ValueError for several hosts becomes a 400 response."""
        if sum(name == b"host" for name, _ in self.headers) > 1:
            raise ValueError("several Host fields")
        self._is_in_head, self._pending_bytes = False, 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Receive part of a body."""
        self._pending_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request."""
        self._is_in_message, self._pending_bytes = False, 0
        super().on_message_complete()
