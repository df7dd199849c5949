"""List videos; read, edit and delete a video; get its thumbnail, file and similar videos; feedback on results."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote, unquote

from fastapi import APIRouter, Header, Path, Query, Request, Response
from fastapi.responses import FileResponse, PlainTextResponse
from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from api.conditional_responses import conditional_response, range_response, remote_response
from api.dependencies import CallerDep, ExplanationParameters, QueryDep, SimilarParameters, page_links
from api.openapi import EDIT_PROBLEMS, UNCHANGED, file_response
from api.security.route_scopes import ScopedRoute, current_principal, requires
from cinestrata_schemas import videos
from cinestrata_schemas.choice_types import SubtitleFormat, TextSource
from cinestrata_schemas.search import ResultExplanation, SearchQuery, SimilarVideosResponse
from cinestrata_schemas.uris import is_source_uri
from media.sources.media_source import file_name
from media.video_limits import media_type as find_media_type
from service.access.credentials import OPEN_PRINCIPAL, Principal
from service.core import request_limits
from service.core.errors import NotFound, TooManyRequests
from service.core.list_parameters import FeedbackFilters, StrictParameters, VideoFilters
from service.library import library_listing, video_changes
from service.library.deletion import delete_videos

router = APIRouter(prefix="/videos", tags=["videos"], route_class=ScopedRoute)


class TranscriptParameters(StrictParameters):
    """Parameters of ``GET /videos/{id}/transcript``."""

    format: SubtitleFormat = Field(default="vtt", description="SubRip or WebVTT.")
    source: list[TextSource] = Field(
        default=["person", "subtitles", "speech"],
        description="Sources of the texts; by default what is said.",
    )


_CACHE_ONE_DAY = "private, max-age=86400"


@router.get("", response_model=videos.VideoPage, responses=UNCHANGED)
@requires("search")
def list_videos(request: Request, parameters: Annotated[VideoFilters, Query()]) -> Response:
    """List videos in pages. `next_cursor` and the `Link` header continue with the next page."""
    page = library_listing.list_videos(parameters)
    return conditional_response(request, page, headers=page_links(request, page.next_cursor))


@router.get("/{video_id}", response_model=videos.VideoDetails, responses=UNCHANGED)
@requires("search")
def get_video(video_id: str, request: Request) -> Response:
    """Return a video with its captions, metadata and transcript.

    Send the `ETag` of the response as `If-Match` to edit only this version.
    """
    video = library_listing.get_video(video_id)
    return conditional_response(request, video, entity_tag=video_changes.entity_tag(video))


@router.patch("/{video_id}", responses=EDIT_PROBLEMS)
@requires("ingest")
def edit_video(
    video_id: str,
    response: Response,
    patch: videos.VideoPatch,
    if_match: Annotated[
        str | None,
        Header(alias="If-Match", description="`ETag` of the video as you read it; another gives 412."),
    ] = None,
) -> videos.VideoDetails:
    """Change captions, metadata or transcript with a JSON Merge Patch (RFC 7396). Idempotent.

    The next search in every process finds the new words. Results and filters change at once, and the domain's routing
    profile within about a second. The video's vector and the encoder stay the same: edits are not learned.
    """
    video = video_changes.edit_video(video_id, patch, expected_tag=if_match)
    response.headers["ETag"] = video_changes.entity_tag(video)
    return video


@router.patch("/{video_id}/transcript/{cue_id}", responses=EDIT_PROBLEMS)
@requires("ingest")
def edit_cue(video_id: str, cue_id: str, patch: videos.CuePatch, response: Response) -> videos.VideoDetails:
    """Correct a timed text of a video, named by its `id`.

    It becomes a person's text, with another ID, and no reading replaces it.
    """
    video = video_changes.edit_cue(video_id, cue_id, patch)
    response.headers["ETag"] = video_changes.entity_tag(video)
    return video


@router.delete("/{video_id}/transcript/{cue_id}", responses=EDIT_PROBLEMS)
@requires("ingest")
def delete_cue(video_id: str, cue_id: str) -> videos.VideoDetails:
    """Delete a timed text of a video. No reading brings it back."""
    return video_changes.edit_cue(video_id, cue_id, None)


@router.get(
    "/{video_id}/transcript",
    response_class=PlainTextResponse,
    responses={
        200: {"content": {"application/x-subrip": {}, "text/vtt": {}}, "description": "The subtitles."}
    },
)
@requires("search")
def get_transcript(video_id: str, parameters: Annotated[TranscriptParameters, Query()]) -> Response:
    """Return a video's timed texts as subtitles."""
    form = parameters.format
    text = library_listing.write_subtitles(video_id, form, parameters.source)
    media_type = "application/x-subrip" if form == "srt" else "text/vtt"
    name = quote(f"{video_id}.{form}", safe="")
    return PlainTextResponse(
        text, media_type=media_type, headers={"Content-Disposition": f"attachment; filename*=UTF-8''{name}"}
    )


@router.get("/{video_id}/similar")
@requires("search")
def find_similar(
    service: QueryDep, video_id: str, parameters: Annotated[SimilarParameters, Query()]
) -> SimilarVideosResponse:
    """Find the videos most similar to a library video, by their stored vectors.

    Vectors from different encoders cannot be compared; `not_compared` names the affected domains. If no comparable
    domain is left, the status is 409.
    """
    return service.search_similar(video_id, **dict(parameters))


@router.get("/{video_id}/explanation")
@requires("search")
def explain_result(
    service: QueryDep, video_id: str, parameters: Annotated[ExplanationParameters, Query()]
) -> ResultExplanation:
    """Explain a video's score for a query: cosine, routing evidence, confidence and rank.

    The video need not be among the results; `rank` is null if it isn't.
    """
    arguments = parameters.service_arguments()
    if parameters.k is None:
        arguments["k"] = request_limits.MAX_RESULTS
    with service.admission.admit(1):
        return service.explain(video_id, SearchQuery.model_construct(**arguments))


@router.head("/{video_id}/thumbnail", include_in_schema=False)
@router.get("/{video_id}/thumbnail", response_class=FileResponse, responses=file_response("image/jpeg"))
@requires("search")
def get_thumbnail(video_id: str, request: Request) -> Response:
    """Return a JPEG image from the middle of the video, at most 320 pixels wide."""
    return range_response(
        request, library_listing.thumbnail_path(video_id), "image/jpeg", {"Cache-Control": _CACHE_ONE_DAY}
    )


@router.head("/{video_id}/stream", include_in_schema=False)
@router.get("/{video_id}/stream", response_class=FileResponse, responses=file_response("video/*"))
@requires("search")
async def stream_video(video_id: str, request: Request, caller: CallerDep) -> Response:
    """Return the video file, with support for byte ranges. The service forwards remote videos."""
    uri, container, codec = await run_in_threadpool(library_listing.video_file, video_id)
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
    path = await run_in_threadpool(library_listing.stream_path, video_id)
    return await run_in_threadpool(range_response, request, path, media_type, headers)


@router.delete("/{video_id}")
@requires("ingest")
def delete_video(video_id: str) -> videos.DeletionResult:
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


feedback_router = APIRouter(prefix="/feedback", tags=["search"], route_class=ScopedRoute)

# Per caller and process: each write makes all processes read the video again.
RATE = RateLimitItemPerMinute(60)
_limiter = FixedWindowRateLimiter(MemoryStorage())


@feedback_router.post("")
@requires("search")
def give_feedback(request: Request, spec: videos.FeedbackSpec) -> videos.FeedbackDetails:
    """Mark a video right or wrong for a query. Idempotent: each caller has one entry per video and query.

    The next search in every process counts it: with positive feedback, the query becomes a text of the video, weaker
    than a caption; negative feedback is evidence against the video for the same words. When appended videos are
    relearned, their queries with positive feedback are learned like captions.
    """
    _require_rate(_principal(request))
    return video_changes.give_feedback(spec)


@feedback_router.get("")
@requires("search")
def list_feedback(
    request: Request, response: Response, parameters: Annotated[FeedbackFilters, Query()]
) -> videos.FeedbackPage:
    """List feedback in pages, newest first by default. Administrators see everyone's feedback, others their own."""
    parameters.own |= _principal(request).scope != "admin"
    page = video_changes.list_feedback(parameters)
    response.headers.update(page_links(request, page.next_cursor))
    return page


@feedback_router.delete("/{feedback_id}", status_code=204)
@requires("search")
def take_back_feedback(request: Request, feedback_id: Annotated[int, Path(ge=1, le=2**63 - 1)]) -> None:
    """Take back feedback. The next search no longer counts it.

    Administrators can take back any feedback, others their own.
    """
    principal = _principal(request)
    _require_rate(principal)
    video_changes.take_back(feedback_id, own=principal.scope != "admin")


def _principal(request: Request) -> Principal:
    return current_principal(request) or OPEN_PRINCIPAL


def _require_rate(principal: Principal) -> None:
    if not _limiter.hit(RATE, principal.kind, principal.name):
        raise TooManyRequests(f"The limit is {RATE.amount} changes per minute; try again.", retry_after=30)
