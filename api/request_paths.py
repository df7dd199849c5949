"""Request paths: the API's prefix ``/v1``, and the methods that a path supports.

Each route is registered once, without a version. A request below ``/v1`` reaches the same route: the middleware
declares the prefix as the application's root path, as ASGI servers do behind a proxy, so that links in responses keep
it.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from re import Pattern

from fastapi.routing import iter_route_contexts
from starlette.requests import Request
from starlette.routing import compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

from api.http_middleware import HttpMiddleware

PREFIX = "/v1"
_STATIC_FILES = {"GET", "HEAD"}  # of mounted folders, which have no routes


class VersionPrefixMiddleware(HttpMiddleware):
    """Serves the API's resources below the prefix, too.

    Args:
        app: The application.
        resources: First path segments of all API routes; pages have no version.
    """

    def __init__(self, app: ASGIApp, resources: Collection[str]) -> None:
        super().__init__(app)
        self._resources = resources

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Declare the prefix of a request as the root path."""
        path: str = scope["path"]
        prefix = f"{scope.get('root_path', '')}{PREFIX}"
        if path.startswith(f"{prefix}/") and first_segment(path[len(prefix) :]) in self._resources:
            scope = {**scope, "root_path": prefix}
        await self.app(scope, receive, send)


def first_segment(path: str) -> str:
    """Return the first segment of an absolute path."""
    return path.removeprefix("/").partition("/")[0]


def api_link(request: Request, path: str) -> str:
    """Return a resource path with the request's prefix, for links in its response."""
    return f"{request.scope.get('root_path', '')}{path}"


def route_path(scope: Scope) -> str:
    """Return the decoded request path without the prefix, as the router matches it."""
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
