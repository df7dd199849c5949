"""Operation of the library: state, maintenance jobs, and backups written by workers."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import FileResponse

from api.conditional_responses import range_response
from api.openapi import file_response
from api.query_parameters import StrictParameters
from api.security.route_scopes import ScopedRoute, requires
from cinestrata_schemas.operations import JobDetails, JobSpec, OperationsStatus, SnapshotDetails
from service.access import audit_log
from service.backups import stored_snapshots
from service.operations import maintenance_jobs
from service.operations.operations_status import operations_status

router = APIRouter(route_class=ScopedRoute)

_MEDIA_TYPE = "application/x-tar"


@router.get("/operations", operation_id="get_operations", tags=["operation"])
@requires("admin")
def get_operations(request: Request, _parameters: Annotated[StrictParameters, Query()]) -> OperationsStatus:
    """Return the state of operation: workers, queue, running tasks, jobs, disk space and search load.

    The search load is that of the responding process; `/metrics` covers every process.
    """
    return operations_status(request.app.state.search_rate.read())


@router.post("/maintenance", status_code=202, operation_id="start_job", tags=["operation"])
@requires("admin")
def start_job(spec: JobSpec) -> JobDetails:
    """Start a maintenance job: compact shards, or write a backup. A worker runs it.

    Backups are written to `backups` in the data folder. If a job of the same kind is unfinished, it is returned
    instead. Searches continue.
    """
    return maintenance_jobs.start_job(spec)


@router.get("/snapshots", operation_id="list_snapshots", tags=["operation"])
@requires("admin")
def list_snapshots(_parameters: Annotated[StrictParameters, Query()]) -> list[SnapshotDetails]:
    """List the backups that workers have written, newest first. `POST /maintenance` writes another."""
    return stored_snapshots.list_snapshots()


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
    path = stored_snapshots.snapshot_path(name)
    headers = {"Cache-Control": "no-store", "Content-Disposition": f'attachment; filename="{path.name}"'}
    response = range_response(request, path, _MEDIA_TYPE, headers)
    if request.method == "GET" and response.status_code != 304:
        audit_log.record_event("snapshot.download", name, {"range": request.headers.get("range")})
    return response


@router.delete("/snapshots/{name}", status_code=204, operation_id="delete_snapshot", tags=["operation"])
@requires("admin")
def delete_snapshot(name: str) -> None:
    """Delete a backup. Downloads in progress complete."""
    stored_snapshots.delete_snapshot(name)
