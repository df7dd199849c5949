"""Registered syncs: domains that follow a folder of videos."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from api.list_parameters import StrictParameters
from api.security.route_scopes import ScopedRoute, requires
from cinestrata_schemas.syncs import SyncDetails, SyncSpec
from service.syncs import registered_syncs

router = APIRouter(prefix="/syncs", tags=["syncs"], route_class=ScopedRoute)


@router.post("", status_code=201, operation_id="register_sync")
@requires("ingest")
def register_sync(spec: SyncSpec) -> SyncDetails:
    """Let a domain follow a folder of videos, or a manifest.

    Workers compare the two immediately and then at the interval: new files are appended, changed files replace their
    old version, captions are updated, and videos whose file is gone are kept or deleted. The domain is created if it
    does not exist. A domain follows one source: registering another replaces the sync.
    """
    return registered_syncs.register_sync(spec)


@router.get("", operation_id="list_syncs")
@requires("search")
def list_syncs(_parameters: Annotated[StrictParameters, Query()]) -> list[SyncDetails]:
    """List syncs by domain name, with their last and next run."""
    return registered_syncs.list_syncs()


@router.delete("/{sync}", status_code=204, operation_id="remove_sync")
@requires("ingest")
def remove_sync(
    sync: Annotated[str, Path(description="ID of the sync, or name or slug of its domain.")],
) -> None:
    """Remove a sync. Its domain and videos stay."""
    registered_syncs.remove_sync(sync)
