"""A real HTTP server for tests, whose responses may be wrong in every way."""

from __future__ import annotations

import re
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

Handler = BaseHTTPRequestHandler


class _QuietServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Print nothing: clients close connections in the middle of a response."""


class WebFiles:
    """Files and handlers by path; requests are recorded. With ``tls``, the server speaks HTTPS."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.files: dict[str, bytes] = {}
        self.handlers: dict[str, Callable[[BaseHTTPRequestHandler], None]] = {}
        self.requests: list[str] = []
        answer = self._answer

        class RequestHandler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                answer(self)

            def do_POST(self) -> None:
                answer(self)

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        self._server = _QuietServer(("127.0.0.1", 0), RequestHandler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def redirect(self, path: str, location: str, status: int = 302) -> None:
        """Redirect a path."""
        self.handlers[path] = lambda request: send(request, status, b"", Location=location)

    def status(self, path: str, *statuses: int, **headers: str) -> None:
        """Answer requests of a path with these statuses, the last one forever; 200 sends the file."""
        left = list(statuses)

        def handle(request: BaseHTTPRequestHandler) -> None:
            status = left.pop(0) if len(left) > 1 else left[0]
            send(request, status, self.files.get(path, b"") if status == 200 else b"error", **headers)

        self.handlers[path] = handle

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        self.requests.append(request.path)
        path = request.path.partition("?")[0]
        if path in self.handlers:
            self.handlers[path](request)
        elif path in self.files:
            self._send_file(request, self.files[path])
        else:
            send(request, 404, b"not found")

    def _send_file(self, request: BaseHTTPRequestHandler, content: bytes) -> None:
        etag = f'"{hash(content)}"'
        match = re.fullmatch(r"bytes=(\d*)-(\d*)", request.headers.get("Range", ""))
        if match is None:
            send(request, 200, content, ETag=etag)
            return
        size = len(content)
        first = int(match[1]) if match[1] else max(0, size - int(match[2]))
        last = min(int(match[2]), size - 1) if match[1] and match[2] else size - 1
        if first > last:
            send(request, 416, b"", **{"Content-Range": f"bytes */{size}"})
            return
        span = f"bytes {first}-{last}/{size}"
        send(request, 206, content[first : last + 1], ETag=etag, **{"Content-Range": span})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop the server; its port refuses connections from now on."""
        self._server.shutdown()
        self._server.server_close()


def send(request: BaseHTTPRequestHandler, status: int, body: bytes, **headers: str) -> None:
    """Send a complete response."""
    request.send_response(status)
    for name, value in {"Content-Length": str(len(body)), **headers}.items():
        request.send_header(name, value)
    request.end_headers()
    request.wfile.write(body)
