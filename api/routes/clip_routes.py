"""Search with a clip or an image, and captions that describe a video."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, File, Query, UploadFile

from api.dependencies import QueryDep
from api.openapi import CLIP_SEARCH_PROBLEMS
from api.request_threads import run_search
from api.search_parameters import CaptionsParameters, ClipParameters
from api.security.route_scopes import ScopedRoute, requires
from cinestrata_schemas.search import CaptionsResponse, ClipSearchResponse

router = APIRouter(tags=["search"], route_class=ScopedRoute)

# Cost of a request for admission control, in text searches of about the same duration.
_CLIP_COST = 16
_DESCRIPTION_COST = 8


@router.post("/search/clip", operation_id="search_by_clip", responses=CLIP_SEARCH_PROBLEMS)
@requires("search")
async def search_by_clip(
    service: QueryDep,
    clip: Annotated[UploadFile, File(description="A video, or an image (jpeg, png, webp, bmp).")],
    parameters: Annotated[ClipParameters, Query()],
) -> ClipSearchResponse:
    """Search with a video clip or an image. The upload is not stored.

    The video encoder of every searched domain embeds the clip, so restricting the search with `task` is faster.
    """
    arguments = parameters.service_arguments()
    with service.admission.admit(_CLIP_COST):
        return await run_search(service.search_clip, clip.file, **arguments)


@router.get("/videos/{video_id}/captions", operation_id="describe_video", responses=CLIP_SEARCH_PROBLEMS)
@requires("search")
async def describe_video(
    service: QueryDep, video_id: str, parameters: Annotated[CaptionsParameters, Query()]
) -> CaptionsResponse:
    """Captions of the library that describe a video best, each with the video that it belongs to."""
    with service.admission.admit(_DESCRIPTION_COST):
        return await run_search(service.caption_video, video_id, **dict(parameters))
