"""Backups that workers have written: list, download and deletion."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import FileResponse

from api.conditional_responses import range_response
from api.list_parameters import StrictParameters
from api.openapi import UNCHANGED
from api.security.route_scopes import ScopedRoute, requires
from cinestrata_schemas.operations import SnapshotDetails
from service.access import audit_log
from service.backups import stored_snapshots

router = APIRouter(prefix="/snapshots", tags=["operation"], route_class=ScopedRoute)

_MEDIA_TYPE = "application/x-tar"


@router.get("", operation_id="list_snapshots")
@requires("admin")
def list_snapshots(_parameters: Annotated[StrictParameters, Query()]) -> list[SnapshotDetails]:
    """Backups in the folder `backups` of the data folder, newest first; `POST /maintenance` writes one."""
    return stored_snapshots.list_snapshots()


@router.head("/{name}", include_in_schema=False)
@router.get(
    "/{name}",
    operation_id="download_snapshot",
    response_class=FileResponse,
    responses={206: {"description": "The requested byte range.", "content": {_MEDIA_TYPE: {}}}, **UNCHANGED},
)
@requires("admin")
def download_snapshot(name: str, request: Request) -> Response:
    """The archive of a backup, with support for byte ranges.

    It contains the catalog with all captions, hashes of keys and passwords, and the secrets of webhooks. The audit log
    has an entry of each download. `cinestrata restore` reads the file.
    """
    path = stored_snapshots.snapshot_path(name)
    headers = {"Cache-Control": "no-store", "Content-Disposition": f'attachment; filename="{path.name}"'}
    response = range_response(request, path, _MEDIA_TYPE, headers)
    if request.method == "GET" and response.status_code != 304:
        audit_log.record_event("snapshot.download", name, {"range": request.headers.get("range")})
    return response


@router.delete("/{name}", status_code=204, operation_id="delete_snapshot")
@requires("admin")
def delete_snapshot(name: str) -> None:
    """Delete a backup. Downloads that have begun are completed."""
    stored_snapshots.delete_snapshot(name)
