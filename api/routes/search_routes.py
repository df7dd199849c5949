"""Search by text, by clip or image, and with the captions of a domain or video."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, File, Query, UploadFile
from fastapi.responses import Response

from api.dependencies import (
    CaptionsParameters,
    ClipParameters,
    QueryDep,
    QueryReportParameters,
    SearchParameters,
    SuggestionParameters,
)
from api.openapi import SEARCH_PROBLEMS
from api.request_threads import run_search
from api.security.route_scopes import ScopedRoute, requires
from cinestrata_schemas import search as searches
from service.core import tracing
from service.library import prometheus_metrics

if TYPE_CHECKING:
    from service.search.engine import SearchEngine


router = APIRouter(tags=["search"], route_class=ScopedRoute)
search_router = APIRouter(tags=["search"], route_class=ScopedRoute)
query_report_router = APIRouter(tags=["measures"], route_class=ScopedRoute)

# Cost of a request for admission control, in text searches of similar duration.
_CLIP_COST = 16
_DESCRIPTION_COST = 8

_STAGE_SECONDS = {
    stage: prometheus_metrics.SEARCH_SECONDS.labels(stage) for stage in searches.SearchTiming.model_fields
}


@search_router.get("/search", response_model=searches.SearchResponse, responses=SEARCH_PROBLEMS)
@requires("search")
async def search(service: QueryDep, parameters: Annotated[SearchParameters, Query()]) -> Response:
    """Search videos by text, in all domains or some of them, best first.

    Each shard is searched with its own query vector. Filters apply before ranking: k results are returned whenever k
    videos pass them. `next_cursor` continues with the next page from the same release, even after a newer one is
    published.
    """
    query = searches.SearchQuery.model_construct(**parameters.service_arguments())  # validated already
    with service.admission.admit(1):
        response = await service.search_async(query)
    _observe_timing(response)
    # FastAPI would validate every field again and serialize in Python.
    return Response(response.model_dump_json(), media_type="application/json")


@router.post("/search", response_model=searches.SearchBatchResponse, responses=SEARCH_PROBLEMS)
@requires("search")
async def search_many(service: QueryDep, batch: searches.SearchBatch) -> Response:
    """Run up to 256 searches in one request, all on one release except those with a cursor.

    If a query is invalid, `errors` names its position and field, and no query runs.
    """
    # Admission precedes the thread pool, whose queue has no limit.
    with service.admission.admit(len(batch.queries)):
        return await run_search(_search_batch, service, batch.queries)


def _search_batch(service: SearchEngine, queries: list[searches.SearchQuery]) -> Response:
    responses = service.search_many(queries)
    for response in responses:
        _observe_timing(response)
    body = searches.SearchBatchResponse(answers=responses)
    return Response(body.model_dump_json(), media_type="application/json")


def _observe_timing(response: searches.SearchResponse) -> None:
    times = response.timing_ms
    for stage, milliseconds in times:
        _STAGE_SECONDS[stage].observe(milliseconds / 1000)
    if tracing.tracer is not None:
        # The times cover the search alone; it may have shared steps with others, and waited for them.
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


@router.get("/suggestions")
@requires("search")
async def suggest_words(
    service: QueryDep, parameters: Annotated[SuggestionParameters, Query()]
) -> searches.SuggestionsResponse:
    """Suggest words that complete the last word of a query, most frequent first.

    They come from captions, metadata and file names.
    """
    return await run_search(service.suggest, parameters.q, parameters.k)


@router.post("/search/clip")
@requires("search")
async def search_by_clip(
    service: QueryDep,
    clip: Annotated[UploadFile, File(description="A video, or an image (jpeg, png, webp, bmp).")],
    parameters: Annotated[ClipParameters, Query()],
) -> searches.ClipSearchResponse:
    """Search with a video clip or an image. The upload is not stored.

    Every searched domain's video encoder embeds the clip, so restricting the search with `task` is faster.
    """
    arguments = parameters.service_arguments()
    with service.admission.admit(_CLIP_COST):
        return await run_search(service.search_clip, clip.file, **arguments)


@router.get("/videos/{video_id}/captions")
@requires("search")
async def describe_video(
    service: QueryDep, video_id: str, parameters: Annotated[CaptionsParameters, Query()]
) -> searches.CaptionsResponse:
    """Find the library captions that describe a video best, each with the video it belongs to."""
    with service.admission.admit(_DESCRIPTION_COST):
        return await run_search(service.caption_video, video_id, **dict(parameters))


@query_report_router.get("/tasks/{task_id}/queries")
@requires("search")
async def get_query_report(
    service: QueryDep, task_id: str, parameters: Annotated[QueryReportParameters, Query()]
) -> searches.QueryReport:
    """Measure how well search finds a domain's videos by their captions.

    The report has the share of captions that find their video, the worst of them, and the domains that come first
    instead. The whole library is searched with at most 128 captions, from held-out videos if there are any (`split`).
    The searches run on the first request after the library changes; later requests reuse their results.
    """
    with service.admission.admit(1):
        return await run_search(service.report_queries, task_id, parameters.worst)
