"""ASGI middleware, outermost first: path prefixes, records of requests, load shedding, access rules, unexpected errors.

Each route is registered once, without a prefix. A request below ``/v1`` reaches the same route: the middleware
declares the prefix as the application's root path, as ASGI servers do behind a proxy, so that links in responses keep
it.
"""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Collection
from contextlib import nullcontext
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes, urlsplit

import structlog
from anyio import to_thread
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.problem_details import FAILURE_KEY, problem_response
from api.security.authentication import Authenticator, is_cross_site_change, is_loopback
from api.security.route_scopes import Forbidden, request_actor
from service.access.audit_log import acting_as
from service.core import change_sequence, errors, request_limits, tracing
from service.core.settings import Settings
from service.library.prometheus_metrics import REQUEST_SECONDS, REQUESTS

if TYPE_CHECKING:
    from service.search.engine import AdmissionControl

PREFIX = "/v1"
MAX_FORM_FILES, MAX_FORM_FIELDS = 1, 8  # a form is kept in memory until it is complete

_SHED_KEY = "cinestrata.shed"
_UNLOGGED = {"/readyz"}  # polled every few seconds while a service starts
_MAX_WAITING = 64  # requests that wait for a thread
_SEARCH_PATHS = {"/search", "/search/clip"}
_NEVER_REFUSED = {"/livez", "/readyz", "/metrics"}  # a refused health check would restart a busy process
_HEALTH_PATHS = {"/livez", "/readyz"}
_APPEND_PATH = re.compile(r"/tasks/[^/]+/videos")
_MAX_TASK_BYTES = 128 * 1024**2  # a task of 100,000 videos with 1.3 KB each, as JSON
_MAX_BATCH_BYTES = 4 * 1024**2  # 256 long queries with long filters
_MAX_AGENT_BYTES = 4 * 1024**2  # a domain of 1,000 videos with captions; also the limit of the SDK
_MAX_EDIT_BYTES = 8 * 1024**2  # the longest transcript, captions and metadata of a video
_MAX_OTHER_BYTES = 64 * 1024  # small forms and JSON objects
SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; media-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",  # for responses that state no other: they may be an administrator's
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",  # for browsers without support for frame-ancestors
    "Referrer-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

log = structlog.get_logger(__name__)


class HttpMiddleware(ABC):
    """ASGI middleware that handles HTTP requests and passes lifespan events on."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (self.handle if scope["type"] == "http" else self.app)(scope, receive, send)

    @abstractmethod
    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, or pass it to ``self.app``."""


class StatusRecorder:
    """A request's ``send`` function, which records the response status; None until it has begun."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status: int | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        await self._send(message)


class PathPrefixMiddleware(HttpMiddleware):
    """Serves all paths below the proxy's prefix, and the API's resources below the version's prefix, too.

    The proxy may remove its prefix ``root`` from requests. ``resources`` are the first path segments of all API routes.
    """

    def __init__(self, app: ASGIApp, root: str, resources: Collection[str]) -> None:
        super().__init__(app)
        self._root = root
        self._resources = resources

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Declare the prefixes of a request as the root path."""
        path: str = scope["path"]
        if self._root and not path.startswith(f"{self._root}/"):
            path = f"{self._root}/" if path == self._root else f"{self._root}{path}"
        prefix = f"{self._root}{PREFIX}"
        if (
            not path.startswith(f"{prefix}/")
            or path[len(prefix) + 1 :].partition("/")[0] not in self._resources
        ):
            prefix = self._root
        await self.app({**scope, "path": path, "root_path": prefix}, receive, send)


def api_link(request: Request, path: str) -> str:
    """Return a resource path with the request's prefixes, for links in its response."""
    return f"{request.scope.get('root_path', '')}{path}"


class RequestObserver(HttpMiddleware):
    """Records status, method and route template: templates have few values and contain no IDs.

    Errors are logged, so that the log explains a response's request ID. This middleware records neither paths, queries
    nor bodies: they may contain personal data.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and record its response."""
        start, recorder = time.perf_counter(), StatusRecorder(send)
        method = scope["method"]
        traced = tracing.tracer is not None
        with tracing.request_span(method, dict(Headers(scope=scope))) if traced else nullcontext() as span:
            try:
                await self.app(scope, receive, recorder)
            finally:
                status, is_shed = recorder.status, _SHED_KEY in scope
                # The router sets the route, so it is known after the request was processed.
                route = "refused" if is_shed else getattr(scope.get("route"), "path", "unmatched")
                REQUESTS.labels(method, route, status or 500).inc()
                if not is_shed:
                    REQUEST_SECONDS.labels(route).observe(time.perf_counter() - start)
                if status is not None and status >= 400 and not is_shed and route not in _UNLOGGED:
                    fields = {"status": status, "method": method, "route": route}
                    if FAILURE_KEY in scope:
                        fields["error"] = scope[FAILURE_KEY]
                    if status >= 500:
                        log.warning("request_failed", **fields)
                    else:
                        log.info("request_refused", **fields)
                if span is not None:
                    span.update_name(f"{method} {route}")
                    span.set_attribute("http.route", route)
                    if status is not None:
                        span.set_attribute("http.response.status_code", status)


class LoadSheddingMiddleware(HttpMiddleware):
    """Refuses searches that admission control would refuse, and other requests while too many wait for a thread.

    Such a request is neither routed nor authenticated nor validated. Otherwise, a process that gets twice the requests
    it can serve would spend its time on refusals, and fall behind in reading connections.
    """

    def __init__(self, app: ASGIApp, admission: AdmissionControl) -> None:
        super().__init__(app)
        self._admission = admission

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or pass it on."""
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        try:
            if path in _SEARCH_PATHS:
                self._admission.check()
            elif path not in _NEVER_REFUSED:
                waiting = to_thread.current_default_thread_limiter().statistics().tasks_waiting
                if waiting >= _MAX_WAITING:
                    raise errors.TooManyRequests(
                        f"The server is busy: {waiting} requests are waiting for a thread. Try again in a second."
                    )
        except errors.TooManyRequests as refusal:
            scope[_SHED_KEY] = True  # counted, but neither logged nor timed
            response = problem_response(Request(scope), refusal)
            response.headers.update(SECURITY_HEADERS)
            await response(scope, receive, send)
            return
        await self.app(scope, receive, send)


class SecurityMiddleware(HttpMiddleware):
    """Refuses requests that violate the access rules, and sets security headers on all responses; routes check scopes.

    * State-changing requests that a browser sends for another site are refused (cross-site request forgery). Pages
      from configured origins may send them with a key.
    * A server bound to loopback answers only loopback host names, so that no foreign name can resolve to it (DNS
      rebinding).
    * Malformed addresses and bodies above the limit are refused before any handler reads them.
    """

    def __init__(self, app: ASGIApp, settings: Settings, authenticator: Authenticator) -> None:
        super().__init__(app)
        self.authenticator = authenticator
        self.settings = settings
        self.loopback_only = is_loopback(settings.host)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request, and pass it on with the actor to record for its changes."""
        request = Request(scope, receive)
        path = scope["path"].removeprefix(scope.get("root_path", ""))  # decoded, as the router matches it
        limit = _body_limit(request, path, self.settings)
        received = 0

        async def receive_within_limit() -> Message:
            nonlocal received
            message = await receive()
            if message["type"] == "http.request":
                received += len(message.get("body", b""))
                if received > limit:  # of a chunked request, which declares no size
                    raise _too_large(limit)
            return message

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if sequence.written:
                    headers[change_sequence.HEADER] = str(sequence.written)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        with change_sequence.following(request.headers.get(change_sequence.HEADER, "")) as sequence:
            try:
                await self._check(request, path, limit)
            except errors.CinestrataError as error:
                await problem_response(request, error)(scope, receive, send_with_headers)
                return
            with acting_as(request_actor(request, None)):
                await self.app(scope, receive_within_limit, send_with_headers)

    async def _check(self, request: Request, path: str, limit: int) -> None:
        headers = request.headers
        # Load balancers check the health with HTTP/1.0, without a name that could resolve to another address.
        is_health_check = path in _HEALTH_PATHS and "host" not in headers
        if self.loopback_only and not is_health_check:
            try:
                host = urlsplit(f"//{headers.get('host', '')}").hostname or ""
            except ValueError:
                host = ""
            if not is_loopback(host):
                raise Forbidden(f"Host {host[:100]!r} is refused: use localhost, or set CINESTRATA_HOST.")

        is_cross_site = is_cross_site_change(request)
        if is_cross_site and headers.get("origin") not in self.settings.cors_origins:
            raise Forbidden("Pages from other sites can't send this request. Call the API from a program.")

        if any(character < " " for character in path):  # PostgreSQL accepts no NUL in a string
            raise errors.NotFound("There is no resource at this address; it contains control characters.")
        self.authenticator.refuse_key_in_query(request)
        # Bytes that are not UTF-8 would be searched as replacement characters.
        for part in request.scope["query_string"].split(b"&"):
            name, _, value = part.partition(b"=")
            try:
                unquote_to_bytes(value.replace(b"+", b" ")).decode()
            except UnicodeDecodeError:
                raise errors.InvalidInput.at(
                    unquote_to_bytes(name).decode("utf-8", "replace"),
                    "The value of this parameter is not valid UTF-8.",
                    "Percent-encode it as UTF-8.",
                ) from None

        if headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            raise errors.UnsupportedMediaType(
                "Content-Encoding: Compressed bodies are not accepted; send the body as it is.",
                headers={"Accept-Encoding": "identity"},
            )
        length = headers.get("content-length", "")
        if length.isascii() and length.isdecimal():
            digits = length.lstrip("0") or "0"
            # The length is compared first, because int() refuses numbers with thousands of digits.
            if len(digits) > len(str(limit)) or int(digits) > limit:
                raise _too_large(limit)

        # Without keys and users, every request has the scope admin, so a page from an allowed origin could administer
        # the service without a key.
        if is_cross_site and await self.authenticator.is_open():
            raise Forbidden(
                "Pages from other origins need an API key for this request, and this service has none: "
                "create one (cinestrata keys create NAME), and send it as X-API-Key."
            )


def _body_limit(request: Request, path: str, settings: Settings) -> int:
    """Return the maximum body size for a request, in bytes."""
    if path == "/search":
        return _MAX_BATCH_BYTES
    if path in ("/mcp", "/mcp/"):
        return _MAX_AGENT_BYTES
    if path == "/search/clip":
        return request_limits.MAX_CLIP_BYTES + _MAX_OTHER_BYTES  # with the multipart headers
    if request.method == "DELETE":  # a list of video IDs
        return _MAX_TASK_BYTES
    if path.startswith("/uploads"):  # the preview, or bytes of a file
        return _MAX_TASK_BYTES if path == "/uploads/preview" else request_limits.MAX_VIDEO_BYTES
    if request.method == "PATCH":  # captions, metadata and transcript of a video
        return _MAX_EDIT_BYTES
    if path != "/tasks" and not _APPEND_PATH.fullmatch(path):
        return _MAX_OTHER_BYTES
    is_multipart = request.headers.get("content-type", "").startswith("multipart/")
    return settings.max_upload_bytes if is_multipart else _MAX_TASK_BYTES


def _too_large(limit: int) -> errors.TooLarge:
    return errors.TooLarge(
        f"The body exceeds {limit} bytes; send less data, or split it into several requests."
    )


class UnexpectedErrorMiddleware(HttpMiddleware):
    """Logs unexpected exceptions, and answers with a problem that reveals no internals.

    The framework's own last handler runs outside all middleware, so its response would lack security headers and
    metrics.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and turn an exception into a response."""
        recorder = StatusRecorder(send)
        try:
            await self.app(scope, receive, recorder)
        except ClientDisconnect:
            log.info("client_disconnected", path=scope["path"])
        except Exception as error:
            log.error("unexpected_error", path=scope["path"], exc_info=error)
            if recorder.status is not None:
                raise  # the server closes the connection, which tells the client that data is missing
            internal_error = _InternalError("The server failed to process the request; see its log.")
            await problem_response(Request(scope, receive), internal_error)(scope, receive, send)


class _InternalError(errors.CinestrataError):
    status = 500
    title = "Internal error"
