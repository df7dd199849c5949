"""Operation of the library: state, maintenance jobs, backups written by workers, health checks and metrics."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse

from api.conditional_responses import range_response
from api.dependencies import NoParameters, QueryDep, SettingsDep
from api.openapi import file_response
from api.request_threads import run_health_check
from api.security.route_scopes import ScopedRoute, requires
from cinestrata_schemas.operations import JobDetails, JobSpec, OperationsStatus, Readiness, SnapshotDetails
from service import operations
from service.access import audit_log
from service.backups import snapshots
from service.catalog import database
from service.core.errors import Unavailable
from service.core.settings import Settings
from service.library import prometheus_metrics
from service.storage.library_files import check_data_folder

if TYPE_CHECKING:
    from service.search.engine import SearchEngine


router = APIRouter(route_class=ScopedRoute)

_MEDIA_TYPE = "application/x-tar"


@router.get("/operations", operation_id="get_operations", tags=["operation"])
@requires("admin")
def get_operations(request: Request, _parameters: NoParameters) -> OperationsStatus:
    """Return the state of operation: workers, queue, running tasks, jobs, disk space and search load.

    The search load is that of the responding process; `/metrics` covers every process.
    """
    return operations.operations_status(request.app.state.search_rate.read())


@router.post("/maintenance", status_code=202, operation_id="start_job", tags=["operation"])
@requires("admin")
def start_job(spec: JobSpec) -> JobDetails:
    """Start a maintenance job: compact shards, or write a backup. A worker runs it.

    Backups are written to `backups` in the data folder. If a job of the same kind is unfinished, it is returned
    instead. Searches continue.
    """
    return operations.start_job(spec)


@router.get("/snapshots", operation_id="list_snapshots", tags=["operation"])
@requires("admin")
def list_snapshots(_parameters: NoParameters) -> list[SnapshotDetails]:
    """List the backups that workers have written, newest first. `POST /maintenance` writes another."""
    return snapshots.list_snapshots()


@router.head("/snapshots/{name}", include_in_schema=False)
@router.get(
    "/snapshots/{name}",
    operation_id="download_snapshot",
    tags=["operation"],
    response_class=FileResponse,
    responses=file_response(_MEDIA_TYPE),
)
@requires("admin")
def download_snapshot(name: str, request: Request) -> Response:
    """Download a backup archive, with support for byte ranges.

    It contains the catalog with all captions, key and password hashes, and webhook secrets. The audit log records each
    download. `cinestrata restore` reads the file.
    """
    path = snapshots.snapshot_path(name)
    headers = {"Cache-Control": "no-store", "Content-Disposition": f'attachment; filename="{path.name}"'}
    response = range_response(request, path, _MEDIA_TYPE, headers)
    if request.method == "GET" and response.status_code != 304:
        audit_log.record_event("snapshot.download", name, {"range": request.headers.get("range")})
    return response


@router.delete("/snapshots/{name}", status_code=204, operation_id="delete_snapshot", tags=["operation"])
@requires("admin")
def delete_snapshot(name: str) -> None:
    """Delete a backup. Downloads in progress complete."""
    snapshots.delete_snapshot(name)


health_router = APIRouter(tags=["health"], route_class=ScopedRoute)

_running_checks: dict[SearchEngine, asyncio.Future[Readiness]] = {}


@health_router.head("/livez", include_in_schema=False)
@health_router.get("/livez", operation_id="livez")
@requires("public")
async def livez() -> dict[str, str]:
    """Check that the process is running."""
    return {"status": "ok"}


@health_router.head("/readyz", include_in_schema=False)
@health_router.get(
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


@health_router.get("/metrics", operation_id="metrics", response_class=PlainTextResponse)
@requires("search")
async def prometheus() -> Response:
    """Return metrics in the Prometheus text format."""
    content, media_type = await run_health_check(prometheus_metrics.render)
    return Response(content, media_type=media_type)


@health_router.api_route("/openapi.json", methods=["GET", "HEAD"], include_in_schema=False)
@requires("public")
async def openapi_description(request: Request) -> JSONResponse:
    """Return the API's operations, parameters and models, which are the same for every library."""
    return JSONResponse(request.app.openapi())
