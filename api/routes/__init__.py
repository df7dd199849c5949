"""Routes of the HTTP API. ``RESOURCE_ROUTERS`` lists the routers of its resources in matching order."""

from __future__ import annotations

from fastapi import APIRouter

from api.routes import (
    access_routes,
    library_routes,
    search_routes,
    sync_routes,
    task_routes,
    upload_routes,
    video_routes,
    webhook_routes,
)

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
    library_routes.operation_router,
    library_routes.health_router,
)
