"""Text in, videos out."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Body, Query
from fastapi.responses import Response
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from api.dependencies import QueryDep
from api.openapi import BATCH_EXAMPLES, SEARCH_REFUSED, WHERE_EXAMPLES
from service import metrics
from service.filters import where_from_json
from service.query import QueryService
from service.views import SearchBatch, SearchBatchResponse, SearchQuery, SearchResponse

__all__ = ["router"]

router = APIRouter(tags=["search"])


@router.get("/search", operation_id="search", response_model=SearchResponse, responses=SEARCH_REFUSED)
async def search(
    service: QueryDep,
    q: Annotated[str, Query(description="What is seen, in words.", examples=["eggs are whisked"])],
    k: Annotated[int, Query(description="How many results.")] = 10,
    task: Annotated[
        list[str] | None,
        Query(description="Name or id of a domain to search; may be repeated. All by default."),
    ] = None,
    mode: Annotated[str | None, Query(description="'pinned', 'mapped' or 'latest' query encoders.")] = None,
    min_duration: Annotated[float | None, Query(description="Seconds.")] = None,
    max_duration: Annotated[float | None, Query(description="Seconds.")] = None,
    arrived_after: Annotated[
        datetime | None, Query(description="Posted then or later; UTC without a zone.")
    ] = None,
    arrived_before: Annotated[datetime | None, Query(description="Posted earlier.")] = None,
    where: Annotated[
        str | None,
        Query(
            description=(
                "Metadata that a video must have, as a JSON object: by field a value, {min, max}, {any: [values]} or "
                "{all: [texts]}."
            ),
            openapi_examples=WHERE_EXAMPLES,
        ),
    ] = None,
    min_score: Annotated[float | None, Query(description="Results below this score are left out.")] = None,
    min_confidence: Annotated[
        float | None,
        Query(description="Results that are less likely than this to be right are left out; 0..1."),
    ] = None,
    routes: Annotated[
        str | None,
        Query(
            description=(
                "Which domains count: 'all', 'auto' (those that the words make likely and that can still matter), or "
                "how many of the likeliest."
            ),
        ),
    ] = None,
    moments: Annotated[int, Query(description="How many moments of each long video, the best first.")] = 3,
    cursor: Annotated[
        str | None,
        Query(description="`next_cursor` of the page before; everything but k and moments stays as it was."),
    ] = None,
) -> Response:
    """Search all shards, or some. Every shard is asked with a query vector of its own.

    What does not pass the filters is never found, and k results come back wherever k videos pass. `next_cursor`
    leads to the results after these, by the same release, whatever was published since.
    """
    query = SearchQuery.model_construct(  # its values are checked by the service
        q=q,
        k=k,
        task=task,
        mode=mode,
        min_duration=min_duration,
        max_duration=max_duration,
        arrived_after=arrived_after,
        arrived_before=arrived_before,
        where=where_from_json(where) if where is not None else None,
        min_score=min_score,
        min_confidence=min_confidence,
        routes=routes,
        moments=moments,
        cursor=cursor,
    )
    with service.admission(1):
        answer = await service.searched(query)
    _measure(answer)
    return _json(answer)


@router.post(
    "/search", operation_id="search_many", response_model=SearchBatchResponse, responses=SEARCH_REFUSED
)
async def search_many(
    service: QueryDep, batch: Annotated[SearchBatch, Body(openapi_examples=BATCH_EXAMPLES)]
) -> Response:
    """Up to 256 searches at once. Each is answered as by itself, and all by one release, but for further pages.

    Where one of them is wrong, `errors` names its place and its field, and none is answered.
    """
    with service.admission(len(batch.queries)):
        return await run_in_threadpool(_answers, service, batch.queries)


def _answers(service: QueryService, queries: list[SearchQuery]) -> Response:
    answers = service.search_many(queries)
    for answer in answers:
        _measure(answer)
    return _json(SearchBatchResponse(answers=answers))


def _json(answer: BaseModel) -> Response:
    """Written out by the model itself: the framework would check every field once more, and write in Python."""
    return Response(answer.model_dump_json(), media_type="application/json")


def _measure(answer: SearchResponse) -> None:
    for stage, milliseconds in answer.timing_ms:
        metrics.SEARCH_SECONDS.labels(stage).observe(milliseconds / 1000)
