"""Routers of the resources of the API, in the order in which their routes are matched."""

from __future__ import annotations

from fastapi import APIRouter

from api.routes import (
    access_routes,
    alert_routes,
    clip_routes,
    deletion_routes,
    description_routes,
    domain_routes,
    health_routes,
    library_routes,
    operation_routes,
    sample_routes,
    search_routes,
    snapshot_routes,
    sync_routes,
    task_event_routes,
    task_routes,
    upload_routes,
    video_routes,
    webhook_routes,
)

RESOURCE_ROUTERS: tuple[APIRouter, ...] = (
    search_routes.get_search_router,  # first, because routes are matched in order and this one is the most frequent
    task_routes.router,
    task_event_routes.router,
    sample_routes.router,
    upload_routes.router,
    domain_routes.router,
    search_routes.router,
    clip_routes.router,
    video_routes.router,
    deletion_routes.router,
    sync_routes.router,
    library_routes.router,
    access_routes.router,
    webhook_routes.router,
    alert_routes.router,
    operation_routes.router,
    snapshot_routes.router,
    health_routes.router,
    description_routes.router,
)
