"""Videos and pictures in, videos and texts out."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, File, Query, UploadFile
from starlette.concurrency import run_in_threadpool

from api.dependencies import QueryDep
from api.openapi import CLIP_SEARCH_PROBLEMS
from api.search_parameters import CaptionsParameters, ClipParameters
from service.core.schemas import CaptionsResponse, ClipSearchResponse

__all__ = ["router"]

router = APIRouter(tags=["search"])

# As many searches by a text take about as long.
_CLIP = 16
_DESCRIPTION = 8


@router.post("/search/clip", operation_id="search_by_clip", responses=CLIP_SEARCH_PROBLEMS)
async def search_by_clip(
    service: QueryDep,
    clip: Annotated[UploadFile, File(description="A video, or a picture (jpeg, png, webp, bmp).")],
    parameters: Annotated[ClipParameters, Query()],
) -> ClipSearchResponse:
    """The videos most like a clip or a picture that is sent. Nothing of it is kept.

    It is embedded by the video encoder of every searched domain, so naming domains with `task` makes it faster.
    """
    given = parameters.given()
    with service.admit(_CLIP):
        return await run_in_threadpool(service.search_clip, clip.file, **given)


@router.get("/videos/{video_id}/captions", operation_id="describe_video", responses=CLIP_SEARCH_PROBLEMS)
async def describe_video(
    service: QueryDep, video_id: str, parameters: Annotated[CaptionsParameters, Query()]
) -> CaptionsResponse:
    """The texts of the library that fit a video best, with the video that each was written for."""
    with service.admit(_DESCRIPTION):
        return await run_in_threadpool(service.caption_video, video_id, **dict(parameters))
