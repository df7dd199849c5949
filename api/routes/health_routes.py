"""Health checks for load balancers, and metrics for Prometheus."""

from __future__ import annotations

from fastapi import APIRouter, Response

from api.dependencies import QueryDep
from service.catalog import database
from service.core.errors import Unavailable
from service.core.schemas import Readiness
from service.library import prometheus_metrics

__all__ = ["router"]

router = APIRouter(tags=["health"])


@router.get("/livez", operation_id="livez")
def livez() -> dict[str, str]:
    """Liveness: the process runs."""
    return {"status": "ok"}


@router.get(
    "/readyz", operation_id="readyz", responses={503: {"model": Readiness, "description": "Not ready."}}
)
def readyz(service: QueryDep, response: Response) -> Readiness:
    """Readiness: searches can be answered. Otherwise 503; `checks` and `degraded` name the faults."""
    ready = service.readiness()
    try:
        database.ping()
        catalog = "ok"
    except Unavailable as error:
        catalog = error.detail
    ready = ready.model_copy(
        update={"ready": ready.ready and catalog == "ok", "checks": {**ready.checks, "database": catalog}}
    )
    if not ready.ready:
        response.status_code = 503
        response.headers["Retry-After"] = "5"
    return ready


@router.get("/metrics", operation_id="metrics", response_class=Response)
def prometheus() -> Response:
    """Metrics in the Prometheus text format."""
    content, media_type = prometheus_metrics.render()
    return Response(content, media_type=media_type)
