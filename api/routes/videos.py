"""A video and its pictures."""

from __future__ import annotations

import mimetypes

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse

from api.ranges import ranged_file
from service import library
from service.views import VideoView

__all__ = ["router"]

router = APIRouter(prefix="/videos", tags=["videos"])

_DAY = "private, max-age=86400"


@router.get("/{video_id}", operation_id="get_video")
def get_video(video_id: str) -> VideoView:
    """Everything known about a video."""
    return library.get_video(video_id)


@router.head("/{video_id}/thumbnail", include_in_schema=False)
@router.get("/{video_id}/thumbnail", operation_id="get_thumbnail", response_class=FileResponse)
def get_thumbnail(video_id: str, request: Request) -> FileResponse:
    """A JPEG of the middle of the video, at most 320 pixels wide."""
    return ranged_file(request, library.thumbnail_path(video_id), "image/jpeg", {"Cache-Control": _DAY})


@router.head("/{video_id}/stream", include_in_schema=False)
@router.get(
    "/{video_id}/stream",
    operation_id="stream_video",
    response_class=FileResponse,
    responses={206: {"description": "The range that was asked for.", "content": {"video/*": {}}}},
)
def stream_video(video_id: str, request: Request) -> FileResponse:
    """The video file itself; byte ranges are honoured."""
    path = library.stream_path(video_id)
    # Whatever was uploaded, a browser must take it for a video and never run it.
    headers = {"Cache-Control": _DAY, "Content-Security-Policy": "sandbox; default-src 'none'"}
    kind = mimetypes.guess_type(path.name)[0] or ""
    playable = kind if kind.startswith("video/") or kind == "image/gif" else "application/octet-stream"
    return ranged_file(request, path, playable, headers)
