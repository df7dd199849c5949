"""Responses of searches that start from a video: similar videos, captions, clips."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from service.core.choice_types import QueryMode
from service.core.schemas.model_types import ResponseModel
from service.core.schemas.search import SearchResult

__all__ = ["CaptionMatch", "CaptionsResponse", "ClipSearchResponse", "ClipTiming", "SimilarVideosResponse"]


class SimilarVideosResponse(ResponseModel):
    """Videos similar to a library video. ``task`` is the name of its task; scores are cosines of stored vectors."""

    video_id: str
    task: str
    task_id: str
    release: str
    generation: int
    results: list[SearchResult]
    searched: list[str] = Field(description="Names of the searched tasks.")
    not_compared: dict[str, str] = Field(
        description="Task name → reason, for tasks whose videos were embedded by another encoder."
    )
    degraded: dict[str, str] = Field(description="Task name → reason, for tasks that could not be searched.")


class CaptionMatch(ResponseModel):
    """A caption of the library. ``task`` is the name of its task, ``video_id`` the first video that has it."""

    text: str
    score: float = Field(description="Cosine of the caption vector and the video vector.")
    own: bool = Field(description="Whether it is a caption of the video itself.")
    video_id: str
    task: str
    task_id: str


class CaptionsResponse(ResponseModel):
    """Captions of the library nearest to a video. ``task`` is the name of the video's task."""

    video_id: str
    task: str
    task_id: str
    release: str
    generation: int
    mode: QueryMode
    captions: list[CaptionMatch]
    candidates: int = Field(description="Number of compared captions.")
    degraded: dict[str, str] = Field(description="Task name → reason, for tasks that could not be searched.")


class ClipTiming(ResponseModel):
    """Duration of each stage of a clip search in milliseconds."""

    decode: float
    encode: float
    search: float
    total: float


class ClipSearchResponse(ResponseModel):
    """Videos similar to an uploaded clip or picture.

    Scores are rescaled cosines: 0 is the mean cosine between two videos of the result's task, 1 is the same video.
    """

    kind: Literal["video", "picture"]
    width: int
    height: int
    duration: float | None = Field(description="Duration in seconds; null for a picture.")
    release: str
    generation: int
    results: list[SearchResult]
    searched: list[str] = Field(description="Names of the searched tasks.")
    captions: list[CaptionMatch] | None = Field(
        default=None,
        description="Captions of the best result's task that are nearest to the clip; null where not requested.",
    )
    timing_ms: ClipTiming
    degraded: dict[str, str] = Field(description="Task name → reason, for tasks that could not be searched.")
