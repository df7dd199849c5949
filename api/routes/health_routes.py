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


@router.get("/livez", operation_id="livez")
@requires("public")
def livez() -> dict[str, str]:
    """Liveness: the process runs."""
    return {"status": "ok"}


@router.get(
    "/readyz", operation_id="readyz", responses={503: {"model": Readiness, "description": "Not ready."}}
)
@requires("public")
def readyz(service: QueryDep, settings: SettingsDep, response: Response) -> Readiness:
    """Readiness: searches can be answered. Otherwise 503; `checks` and `degraded` name the faults."""
    ready = service.readiness()
    try:
        database.ping()
        catalog = "ok"
    except Unavailable as error:
        catalog = error.detail
    checks = {"database": catalog, "data_folder": check_data_folder(settings)}
    ready = ready.model_copy(
        update={
            "ready": ready.ready and all(state == "ok" for state in checks.values()),
            "checks": {**ready.checks, **checks},
        }
    )
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
