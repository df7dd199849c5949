"""What was learned, what was forgotten, and how large it all is."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from api.dependencies import QueryDep
from service.core.schemas import ForgettingView, OverviewView
from service.core.settings import QueryMode
from service.library.overview import overview
from service.library.recall_matrix import forgetting

__all__ = ["router"]

router = APIRouter(tags=["measures"])


@router.get("/forgetting", operation_id="get_forgetting")
def get_forgetting(
    mode: Annotated[QueryMode | None, Query(description="Query mode; the default's if none.")] = None,
) -> ForgettingView:
    """The recall matrix A[i, t] and the measures of forgetting; rows are releases, columns are tasks."""
    return forgetting(mode)


@router.get("/overview", operation_id="get_overview")
def get_overview(service: QueryDep) -> OverviewView:
    """Shards, releases, sizes, workers, and what is wrong."""
    return overview(service.degraded())
