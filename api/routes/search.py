"""Text in, videos out."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Query

from api.dependencies import QueryDep
from api.openapi import BATCH_EXAMPLES
from service import metrics
from service.views import SearchBatch, SearchBatchResponse, SearchResponse

__all__ = ["router"]

router = APIRouter(tags=["search"])


@router.get("/search", operation_id="search")
def search(
    service: QueryDep,
    q: Annotated[str, Query(description="What is seen, in words.", examples=["eggs are whisked"])],
    k: Annotated[int, Query(description="How many results.")] = 10,
    task: Annotated[
        list[str] | None,
        Query(description="Name or id of a domain to search; may be repeated. All by default."),
    ] = None,
    mode: Annotated[str | None, Query(description="'pinned', 'mapped' or 'latest' query encoders.")] = None,
) -> SearchResponse:
    """Search all shards, or some. Every shard is asked with a query vector of its own."""
    return _measured(service.search(q, k, task, mode))


@router.post("/search", operation_id="search_many")
def search_many(
    service: QueryDep, batch: Annotated[SearchBatch, Body(openapi_examples=BATCH_EXAMPLES)]
) -> SearchBatchResponse:
    """Up to 256 searches at once. Each is answered as by itself, all of them by one release.

    Where one of them is wrong, `errors` names its place and its field, and none is answered.
    """
    return SearchBatchResponse(answers=[_measured(one) for one in service.search_many(batch.queries)])


def _measured(answer: SearchResponse) -> SearchResponse:
    for stage, milliseconds in answer.timing_ms:
        metrics.SEARCH_SECONDS.labels(stage).observe(milliseconds / 1000)
    return answer
