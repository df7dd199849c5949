"""The application, put together."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import metadata
from typing import Any

from fastapi import FastAPI
from fastapi.staticfiles import StaticFiles
from starlette.middleware.gzip import DEFAULT_EXCLUDED_CONTENT_TYPES, GZipMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api import openapi, problem_details
from api.pages import html_pages
from api.routes import (
    clip_routes,
    deletion_routes,
    health_routes,
    library_routes,
    search_routes,
    task_routes,
    video_routes,
)
from api.security.security_middleware import SecurityMiddleware, is_loopback
from service.core import logging
from service.core.settings import Settings, settings
from service.library import prometheus_metrics
from service.search.engine import SearchEngine

__all__ = ["create_app"]

# A video is compressed already, and a part of one must stay that part.
_NOT_COMPRESSED = (*DEFAULT_EXCLUDED_CONTENT_TYPES, "application/octet-stream", "multipart/byteranges")


def create_app(configured: Settings | None = None) -> FastAPI:
    """The API and its dashboard.

    Args:
        configured: settings of this process by default.

    Raises:
        ValueError: it would listen to the network without an API key.
    """
    configured = configured or settings()
    logging.configure(configured)
    if not is_loopback(configured.host) and configured.api_key is None:
        raise ValueError(
            f"CINESTRATA_HOST={configured.host} opens the service to the network without a key: "
            "set CINESTRATA_API_KEY, or listen on 127.0.0.1"
        )

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.query_service.start()
        yield
        app.state.query_service.close()

    app = FastAPI(
        title="Cinestrata",
        version=metadata.version("cinestrata"),
        description="Text-to-video search that keeps learning and never re-indexes.",
        lifespan=lifespan,
        responses=openapi.PROBLEM_RESPONSES,
        docs_url=None,
        redoc_url=None,
    )
    app.state.query_service = SearchEngine(configured)
    app.state.settings = configured
    for router in (
        search_routes.get_search_router,  # routes are tried in turns, and this one is asked for most
        task_routes.router,
        search_routes.router,
        clip_routes.router,
        video_routes.router,
        deletion_routes.router,
        library_routes.router,
        health_routes.router,
        html_pages.router,
    ):
        app.include_router(router)
    app.mount("/static", RevalidatedStaticFiles(packages=[("api", "static")]), name="static")
    app.openapi = openapi.complete_schema(app)  # type: ignore[method-assign]
    problem_details.install(app)
    # Each one added stands outside those before it.
    app.add_middleware(problem_details.UnexpectedErrorMiddleware)
    app.add_middleware(RequestMetricsMiddleware)
    # More than level 2 takes twice as long for answers that are a twentieth smaller.
    app.add_middleware(
        GZipMiddleware, minimum_size=2048, compresslevel=2, exclude_content_types=_NOT_COMPRESSED
    )
    app.add_middleware(SecurityMiddleware, settings=configured)
    return app


class RevalidatedStaticFiles(StaticFiles):
    """Files of the dashboard. A browser asks each time whether they changed, so an upgrade is never half seen."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        """The file, or 304."""
        response = super().file_response(*args, **kwargs)
        response.headers["Cache-Control"] = "no-cache"
        return response


class RequestMetricsMiddleware:
    """ASGI middleware: counts requests by route template, so that ids do not become labels."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.perf_counter(), 500

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, noted)
        finally:
            route = getattr(scope.get("route"), "path", "unmatched")
            prometheus_metrics.REQUESTS.labels(scope["method"], route, status).inc()
            prometheus_metrics.REQUEST_SECONDS.labels(route).observe(time.perf_counter() - start)
