"""ASGI middleware: its base class, the prefixes of request paths, and the record of requests by route templates.

Each route is registered once, without a prefix. A request below ``/v1`` reaches the same route: the middleware
declares the prefix as the application's root path, as ASGI servers do behind a proxy, so that links in responses keep
it.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Collection
from contextlib import nullcontext
from functools import lru_cache
from re import Pattern

import structlog
from fastapi.routing import iter_route_contexts
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.core import tracing
from service.library.prometheus_metrics import REQUEST_SECONDS, REQUESTS

PREFIX = "/v1"
_STATIC_FILES = {"GET", "HEAD"}  # of mounted folders, which have no routes
_REASON = "cinestrata.failure"
_SHED = "cinestrata.shed"
_UNLOGGED = {"/readyz"}  # polled every few seconds while a service starts

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


class RequestObserver(HttpMiddleware):
    """Records status, method and route template: templates have few values and contain no IDs.

    Errors are logged, so that the log explains a response's request ID. Paths, queries and bodies are never recorded:
    they may contain personal data.
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
                # The router sets the route, so it is known after the request was processed.
                route = "refused" if _SHED in scope else getattr(scope.get("route"), "path", "unmatched")
                REQUESTS.labels(method, route, recorder.status or 500).inc()
                if _SHED not in scope:
                    REQUEST_SECONDS.labels(route).observe(time.perf_counter() - start)
                    _log_error(scope, route, recorder.status)
                if span is not None:
                    span.update_name(f"{method} {route}")
                    span.set_attribute("http.route", route)
                    if recorder.status is not None:
                        span.set_attribute("http.response.status_code", recorder.status)


def _log_error(scope: Scope, route: str, status: int | None) -> None:
    if status is None or status < 400 or route in _UNLOGGED:
        return
    fields = {"status": status, "method": scope["method"], "route": route}
    if _REASON in scope:
        fields["error"] = scope[_REASON]
    if status >= 500:
        log.warning("request_failed", **fields)
    else:
        log.info("request_refused", **fields)


def explain_failure(scope: Scope, reason: str) -> None:
    """Add a reason to the log line of a request that fails with status 500 or above."""
    scope[_REASON] = reason


def mark_as_shed(scope: Scope) -> None:
    """Count a request as refused before routing, without logging or timing it."""
    scope[_SHED] = True


class PathPrefixMiddleware(HttpMiddleware):
    """Serves all paths below the proxy's prefix, and the API's resources below the version's prefix, too.

    Args:
        root: Prefix of the proxy, which may remove it from requests; empty if there is none.
        resources: First path segments of all API routes; pages have no version.
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
        if not path.startswith(f"{prefix}/") or first_segment(path[len(prefix) :]) not in self._resources:
            prefix = self._root
        await self.app({**scope, "path": path, "root_path": prefix}, receive, send)


def first_segment(path: str) -> str:
    """Return the first segment of an absolute path."""
    return path.removeprefix("/").partition("/")[0]


def api_link(request: Request, path: str) -> str:
    """Return a resource path with the request's prefixes, for links in its response."""
    return f"{request.scope.get('root_path', '')}{path}"


def route_path(scope: Scope) -> str:
    """Return the decoded request path without prefixes, as the router matches it."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def allowed_methods(request: Request) -> list[str]:
    """List the methods of all routes that match a request's path; the framework knows only those of the first."""
    path = route_path(request.scope)
    methods = {
        method
        for context in iter_route_contexts(request.app.routes)
        if context.path and context.methods and _pattern(context.path).match(path)
        for method in context.methods
    }
    return sorted(methods or _STATIC_FILES)


@lru_cache(maxsize=512)
def _pattern(path: str) -> Pattern[str]:
    return compile_path(path)[0]
