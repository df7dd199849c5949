"""Videos and pictures in, videos and texts out."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, File, Query, UploadFile
from starlette.concurrency import run_in_threadpool

from api.dependencies import QueryDep
from api.openapi import CLIP_REFUSED, WHERE_EXAMPLES
from service.filters import where_from_json
from service.views import CaptionsResponse, ClipResponse

__all__ = ["router"]

router = APIRouter(tags=["search"])

# As many searches by a text take about as long.
_CLIP = 16
_DESCRIPTION = 8


@router.post("/search/clip", operation_id="search_by_clip", responses=CLIP_REFUSED)
async def search_by_clip(
    service: QueryDep,
    clip: Annotated[UploadFile, File(description="A video, or a picture (jpeg, png, webp, bmp).")],
    k: Annotated[int, Query(description="How many results.")] = 10,
    task: Annotated[
        list[str] | None,
        Query(description="Name or id of a domain to search; may be repeated. All by default."),
    ] = None,
    captions: Annotated[
        int | None, Query(description="How many texts of the library that describe the clip to add.")
    ] = None,
    min_duration: Annotated[float | None, Query(description="Seconds.")] = None,
    max_duration: Annotated[float | None, Query(description="Seconds.")] = None,
    arrived_after: Annotated[
        datetime | None, Query(description="Posted then or later; UTC without a zone.")
    ] = None,
    arrived_before: Annotated[datetime | None, Query(description="Posted earlier.")] = None,
    where: Annotated[
        str | None,
        Query(
            description="Metadata that a video must have, as a JSON object.", openapi_examples=WHERE_EXAMPLES
        ),
    ] = None,
    min_score: Annotated[float | None, Query(description="Results below this score are left out.")] = None,
) -> ClipResponse:
    """The videos most like a clip or a picture that is sent. Nothing of it is kept.

    It is embedded by the video encoder of every searched domain, so naming domains with `task` makes it faster.
    """
    conditions = where_from_json(where) if where is not None else None
    with service.admission(_CLIP):
        return await run_in_threadpool(
            service.search_clip,
            clip.file,
            k,
            task,
            captions,
            min_duration=min_duration,
            max_duration=max_duration,
            arrived_after=arrived_after,
            arrived_before=arrived_before,
            where=conditions,
            min_score=min_score,
        )


@router.get("/videos/{video_id}/captions", operation_id="describe_video", responses=CLIP_REFUSED)
async def describe_video(
    service: QueryDep,
    video_id: str,
    k: Annotated[int, Query(description="How many texts.")] = 10,
    scope: Annotated[
        str,
        Query(description="'task': captions of its own domain; 'all': of all domains.", examples=["task"]),
    ] = "task",
) -> CaptionsResponse:
    """The texts of the library that fit a video best, with the video that each was written for."""
    with service.admission(_DESCRIPTION):
        return await run_in_threadpool(service.describe, video_id, k, scope)
