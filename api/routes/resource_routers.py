"""Routers of the API resources, in matching order, and the route of the API description."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from api.routes import (
    access_routes,
    library_routes,
    operation_routes,
    search_routes,
    sync_routes,
    task_routes,
    upload_routes,
    video_routes,
    webhook_routes,
)
from api.security.route_scopes import ScopedRoute, requires

description_router = APIRouter(include_in_schema=False, route_class=ScopedRoute)


@description_router.api_route("/openapi.json", methods=["GET", "HEAD"])
@requires("public")
async def openapi_description(request: Request) -> JSONResponse:
    """Return the API's operations, parameters and models, which are the same for every library."""
    return JSONResponse(request.app.openapi())


RESOURCE_ROUTERS: tuple[APIRouter, ...] = (
    search_routes.search_router,  # first, because routes are matched in order and this one is the most frequent
    task_routes.router,
    task_routes.samples_router,
    upload_routes.router,
    search_routes.query_report_router,
    search_routes.router,
    video_routes.router,
    video_routes.feedback_router,
    sync_routes.router,
    library_routes.router,
    access_routes.router,
    webhook_routes.router,
    operation_routes.router,
    operation_routes.health_router,
    description_router,
)
