"""State and operation of the library: measures, shards, releases, maintenance jobs, backups, health and metrics."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse
from pydantic import Field

from api.conditional_responses import conditional_response, range_response
from api.dependencies import NoParameters, QueryDep, page_links
from api.openapi import UNCHANGED, file_response
from api.request_threads import run_health_check
from api.security.route_scopes import ScopedRoute, requires
from cinestrata_schemas import library
from cinestrata_schemas.operations import JobDetails, JobSpec, OperationsStatus, Readiness, SnapshotDetails
from media.reading import available_sources
from service import operations
from service.access import audit_log
from service.backups import snapshots
from service.catalog import database
from service.core.errors import Unavailable
from service.core.list_parameters import ReleaseFilters, ShardFilters, StrictParameters
from service.core.settings import Settings
from service.library import library_listing, prometheus_metrics, release_serving
from service.library.library_status import library_status
from service.library.recall_cells import read_measures_version
from service.library.recall_matrix import DEFAULT_DOMAINS, DEFAULT_ROWS, read_recall_matrix
from service.storage.index_manifest import published_manifest
from service.storage.library_files import check_data_folder

if TYPE_CHECKING:
    from service.search.engine import SearchEngine


router = APIRouter(tags=["measures"], route_class=ScopedRoute)


class RecallMatrixParameters(StrictParameters):
    """Parameters of ``GET /forgetting``."""

    rows: int = Field(default=DEFAULT_ROWS, ge=1, le=1000, description="Maximum number of rows.")
    first_release: int | None = Field(
        default=None, ge=1, le=10**9, description="First row, from 1; default: the newest releases."
    )
    first_domain: int = Field(default=1, ge=1, le=10**9, description="First column, from 1.")
    limit: int = Field(default=DEFAULT_DOMAINS, ge=1, le=1000, description="Maximum number of columns.")


@router.get("/forgetting", response_model=library.RecallMatrix, responses=UNCHANGED)
@requires("search")
def get_forgetting(request: Request, parameters: Annotated[RecallMatrixParameters, Query()]) -> Response:
    """Return the recall matrix A[i, t] and measures of forgetting. Rows are releases, columns are domains.

    The matrix has at most `rows` releases, by default the newest, and at most `limit` domains from `first_domain` on;
    `domains` is the total.
    """
    options = dict(parameters)
    domains = options.pop("limit")
    return conditional_response(
        request, lambda: read_recall_matrix(**options, domains=domains), _version(*options.values(), domains)
    )


@router.get("/library", response_model=library.LibraryStatus, responses=UNCHANGED)
@requires("search")
def get_library(request: Request, service: QueryDep, _parameters: NoParameters) -> Response:
    """Summarize the library: counts, unfinished tasks, workers and faults.

    The response has bounded size. A change of `versions` tells a polling client which lists to read again.
    """
    status = library_status(service.snapshots.degraded(), service.find_uncaptioned())
    return conditional_response(request, status)


@router.get("/shards", response_model=library.ShardPage, responses=UNCHANGED)
@requires("search")
def list_shards(
    request: Request, service: QueryDep, parameters: Annotated[ShardFilters, Query()]
) -> Response:
    """List published shards in pages, with domain, size and faults."""
    page = library_listing.list_shards(parameters, service.snapshots.degraded())
    return conditional_response(request, page, headers=page_links(request, page.next_cursor))


@router.get("/releases", response_model=library.ReleasePage, responses=UNCHANGED)
@requires("search")
def list_releases(request: Request, parameters: Annotated[ReleaseFilters, Query()]) -> Response:
    """List releases in pages, with method, kind and size. `current` marks the served release."""
    page = library_listing.list_releases(parameters)
    return conditional_response(request, page, headers=page_links(request, page.next_cursor))


@router.post("/releases/{release_id}/serve")
@requires("admin")
def serve_release(release_id: str, spec: library.ServeSpec | None = None) -> library.ServeOutcome:
    """Serve another release, and return the domains that become searchable or unsearchable.

    `release_id` is a release ID or its first 8 characters, the name of the domain that it learned last, or `newest`.
    The change takes effect within a second in running servers; nothing is deleted or re-indexed. Domains learned after
    the release are not searched. Videos appended to earlier domains stay searchable, and deleted videos stay deleted.
    An earlier release stays pinned while it is served: tasks continue the newest release and are published, but not
    searched until you serve a later release. With `dry_run`, nothing changes.
    """
    return release_serving.serve_release(release_id, dry_run=spec is not None and spec.dry_run)


def _version(*parameters: object) -> str:
    selected = "-".join("" if value is None else str(value) for value in parameters)
    return f"{read_measures_version()}-{published_manifest()[0].pinned or ''}-{selected}"


operation_router = APIRouter(tags=["operation"], route_class=ScopedRoute)

_MEDIA_TYPE = "application/x-tar"


@operation_router.get("/operations")
@requires("admin")
def get_operations(_parameters: NoParameters) -> OperationsStatus:
    """Return the state of operation: workers, queue, running tasks, jobs and disk space."""
    return operations.operations_status()


@operation_router.post("/maintenance", status_code=202)
@requires("admin")
def start_job(spec: JobSpec) -> JobDetails:
    """Start a maintenance job: compact shards, or write a backup. A worker runs it.

    Backups are written to `backups` in the data folder. If a job of the same kind is unfinished, it is returned
    instead. Searches continue.
    """
    return operations.start_job(spec)


@operation_router.get("/snapshots")
@requires("admin")
def list_snapshots(_parameters: NoParameters) -> list[SnapshotDetails]:
    """List the backups that workers have written, newest first. `POST /maintenance` writes another."""
    return snapshots.list_snapshots()


@operation_router.head("/snapshots/{name}", include_in_schema=False)
@operation_router.get("/snapshots/{name}", response_class=FileResponse, responses=file_response(_MEDIA_TYPE))
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


@operation_router.delete("/snapshots/{name}", status_code=204)
@requires("admin")
def delete_snapshot(name: str) -> None:
    """Delete a backup. Downloads in progress complete."""
    snapshots.delete_snapshot(name)


health_router = APIRouter(tags=["health"], route_class=ScopedRoute)

_running_checks: dict[SearchEngine, asyncio.Future[Readiness]] = {}


@health_router.head("/livez", include_in_schema=False)
@health_router.get("/livez")
@requires("public")
async def livez() -> dict[str, str]:
    """Check that the process is running."""
    return {"status": "ok"}


@health_router.head("/readyz", include_in_schema=False)
@health_router.get("/readyz", responses={503: {"model": Readiness, "description": "Not ready."}})
@requires("public")
async def readyz(request: Request, service: QueryDep, response: Response) -> Readiness:
    """Check that the process can answer searches.

    If it can't, the status is 503, and `checks` and `degraded` name the faults. While the catalog database is
    unreachable, a process with a copy of its result rows stays ready.
    """
    ready = await _share_check(service, request.app.state.settings)
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
    for source, problem in available_sources(settings.speech_model).items():
        if problem is not None and source in settings.read:
            checks[f"reading of {source}"] = problem
    return ready.model_copy(update={"ready": can_search, "checks": checks})


@health_router.get("/metrics", response_class=PlainTextResponse)
@requires("search")
async def metrics() -> Response:
    """Return metrics in the Prometheus text format."""
    content, media_type = await run_health_check(prometheus_metrics.render)
    return Response(content, media_type=media_type)


@health_router.api_route("/openapi.json", methods=["GET", "HEAD"], include_in_schema=False)
@requires("public")
async def openapi_description(request: Request) -> JSONResponse:
    """Return the API's operations, parameters and models, which are the same for every library."""
    return JSONResponse(request.app.openapi())
