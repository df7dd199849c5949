"""What was learned, what was forgotten, and how large it all is."""

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
    mode: Annotated[QueryMode | None, Query(description="Query mode; the default's if none.")] = None,
) -> RecallMatrix:
    """The recall matrix A[i, t] and the measures of forgetting; rows are releases, columns are tasks."""
    return read_recall_matrix(mode)


@router.get("/overview", operation_id="get_overview")
def get_overview(service: QueryDep) -> LibraryOverview:
    """Shards, releases, sizes, workers, and what is wrong."""
    return overview(service.degraded())
