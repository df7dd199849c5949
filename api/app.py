"""The FastAPI application: routes, middleware and static files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from asgi_correlation_id import CorrelationIdMiddleware
from fastapi import APIRouter, FastAPI
from fastapi.routing import iter_route_contexts
from fastapi.staticfiles import StaticFiles
from starlette.concurrency import run_in_threadpool
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import DEFAULT_EXCLUDED_CONTENT_TYPES, GZipMiddleware
from starlette.responses import Response

from api import openapi, problem_details
from api.pages import html_pages, sign_in_pages
from api.request_middleware import (
    MAX_FORM_FIELDS,
    MAX_FORM_FILES,
    PREFIX,
    LoadSheddingMiddleware,
    PathPrefixMiddleware,
    RequestObserver,
    SecurityMiddleware,
    UnexpectedErrorMiddleware,
)
from api.request_threads import limit_request_threads
from api.routes import RESOURCE_ROUTERS, agent_routes
from api.security.authentication import Authenticator, require_network_credentials
from api.security.route_scopes import check_declarations
from cinestrata_schemas import __version__
from service.core import tracing
from service.core.process_setup import configure_logging
from service.core.settings import Settings, settings
from service.search.engine import SearchEngine

# Videos are compressed already, and byte ranges must keep their offsets.
_UNCOMPRESSED_TYPES = (*DEFAULT_EXCLUDED_CONTENT_TYPES, "application/octet-stream", "multipart/byteranges")


def create_app(configured: Settings | None = None) -> FastAPI:
    """Create the application with the API, the pages and a query service.

    Raises ValueError if it listens beyond loopback without an administrator or with a short ``CINESTRATA_API_KEY``,
    or if the root path is a path of the service.
    """
    configured = configured or settings()
    configure_logging(configured.log_format, configured.log_level)
    tracing.start_tracing(configured.otlp_endpoint, "cinestrata-api")
    require_network_credentials(configured)
    query_service = SearchEngine(configured)
    authenticator = Authenticator(configured, query_service.catalog_reads)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.query_service.start()
        limit_request_threads()
        recording = asyncio.create_task(authenticator.record_failures())
        yield
        recording.cancel()
        await run_in_threadpool(authenticator.record_waiting_failures)
        app.state.query_service.close()

    app = FastAPI(
        title="Cinestrata",
        version=__version__,
        lifespan=lifespan,
        description=openapi.DESCRIPTION,
        openapi_tags=openapi.TAGS,
        responses=openapi.PROBLEM_RESPONSES,
        openapi_url=None,  # served by library_routes.health_router, which declares its scope
        docs_url=None,
        redoc_url=None,
        form_limits={"max_files": MAX_FORM_FILES, "max_fields": MAX_FORM_FIELDS},
        root_path_in_servers=False,  # the root path includes the request's version prefix
        # The framework would record URLs with their queries; RequestObserver records neither.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.state.query_service = query_service
    app.state.settings = configured
    app.state.authenticator = authenticator
    for router in (
        *RESOURCE_ROUTERS,
        html_pages.router,
        sign_in_pages.router,
        *_openid_routers(app, configured),
        *([agent_routes.router] if configured.mcp else []),
    ):
        app.include_router(router)
    app.mount("/static", RevalidatedStaticFiles(packages=[("api", "static")]), name="static")
    check_declarations(app)
    paths = [route.path or "" for route in iter_route_contexts(app.routes)]
    if (root := configured.root_path) and _first_segment(root) in map(_first_segment, (PREFIX, *paths)):
        # It could also be a path whose prefix a proxy has removed.
        raise ValueError(f"CINESTRATA_ROOT_PATH={root} is a path of the service itself: choose another")
    app.openapi = openapi.describe(app)  # type: ignore[method-assign]
    problem_details.install_error_handlers(app)
    app.exception_handler(404)(html_pages.unknown_page)
    # Each middleware wraps those that were added before it.
    app.add_middleware(UnexpectedErrorMiddleware)
    # Levels above 2 take twice as long and save only a twentieth.
    app.add_middleware(
        GZipMiddleware, minimum_size=2048, compresslevel=2, exclude_content_types=_UNCOMPRESSED_TYPES
    )
    app.add_middleware(SecurityMiddleware, settings=configured, authenticator=authenticator)
    app.add_middleware(LoadSheddingMiddleware, admission=query_service.admission)
    if configured.cors_origins:
        # Pages of these origins send an API key. Their scripts cannot read responses to requests with the session
        # cookie, which browsers add to requests from other subdomains and ports; changes ignore it there.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=configured.cors_origins,
            allow_methods=("GET", "HEAD", "POST", "PATCH", "DELETE", "OPTIONS"),
            allow_headers=("*",),
            expose_headers=("*",),
            allow_credentials=False,
            allow_private_network=True,  # pages of the Internet may be listed by a service in a home network
        )
    app.add_middleware(RequestObserver)
    app.add_middleware(PathPrefixMiddleware, root=configured.root_path, resources=_api_resources(app))
    app.add_middleware(
        CorrelationIdMiddleware, header_name=tracing.REQUEST_ID_HEADER, validator=tracing.is_well_formed
    )
    return app


def _openid_routers(app: FastAPI, configured: Settings) -> list[APIRouter]:
    """Return the OpenID sign-in pages if the settings name a provider."""
    app.state.openid_provider = None
    if not configured.oidc.issuer:
        return []
    # Imported here, because the provider's client takes 11 MB of memory.
    from api.pages import openid_pages
    from service.access.openid_provider import OpenIdProvider

    app.state.openid_provider = OpenIdProvider(configured.oidc)
    return [openid_pages.router]


def _first_segment(path: str) -> str:
    return path.removeprefix("/").partition("/")[0]


def _api_resources(app: FastAPI) -> frozenset[str]:
    """Return the first path segments of all API resources and of the agents' route, without the pages."""
    paths = (
        route.path for route in iter_route_contexts(app.routes) if getattr(route, "include_in_schema", False)
    )
    return frozenset({"openapi.json", "mcp", *(_first_segment(path) for path in paths if path)})


class RevalidatedStaticFiles(StaticFiles):
    """Static files that a browser revalidates on each use, so that an upgrade never mixes two versions."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        """Return the file, or 304 if the browser's copy is current."""
        response = super().file_response(*args, **kwargs)
        response.headers["Cache-Control"] = "no-cache"
        return response
