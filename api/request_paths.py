"""Request paths: the prefixes of a proxy and of the API's version, and the methods that a path supports.

Each route is registered once, without a prefix. A request below ``/v1`` reaches the same route: the middleware
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

from api.request_observer import HttpMiddleware

PREFIX = "/v1"
_STATIC_FILES = {"GET", "HEAD"}  # of mounted folders, which have no routes


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
