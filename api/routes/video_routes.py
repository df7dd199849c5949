"""List videos; read, edit and delete a video; get its thumbnail, file and similar videos."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote, unquote

from fastapi import APIRouter, Body, Header, Query, Request, Response
from fastapi.responses import FileResponse
from starlette.concurrency import run_in_threadpool

from api.conditional_responses import conditional_response, range_response
from api.dependencies import CallerDep, PageLinkDep, QueryDep
from api.openapi import EDIT_EXAMPLES, EDIT_PROBLEMS, UNCHANGED, file_response
from api.query_parameters import ExplanationParameters, SimilarParameters, VideoListParameters
from api.remote_playback import remote_response
from api.security.route_scopes import ScopedRoute, requires
from cinestrata_schemas.explanations import ResultExplanation
from cinestrata_schemas.search import SimilarVideosResponse
from cinestrata_schemas.videos import DeletionResult, VideoDetails, VideoPage, VideoPatch
from media.sources.media_source import file_name, is_source_uri
from media.video_limits import media_type as find_media_type
from service.core import request_limits
from service.core.errors import NotFound
from service.library import video_editing, video_listing
from service.library.deletion import delete_videos

router = APIRouter(prefix="/videos", tags=["videos"], route_class=ScopedRoute)

_CACHE_ONE_DAY = "private, max-age=86400"


@router.get("", operation_id="list_videos", response_model=VideoPage, responses=UNCHANGED)
@requires("search")
def list_videos(
    request: Request, links: PageLinkDep, parameters: Annotated[VideoListParameters, Query()]
) -> Response:
    """List videos in pages. `next_cursor` and the `Link` header continue with the next page."""
    page = video_listing.list_videos(**dict(parameters))
    return conditional_response(request, page, headers=links.headers(page))


@router.get("/{video_id}", operation_id="get_video", response_model=VideoDetails, responses=UNCHANGED)
@requires("search")
def get_video(video_id: str, request: Request) -> Response:
    """Return a video with its captions, metadata and transcript.

    Send the `ETag` of the response as `If-Match` to edit only this version.
    """
    video = video_listing.get_video(video_id)
    return conditional_response(request, video, entity_tag=video_editing.entity_tag(video))


@router.patch(
    "/{video_id}",
    operation_id="edit_video",
    responses=EDIT_PROBLEMS,
)
@requires("ingest")
def edit_video(
    video_id: str,
    response: Response,
    caller: CallerDep,
    patch: Annotated[VideoPatch, Body(openapi_examples=EDIT_EXAMPLES)],
    if_match: Annotated[
        str | None,
        Header(
            alias="If-Match", description="`ETag` of the video as you read it; any other version gives 412."
        ),
    ] = None,
) -> VideoDetails:
    """Change captions, metadata or transcript with a JSON Merge Patch (RFC 7396). Idempotent.

    The next search in every process finds the new words. Results and filters change at once, and the domain's routing
    profile within about a second. The video's vector and the encoder stay the same: edits are not learned.
    """
    video = video_editing.edit_video(video_id, patch, expected_tag=if_match, caller=caller)
    response.headers["ETag"] = video_editing.entity_tag(video)
    return video


@router.get("/{video_id}/similar", operation_id="find_similar")
@requires("search")
def find_similar(
    service: QueryDep, video_id: str, parameters: Annotated[SimilarParameters, Query()]
) -> SimilarVideosResponse:
    """Find the videos most similar to a library video, by their stored vectors.

    Vectors from different encoders cannot be compared; `not_compared` names the affected domains. If no comparable
    domain is left, the status is 409.
    """
    return service.search_similar(video_id, **dict(parameters))


@router.get("/{video_id}/explanation", operation_id="explain_result")
@requires("search")
def explain_result(
    service: QueryDep, video_id: str, parameters: Annotated[ExplanationParameters, Query()]
) -> ResultExplanation:
    """Explain a video's score for a query: cosine, routing evidence, confidence and rank.

    The video need not be among the results; `rank` is null if it isn't.
    """
    query = parameters.query()
    if parameters.k is None:
        query.k = request_limits.MAX_RESULTS
    with service.admission.admit(1):
        return service.explain(video_id, query)


@router.head("/{video_id}/thumbnail", include_in_schema=False)
@router.get(
    "/{video_id}/thumbnail",
    operation_id="get_thumbnail",
    response_class=FileResponse,
    responses=file_response("image/jpeg"),
)
@requires("search")
def get_thumbnail(video_id: str, request: Request) -> Response:
    """Return a JPEG image from the middle of the video, at most 320 pixels wide."""
    return range_response(
        request, video_listing.thumbnail_path(video_id), "image/jpeg", {"Cache-Control": _CACHE_ONE_DAY}
    )


@router.head("/{video_id}/stream", include_in_schema=False)
@router.get(
    "/{video_id}/stream",
    operation_id="stream_video",
    response_class=FileResponse,
    responses=file_response("video/*"),
)
@requires("search")
async def stream_video(video_id: str, request: Request, caller: CallerDep) -> Response:
    """Return the video file, with support for byte ranges. The service forwards remote videos."""
    uri, container, codec = await run_in_threadpool(video_listing.video_file, video_id)
    name = _name_of_file(uri)
    media_type = find_media_type(name, container, codec)
    # User files are untrusted: a browser must treat them as videos and never execute them.
    headers = {
        "Cache-Control": _CACHE_ONE_DAY,
        "Content-Disposition": f"inline; filename*=UTF-8''{quote(name, safe='', errors='replace')}",
        "Content-Security-Policy": "sandbox; default-src 'none'",
    }
    if is_source_uri(uri):
        return await remote_response(request, caller, video_id, uri, media_type, headers)
    path = await run_in_threadpool(video_listing.stream_path, video_id)
    return await run_in_threadpool(range_response, request, path, media_type, headers)


@router.delete("/{video_id}", operation_id="delete_video")
@requires("ingest")
def delete_video(video_id: str) -> DeletionResult:
    """Delete a video. Searches, training and evaluation no longer use it; repeating the request gives 404.

    Captions, metadata, thumbnail, sampled frames and the uploaded file are deleted immediately; a file below the media
    root is kept.
    """
    result = delete_videos([video_id])
    if result.not_found:
        raise NotFound(f"There is no video {video_id!r}.")
    return result


def _name_of_file(uri: str) -> str:
    if is_source_uri(uri):
        return file_name(uri)
    return (unquote(uri) if uri.lower().startswith("file:") else uri).rpartition("/")[2]
