"""The application, put together."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import metadata

from fastapi import FastAPI, Request, Response
from fastapi.staticfiles import StaticFiles
from starlette.middleware.base import RequestResponseEndpoint
from starlette.middleware.gzip import GZipMiddleware

from api import dashboard, problems
from api.routes import health, measures, search, tasks, videos
from api.security import Guard, is_loopback
from service import metrics
from service.query import QueryService
from service.settings import Settings, settings

__all__ = ["create_app"]


def create_app(configured: Settings | None = None) -> FastAPI:
    """The API and its dashboard.

    Args:
        configured: settings of this process by default.

    Raises:
        ValueError: it would listen to the network without an API key.
    """
    configured = configured or settings()
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
        responses=problems.RESPONSES,
        docs_url=None,
        redoc_url=None,
    )
    app.state.query_service = QueryService(configured)
    app.state.settings = configured
    for router in (
        tasks.router,
        search.router,
        videos.router,
        measures.router,
        health.router,
        dashboard.router,
    ):
        app.include_router(router)
    app.mount("/static", StaticFiles(packages=[("api", "static")]), name="static")
    problems.install(app)
    app.middleware("http")(_measured)
    app.add_middleware(GZipMiddleware, minimum_size=2048)
    app.add_middleware(Guard, settings=configured)
    return app


async def _measured(request: Request, call_next: RequestResponseEndpoint) -> Response:
    """Count requests by route template, so that ids do not become labels."""
    start = time.perf_counter()
    response = await call_next(request)
    route = getattr(request.scope.get("route"), "path", "unmatched")
    metrics.REQUESTS.labels(request.method, route, response.status_code).inc()
    metrics.REQUEST_SECONDS.labels(route).observe(time.perf_counter() - start)
    return response
