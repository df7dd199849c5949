"""Methods of the routes with a path, for requests with another method."""

from __future__ import annotations

from functools import lru_cache
from re import Pattern

from fastapi import Request
from fastapi.routing import iter_route_contexts
from starlette.routing import compile_path

from api.version_prefix import route_path

__all__ = ["allowed_methods"]

_STATIC_FILES = {"GET", "HEAD"}  # of mounted folders, which have no routes


def allowed_methods(request: Request) -> list[str]:
    """The methods of all routes with the path of a request; the framework knows those of the first route only."""
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
