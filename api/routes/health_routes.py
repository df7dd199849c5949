"""Health checks for load balancers, and metrics for Prometheus."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse

from api.dependencies import QueryDep, SettingsDep
from api.request_threads import run_health_check
from api.security.route_scopes import ScopedRoute, requires
from cinestrata_schemas.operations import Readiness
from service.catalog import database
from service.core.errors import Unavailable
from service.core.settings import Settings
from service.library import prometheus_metrics
from service.storage.library_paths import check_data_folder

if TYPE_CHECKING:
    from service.search.engine import SearchEngine


router = APIRouter(tags=["health"], route_class=ScopedRoute)

_running_checks: dict[SearchEngine, asyncio.Future[Readiness]] = {}


@router.head("/livez", include_in_schema=False)
@router.get("/livez", operation_id="livez")
@requires("public")
async def livez() -> dict[str, str]:
    """Check that the process is running."""
    return {"status": "ok"}


@router.head("/readyz", include_in_schema=False)
@router.get(
    "/readyz", operation_id="readyz", responses={503: {"model": Readiness, "description": "Not ready."}}
)
@requires("public")
async def readyz(service: QueryDep, settings: SettingsDep, response: Response) -> Readiness:
    """Check that the process can answer searches.

    If it can't, the status is 503, and `checks` and `degraded` name the faults. While the catalog database is
    unreachable, a process with a copy of its result rows stays ready.
    """
    ready = await _share_check(service, settings)
    if not ready.ready:
        response.status_code = 503
        response.headers["Retry-After"] = "5"
    return ready


async def _share_check(service: SearchEngine, settings: Settings) -> Readiness:
    """Return the result of a running or new check. Checks are shared, because each writes to the disk."""
    check = _running_checks.get(service)
    if check is None or check.get_loop() is not asyncio.get_running_loop():
        check = _running_checks[service] = asyncio.ensure_future(
            run_health_check(_check_readiness, service, settings)
        )
        check.add_done_callback(lambda _: _running_checks.pop(service, None))
    return await asyncio.shield(check)  # a client that disconnects must not end the check for the others


def _check_readiness(service: SearchEngine, settings: Settings) -> Readiness:
    ready = service.snapshots.readiness()
    folder, copied_at = check_data_folder(settings), service.read_cache.as_of
    can_search = ready.ready and folder == "ok"
    try:
        service.catalog_reads.read(database.ping)
        catalog = "ok"
    except Unavailable as error:
        catalog = error.detail
        can_search = can_search and copied_at is not None
        if copied_at is not None:
            catalog += f" Searches use the copy from {copied_at:%Y-%m-%d %H:%M:%S} UTC."
    checks = {**ready.checks, "database": catalog, "data_folder": folder}
    return ready.model_copy(update={"ready": can_search, "checks": checks})


@router.get("/metrics", operation_id="metrics", response_class=PlainTextResponse)
@requires("search")
async def prometheus() -> Response:
    """Return metrics in the Prometheus text format."""
    content, media_type = await run_health_check(prometheus_metrics.render)
    return Response(content, media_type=media_type)
