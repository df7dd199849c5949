"""A video and its pictures."""

from __future__ import annotations

import mimetypes

from fastapi import APIRouter
from fastapi.responses import FileResponse

from service import library
from service.views import VideoView

__all__ = ["router"]

router = APIRouter(prefix="/videos", tags=["videos"])

_DAY = "private, max-age=86400"


@router.get("/{video_id}", operation_id="get_video")
def get_video(video_id: str) -> VideoView:
    """Everything known about a video."""
    return library.get_video(video_id)


@router.get("/{video_id}/thumbnail", operation_id="get_thumbnail", response_class=FileResponse)
def get_thumbnail(video_id: str) -> FileResponse:
    """A JPEG of the middle of the video, at most 320 pixels wide."""
    return FileResponse(
        library.thumbnail_path(video_id), media_type="image/jpeg", headers={"Cache-Control": _DAY}
    )


@router.get("/{video_id}/stream", operation_id="stream_video", response_class=FileResponse)
def stream_video(video_id: str) -> FileResponse:
    """The video file itself; byte ranges are honoured."""
    path = library.stream_path(video_id)
    # Whatever was uploaded, a browser must take it for a video and never run it.
    headers = {"Cache-Control": _DAY, "Content-Security-Policy": "sandbox; default-src 'none'"}
    kind = mimetypes.guess_type(path.name)[0] or ""
    playable = kind if kind.startswith("video/") or kind == "image/gif" else "application/octet-stream"
    return FileResponse(path, media_type=playable, headers=headers)
