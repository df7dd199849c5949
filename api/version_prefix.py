"""The prefix ``/v1`` of the API.

Each route is registered once, without a version. A request below ``/v1`` reaches the same route: the middleware
declares the prefix as the root path of the application, as ASGI servers do behind a proxy, so that links in answers
keep it.
"""

from __future__ import annotations

from collections.abc import Collection

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["PREFIX", "VersionPrefixMiddleware", "api_link", "first_segment", "route_path"]

PREFIX = "/v1"


class VersionPrefixMiddleware:
    """Serves the resources of the API below the prefix, too.

    Args:
        app: The application.
        resources: First path segments of all API routes; pages have no version.
    """

    def __init__(self, app: ASGIApp, resources: Collection[str]) -> None:
        self.app = app
        self._resources = resources

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            root_path: str = scope.get("root_path", "")
            path: str = scope["path"]
            prefix = f"{root_path}{PREFIX}"
            if path.startswith(f"{prefix}/") and first_segment(path[len(prefix) :]) in self._resources:
                scope = {**scope, "root_path": prefix}
        await self.app(scope, receive, send)


def first_segment(path: str) -> str:
    """The first segment of an absolute path."""
    return path.removeprefix("/").partition("/")[0]


def api_link(request: Request, path: str) -> str:
    """The path of a resource with the prefix of the request, for links in its answer."""
    return f"{request.scope.get('root_path', '')}{path}"


def route_path(scope: Scope) -> str:
    """The decoded path of a request without the prefix, as the router matches it."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))
