"""Search with text queries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Body, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel

from api.dependencies import QueryDep
from api.openapi import BATCH_EXAMPLES, SEARCH_PROBLEMS
from api.request_threads import run_search
from api.search_parameters import ParameterModelRoute, SearchParameters
from api.security.route_scopes import ScopedRoute, requires
from cinestrata_schemas.search import (
    SearchBatch,
    SearchBatchResponse,
    SearchQuery,
    SearchResponse,
    SearchTiming,
)
from service.core import tracing
from service.library import prometheus_metrics

if TYPE_CHECKING:
    from service.search.engine import SearchEngine


router = APIRouter(tags=["search"], route_class=ScopedRoute)
get_search_router = APIRouter(tags=["search"], route_class=ParameterModelRoute)

_STAGE_SECONDS = {
    stage: prometheus_metrics.SEARCH_SECONDS.labels(stage) for stage in SearchTiming.model_fields
}


@get_search_router.get(
    "/search", operation_id="search", response_model=SearchResponse, responses=SEARCH_PROBLEMS
)
@requires("search")
async def search(request: Request, parameters: Annotated[SearchParameters, Query()]) -> Response:
    """Search all shards, or those of some domains. Each shard is searched with its own query vector.

    Filters apply before ranking: k results are returned whenever k videos pass them. `next_cursor` continues with the
    next page of the same release, even if a newer release has been published.
    """
    service: SearchEngine = request.app.state.query_service
    query = parameters.query()
    with service.admission.admit(1):
        response = await service.search_async(query)
    _observe_timing(response)
    return _json_response(response)


@router.post(
    "/search", operation_id="search_many", response_model=SearchBatchResponse, responses=SEARCH_PROBLEMS
)
@requires("search")
async def search_many(
    service: QueryDep, batch: Annotated[SearchBatch, Body(openapi_examples=BATCH_EXAMPLES)]
) -> Response:
    """Up to 256 searches in one request. All are answered by one release, except those with a cursor.

    If a query is invalid, `errors` names its position and field, and no query is answered.
    """
    # Admission precedes the thread pool, whose queue has no limit.
    with service.admission.admit(len(batch.queries)):
        return await run_search(_search_batch, service, batch.queries)


def _search_batch(service: SearchEngine, queries: list[SearchQuery]) -> Response:
    responses = service.search_many(queries)
    for response in responses:
        _observe_timing(response)
    return _json_response(SearchBatchResponse(answers=responses))


def _json_response(body: BaseModel) -> Response:
    """Serialize with pydantic directly; FastAPI would validate every field again and serialize in Python."""
    return Response(body.model_dump_json(), media_type="application/json")


def _observe_timing(response: SearchResponse) -> None:
    times = response.timing_ms
    for stage, milliseconds in times:
        _STAGE_SECONDS[stage].observe(milliseconds / 1000)
    if tracing.is_tracing():
        # The times are those of the search alone; it may have shared its steps with others, and waited for them.
        stages = [
            ("route", times.route),
            ("encode", times.encode),
            ("search", times.search),
            ("merge", times.merge),
        ]
        facts = {
            "cinestrata.release": response.release,
            "cinestrata.mode": response.mode,
            "cinestrata.results": len(response.results),
            "cinestrata.searched_tasks": sum(task.searched for task in response.routing),
        }
        tracing.record_stages("search", stages, facts)
