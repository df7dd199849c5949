"""Health checks for load balancers, and metrics for Prometheus."""

from __future__ import annotations

from fastapi import APIRouter, Response

from api.dependencies import QueryDep, SettingsDep
from api.security.route_scopes import ScopedRoute, requires
from service.catalog import database
from service.core.errors import Unavailable
from service.core.schemas import Readiness
from service.library import prometheus_metrics
from service.storage.data_folder import check_data_folder

__all__ = ["router"]

router = APIRouter(tags=["health"], route_class=ScopedRoute)


@router.head("/livez", include_in_schema=False)
@router.get("/livez", operation_id="livez")
@requires("public")
async def livez() -> dict[str, str]:
    """Liveness: the process runs."""
    # A coroutine, because the threads of requests may all be occupied.
    return {"status": "ok"}


@router.head("/readyz", include_in_schema=False)
@router.get(
    "/readyz", operation_id="readyz", responses={503: {"model": Readiness, "description": "Not ready."}}
)
@requires("public")
def readyz(service: QueryDep, settings: SettingsDep, response: Response) -> Readiness:
    """Readiness: searches can be answered. Otherwise 503; `checks` and `degraded` name the faults.

    While the catalog database cannot be reached, a process with a copy of the rows of its results stays ready.
    """
    ready = service.readiness()
    folder, copied_at = check_data_folder(settings), service.mirror.as_of
    can_search = ready.ready and folder == "ok"
    try:
        service.catalog_reads.read(database.ping)
        catalog = "ok"
    except Unavailable as error:
        catalog = error.detail
        can_search = can_search and copied_at is not None
        if copied_at is not None:
            catalog += f" Searches are answered with the copy of {copied_at:%Y-%m-%d %H:%M:%S} UTC."
    checks = {**ready.checks, "database": catalog, "data_folder": folder}
    ready = ready.model_copy(update={"ready": can_search, "checks": checks})
    if not ready.ready:
        response.status_code = 503
        response.headers["Retry-After"] = "5"
    return ready


@router.get("/metrics", operation_id="metrics", response_class=Response)
@requires("search")
def prometheus() -> Response:
    """Metrics in the Prometheus text format."""
    content, media_type = prometheus_metrics.render()
    return Response(content, media_type=media_type)
