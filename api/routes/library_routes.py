"""State of the library: measures of forgetting, shards, releases and sizes."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict

from api.conditional_responses import conditional_response
from api.dependencies import QueryDep
from api.list_parameters import ReleaseListParameters, link_next_page
from service.core.schemas import Gallery, LibraryOverview, RecallMap, RecallMatrix, ReleasePage
from service.core.settings import QueryMode, settings
from service.library import release_listing
from service.library.overview import overview
from service.library.recall.recall_cells import read_measures_version
from service.library.recall.recall_map import MAX_BINS, MapWindow, read_recall_map
from service.library.recall.recall_matrix import read_recall_matrix

__all__ = ["router"]

router = APIRouter(tags=["measures"])

_UNCHANGED: dict[int | str, dict[str, Any]] = {
    304: {"description": "The client has this version: `If-None-Match` contains its `ETag`."}
}
_Position = Annotated[int | None, Query(ge=1, le=10**9)]


class RecallMapParameters(BaseModel):
    """Parameters of ``GET /forgetting/map``."""

    model_config = ConfigDict(extra="forbid")

    mode: Annotated[QueryMode | None, Query(description="Query mode; default: the service's.")] = None
    gallery: Annotated[
        Gallery,
        Query(
            description=(
                "'local': each domain in its own shard; 'global': all shards; among held-out videos, or all videos "
                "with '_all'."
            )
        ),
    ] = "local"
    first_release: Annotated[_Position, Query(description="First row of the window, from 1.")] = None
    last_release: Annotated[_Position, Query(description="Last row of the window.")] = None
    first_domain: Annotated[_Position, Query(description="First column of the window, from 1.")] = None
    last_domain: Annotated[_Position, Query(description="Last column of the window.")] = None
    bins: Annotated[int, Query(ge=1, le=MAX_BINS, description="Maximum number of rows and of columns.")] = 40


@router.get("/forgetting", operation_id="get_forgetting", response_model=RecallMatrix, responses=_UNCHANGED)
def get_forgetting(
    request: Request,
    mode: Annotated[QueryMode | None, Query(description="Query mode; default: the service's.")] = None,
) -> Response:
    """The complete recall matrix A[i, t] and the measures of forgetting. Rows are releases, columns are tasks.

    The size of the answer grows with the square of the number of domains; `/forgetting/map` is bounded.
    """
    return conditional_response(request, lambda: read_recall_matrix(mode), _version(mode))


@router.get(
    "/forgetting/map", operation_id="get_forgetting_map", response_model=RecallMap, responses=_UNCHANGED
)
def get_forgetting_map(request: Request, parameters: Annotated[RecallMapParameters, Query()]) -> Response:
    """A window of the recall matrix in at most `bins` rows and columns, with curves over its releases.

    A cell is the mean of its bin, weighed by the numbers of queries; request the window of a bin to see its cells.
    """
    options = parameters.model_dump()
    mode, gallery, bins = (options.pop(name) for name in ("mode", "gallery", "bins"))
    return conditional_response(
        request,
        lambda: read_recall_map(mode, gallery, MapWindow(**options), bins),
        _version(*dict(parameters).values()),
    )


@router.get("/overview", operation_id="get_overview")
def get_overview(service: QueryDep) -> LibraryOverview:
    """Shards, releases, sizes, workers and faults."""
    return overview(service.degraded())


@router.get("/releases", operation_id="list_releases")
def list_releases(
    request: Request, response: Response, parameters: Annotated[ReleaseListParameters, Query()]
) -> ReleasePage:
    """Releases with their task, method, kind and size, in pages; `current` marks the release that answers searches."""
    page = release_listing.list_releases(**dict(parameters))
    link_next_page(request, response, page.next_cursor)
    return page


def _version(*parameters: object) -> str:
    # The configured query mode decides about the default mode.
    selected = "-".join("" if value is None else str(value) for value in (settings().query_mode, *parameters))
    return f"{read_measures_version()}-{selected}"
