"""Metadata, thumbnail, file and similar videos of a video."""

from __future__ import annotations

import mimetypes
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import FileResponse, Response
from starlette.concurrency import run_in_threadpool

from api.dependencies import QueryDep
from api.range_requests import range_response
from api.remote_playback import remote_response
from api.search_parameters import AllVideosParameters, ExplanationParameters, SimilarParameters
from media.sources.source_uris import file_name, is_source_uri
from service.core.schemas import ResultExplanation, SimilarVideosResponse, VideoDetails, VideoPage
from service.library import video_details, video_listing

__all__ = ["router"]

router = APIRouter(prefix="/videos", tags=["videos"])

_CACHE_ONE_DAY = "private, max-age=86400"


@router.get("", operation_id="list_videos")
def list_videos(parameters: Annotated[AllVideosParameters, Query()]) -> VideoPage:
    """Videos in the order of their arrival, in pages."""
    options = dict(parameters)
    return video_listing.list_videos(options.pop("task"), **options)


@router.get("/{video_id}", operation_id="get_video")
def get_video(video_id: str) -> VideoDetails:
    """Metadata of a video."""
    return video_details.get_video(video_id)


@router.get("/{video_id}/similar", operation_id="find_similar")
def find_similar(
    service: QueryDep, video_id: str, parameters: Annotated[SimilarParameters, Query()]
) -> SimilarVideosResponse:
    """Videos with the nearest stored vectors, without the video itself.

    Vectors of different encoders cannot be compared; `not_compared` names the affected tasks. If no comparable task is
    left, the response is 409.
    """
    return service.search_similar(video_id, **dict(parameters))


@router.get("/{video_id}/explanation", operation_id="explain_result")
def explain_result(
    service: QueryDep, video_id: str, parameters: Annotated[ExplanationParameters, Query()]
) -> ResultExplanation:
    """The parts of a video's score for a text: cosine, routing evidence and confidence, and its rank.

    The video need not be among the results; `rank` is then null.
    """
    query = parameters.query()
    if parameters.k is None:
        query.k = service.settings.limits.max_results
    with service.admit(1):
        return service.explain(video_id, query)


@router.head("/{video_id}/thumbnail", include_in_schema=False)
@router.get("/{video_id}/thumbnail", operation_id="get_thumbnail", response_class=FileResponse)
def get_thumbnail(video_id: str, request: Request) -> FileResponse:
    """A JPEG image from the middle of the video, at most 320 pixels wide."""
    return range_response(
        request, video_details.thumbnail_path(video_id), "image/jpeg", {"Cache-Control": _CACHE_ONE_DAY}
    )


@router.head("/{video_id}/stream", include_in_schema=False)
@router.get(
    "/{video_id}/stream",
    operation_id="stream_video",
    response_class=FileResponse,
    responses={206: {"description": "The requested byte range.", "content": {"video/*": {}}}},
)
async def stream_video(video_id: str, request: Request) -> Response:
    """The video file, with support for byte ranges. The service forwards videos of remote sources."""
    uri = await run_in_threadpool(video_details.video_uri, video_id)
    # Files of users are untrusted: a browser must treat them as videos and never execute them.
    headers = {"Cache-Control": _CACHE_ONE_DAY, "Content-Security-Policy": "sandbox; default-src 'none'"}
    if is_source_uri(uri):
        return await remote_response(request, video_id, uri, _media_type(file_name(uri)), headers)
    path = await run_in_threadpool(video_details.stream_path, video_id)
    return await run_in_threadpool(range_response, request, path, _media_type(path.name), headers)


def _media_type(name: str) -> str:
    guess = mimetypes.guess_type(name)[0] or ""
    is_playable = guess.startswith("video/") or guess == "image/gif"
    return guess if is_playable else "application/octet-stream"
