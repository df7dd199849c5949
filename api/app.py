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

from api import openapi, problems
from api.pages import dashboard
from api.routes import clips, deletion, health, measures, search, tasks, videos
from api.security.guard import Guard, is_loopback
from service.core import logging
from service.core.settings import Settings, settings
from service.library import prometheus_metrics
from service.search.engine import QueryService

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
        responses=openapi.RESPONSES,
        docs_url=None,
        redoc_url=None,
    )
    app.state.query_service = QueryService(configured)
    app.state.settings = configured
    for router in (
        search.read_at_once,  # routes are tried in turns, and this one is asked for most
        tasks.router,
        search.router,
        clips.router,
        videos.router,
        deletion.router,
        measures.router,
        health.router,
        dashboard.router,
    ):
        app.include_router(router)
    app.mount("/static", Static(packages=[("api", "static")]), name="static")
    app.openapi = openapi.described(app)  # type: ignore[method-assign]
    problems.install(app)
    # Each one added stands outside those before it.
    app.add_middleware(problems.Unexpected)
    app.add_middleware(Measured)
    # More than level 2 takes twice as long for answers that are a twentieth smaller.
    app.add_middleware(
        GZipMiddleware, minimum_size=2048, compresslevel=2, exclude_content_types=_NOT_COMPRESSED
    )
    app.add_middleware(Guard, settings=configured)
    return app


class Static(StaticFiles):
    """Files of the dashboard. A browser asks each time whether they changed, so an upgrade is never half seen."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        """The file, or 304."""
        response = super().file_response(*args, **kwargs)
        response.headers["Cache-Control"] = "no-cache"
        return response


class Measured:
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
