"""Text in, videos out."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from api.dependencies import QueryDep
from api.openapi import BATCH_EXAMPLES, SEARCH_PROBLEMS
from api.search_parameters import ParameterModelRoute, SearchParameters
from service.core.schemas import SearchBatch, SearchBatchResponse, SearchQuery, SearchResponse, SearchTiming
from service.library import prometheus_metrics
from service.search.engine import SearchEngine

__all__ = ["get_search_router", "router"]

router = APIRouter(tags=["search"])
get_search_router = APIRouter(tags=["search"], route_class=ParameterModelRoute)

_STAGES = {stage: prometheus_metrics.SEARCH_SECONDS.labels(stage) for stage in SearchTiming.model_fields}


@get_search_router.get(
    "/search", operation_id="search", response_model=SearchResponse, responses=SEARCH_PROBLEMS
)
async def search(request: Request, parameters: Annotated[SearchParameters, Query()]) -> Response:
    """Search all shards, or some. Every shard is asked with a query vector of its own.

    What does not pass the filters is never found, and k results come back wherever k videos pass. `next_cursor`
    leads to the results after these, by the same release, whatever was published since.
    """
    service: SearchEngine = request.app.state.query_service
    query = parameters.query()
    with service.admit(1):
        answer = await service.search_async(query)
    _measure(answer)
    return _json(answer)


@router.post(
    "/search", operation_id="search_many", response_model=SearchBatchResponse, responses=SEARCH_PROBLEMS
)
async def search_many(
    service: QueryDep, batch: Annotated[SearchBatch, Body(openapi_examples=BATCH_EXAMPLES)]
) -> Response:
    """Up to 256 searches at once. Each is answered as by itself, and all by one release, but for further pages.

    Where one of them is wrong, `errors` names its place and its field, and none is answered.
    """
    # Asked before a thread is waited for, lest those who wait pile up unseen.
    with service.admit(len(batch.queries)):
        return await run_in_threadpool(_answers, service, batch.queries)


def _answers(service: SearchEngine, queries: list[SearchQuery]) -> Response:
    answers = service.search_many(queries)
    for answer in answers:
        _measure(answer)
    return _json(SearchBatchResponse(answers=answers))


def _json(answer: BaseModel) -> Response:
    """Written out by the model itself: the framework would check every field once more, and write in Python."""
    return Response(answer.model_dump_json(), media_type="application/json")


def _measure(answer: SearchResponse) -> None:
    for stage, milliseconds in answer.timing_ms:
        _STAGES[stage].observe(milliseconds / 1000)
