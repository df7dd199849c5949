"""State of the library: measures of forgetting, shards, releases and sizes."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from api.conditional_responses import conditional_response
from api.dependencies import (
    NoParameters,
    PageLinkDep,
    QueryDep,
    ReleaseListParameters,
    ShardListParameters,
    StrictParameters,
)
from api.openapi import UNCHANGED
from api.security.route_scopes import ScopedRoute, requires
from cinestrata_schemas.library import (
    LibraryStatus,
    RecallMatrix,
    ReleasePage,
    ServeOutcome,
    ServeSpec,
    ShardPage,
)
from service.library import library_listing, release_serving
from service.library.library_status import library_status
from service.library.recall_cells import read_measures_version
from service.library.recall_matrix import DEFAULT_DOMAINS, DEFAULT_ROWS, read_recall_matrix
from service.storage.index_manifest import published_manifest

router = APIRouter(tags=["measures"], route_class=ScopedRoute)


class RecallMatrixParameters(StrictParameters):
    """Parameters of ``GET /forgetting``."""

    rows: int = Field(default=DEFAULT_ROWS, ge=1, le=1000, description="Maximum number of rows.")
    first_release: int | None = Field(
        default=None, ge=1, le=10**9, description="First row, from 1; default: the newest releases."
    )
    first_domain: int = Field(default=1, ge=1, le=10**9, description="First column, from 1.")
    limit: int = Field(default=DEFAULT_DOMAINS, ge=1, le=1000, description="Maximum number of columns.")


@router.get("/forgetting", operation_id="get_forgetting", response_model=RecallMatrix, responses=UNCHANGED)
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


@router.get("/library", operation_id="get_library", response_model=LibraryStatus, responses=UNCHANGED)
@requires("search")
def get_library(request: Request, service: QueryDep, _parameters: NoParameters) -> Response:
    """Summarize the library: counts, unfinished tasks, workers and faults.

    The response has bounded size. A change of `versions` tells a polling client which lists to read again.
    """
    return conditional_response(request, library_status(service.snapshots.degraded()))


@router.get("/shards", operation_id="list_shards", response_model=ShardPage, responses=UNCHANGED)
@requires("search")
def list_shards(
    request: Request,
    links: PageLinkDep,
    service: QueryDep,
    parameters: Annotated[ShardListParameters, Query()],
) -> Response:
    """List published shards in pages, with domain, size and faults."""
    page = library_listing.list_shards(service.snapshots.degraded(), **dict(parameters))
    return conditional_response(request, page, headers=links.headers(page))


@router.get("/releases", operation_id="list_releases", response_model=ReleasePage, responses=UNCHANGED)
@requires("search")
def list_releases(
    request: Request, links: PageLinkDep, parameters: Annotated[ReleaseListParameters, Query()]
) -> Response:
    """List releases in pages, with method, kind and size. `current` marks the served release."""
    page = library_listing.list_releases(**dict(parameters))
    return conditional_response(request, page, headers=links.headers(page))


@router.post("/releases/{release_id}/serve", operation_id="serve_release")
@requires("admin")
def serve_release(release_id: str, spec: ServeSpec | None = None) -> ServeOutcome:
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
