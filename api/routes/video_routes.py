"""A video and its pictures."""

from __future__ import annotations

import mimetypes
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import FileResponse

from api.dependencies import QueryDep
from api.range_requests import range_response
from api.search_parameters import SimilarParameters
from service.core.schemas import SimilarVideosResponse, VideoDetails
from service.library import video_details

__all__ = ["router"]

router = APIRouter(prefix="/videos", tags=["videos"])

_DAY = "private, max-age=86400"


@router.get("/{video_id}", operation_id="get_video")
def get_video(video_id: str) -> VideoDetails:
    """Everything known about a video."""
    return video_details.get_video(video_id)


@router.get("/{video_id}/similar", operation_id="find_similar")
def find_similar(
    service: QueryDep, video_id: str, parameters: Annotated[SimilarParameters, Query()]
) -> SimilarVideosResponse:
    """Search by example: the videos whose stored vectors are nearest, itself left out.

    Vectors of tasks that different encoders embedded cannot be compared; `not_compared` names them, and where nothing
    else is left, the answer is 409.
    """
    return service.search_similar(video_id, **dict(parameters))


@router.head("/{video_id}/thumbnail", include_in_schema=False)
@router.get("/{video_id}/thumbnail", operation_id="get_thumbnail", response_class=FileResponse)
def get_thumbnail(video_id: str, request: Request) -> FileResponse:
    """A JPEG of the middle of the video, at most 320 pixels wide."""
    return range_response(
        request, video_details.thumbnail_path(video_id), "image/jpeg", {"Cache-Control": _DAY}
    )


@router.head("/{video_id}/stream", include_in_schema=False)
@router.get(
    "/{video_id}/stream",
    operation_id="stream_video",
    response_class=FileResponse,
    responses={206: {"description": "The range that was asked for.", "content": {"video/*": {}}}},
)
def stream_video(video_id: str, request: Request) -> FileResponse:
    """The video file itself; byte ranges are honoured."""
    path = video_details.stream_path(video_id)
    # Whatever was uploaded, a browser must take it for a video and never run it.
    headers = {"Cache-Control": _DAY, "Content-Security-Policy": "sandbox; default-src 'none'"}
    kind = mimetypes.guess_type(path.name)[0] or ""
    playable = kind if kind.startswith("video/") or kind == "image/gif" else "application/octet-stream"
    return range_response(request, path, playable, headers)
