"""Text in, videos out."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from api.dependencies import QueryDep
from service import metrics
from service.views import SearchResponse

__all__ = ["router"]

router = APIRouter(tags=["search"])


@router.get("/search", operation_id="search")
def search(
    service: QueryDep,
    q: Annotated[str, Query(description="What is seen, in words.")],
    k: Annotated[int, Query(description="How many results.")] = 10,
    task: Annotated[str | None, Query(description="Name or id of the one domain to search.")] = None,
    mode: Annotated[str | None, Query(description="'pinned', 'mapped' or 'latest' query encoders.")] = None,
) -> SearchResponse:
    """Search all shards, or one. Every shard is asked with a query vector of its own."""
    answer = service.search(q, k, task, mode)
    for stage, milliseconds in answer.timing_ms:
        metrics.SEARCH_SECONDS.labels(stage).observe(milliseconds / 1000)
    return answer
