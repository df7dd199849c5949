"""Registered syncs: domains that follow a folder of videos."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from api.dependencies import NoParameters, page_links
from api.security.route_scopes import ScopedRoute, requires
from cinestrata_schemas.syncs import FollowedSource, StoredFilePage, SyncDetails, SyncedFilesPatch, SyncSpec
from service.core.list_parameters import SyncedFileFilters
from service.syncs import registered_syncs, synced_files

router = APIRouter(prefix="/syncs", tags=["syncs"], route_class=ScopedRoute)


@router.post("", status_code=201)
@requires("ingest")
def register_sync(spec: SyncSpec) -> SyncDetails:
    """Let a domain follow a folder of videos, or a manifest.

    Workers compare the two immediately and then at the interval: new files are appended, changed files replace their
    old version, captions are updated, and videos whose file is gone are kept or deleted. The domain is created if it
    does not exist. A domain follows one source: registering another replaces the sync.
    """
    return registered_syncs.register_sync(spec)


@router.get("")
@requires("search")
def list_syncs(_parameters: NoParameters) -> list[SyncDetails]:
    """List syncs by domain name, with their last and next run."""
    return registered_syncs.list_syncs()


@router.get("/files")
@requires("search")
def list_synced_files(
    request: Request, response: Response, parameters: Annotated[SyncedFileFilters, Query()]
) -> StoredFilePage:
    """List the files that domains follow, as the last sync saw them. `next_cursor` continues with the next page."""
    page = synced_files.list_files(parameters)
    response.headers.update(page_links(request, page.next_cursor))
    return page


@router.put("/files", status_code=204)
@requires("ingest")
def record_synced_files(patch: SyncedFilesPatch) -> None:
    """Record what a sync saw, and rename videos whose file has another name. Idempotent.

    `cinestrata sync` calls this for a folder that only the client can read.
    """
    synced_files.record_files(patch)


@router.get("/sources")
@requires("search")
def list_synced_sources(_parameters: NoParameters) -> list[FollowedSource]:
    """List the sources that domains follow, or have followed."""
    return synced_files.list_sources()


@router.delete("/{sync}", status_code=204)
@requires("ingest")
def remove_sync(
    sync: Annotated[str, Path(description="ID of the sync, or name or slug of its domain.")],
) -> None:
    """Remove a sync. Its domain and videos stay."""
    registered_syncs.remove_sync(sync)
