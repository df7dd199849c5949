"""State of the library: measures of forgetting, shards, releases and sizes."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from api.dependencies import QueryDep
from service.core.schemas import LibraryOverview, RecallMatrix
from service.core.settings import QueryMode
from service.library.overview import overview
from service.library.recall_matrix import read_recall_matrix

__all__ = ["router"]

router = APIRouter(tags=["measures"])


@router.get("/forgetting", operation_id="get_forgetting")
def get_forgetting(
    mode: Annotated[QueryMode | None, Query(description="Query mode; default: the service's.")] = None,
) -> RecallMatrix:
    """The recall matrix A[i, t] and the measures of forgetting. Rows are releases, columns are tasks."""
    return read_recall_matrix(mode)


@router.get("/overview", operation_id="get_overview")
def get_overview(service: QueryDep) -> LibraryOverview:
    """Shards, releases, sizes, workers and faults."""
    return overview(service.degraded())
