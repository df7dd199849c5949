"""Responses of searches that start from a video: similar videos, captions, clips."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from service.core.schemas.model_types import ResponseModel
from service.core.schemas.search import SearchResult
from service.core.settings import QueryMode

__all__ = ["CaptionMatch", "CaptionsResponse", "ClipSearchResponse", "ClipTiming", "SimilarVideosResponse"]


class SimilarVideosResponse(ResponseModel):
    """The videos most like one. ``task`` is the name of its task; scores are cosines of stored vectors."""

    video_id: str
    task: str
    task_id: str
    release: str
    generation: int
    results: list[SearchResult]
    searched: list[str] = Field(description="Names of the tasks whose videos it was compared with.")
    not_compared: dict[str, str] = Field(
        description="Tasks (by name) whose videos another encoder has embedded, so no cosine with them has a meaning."
    )
    degraded: dict[str, str] = Field(description="Tasks (by name) that could not be searched, and why.")


class CaptionMatch(ResponseModel):
    """A text of the library. ``task`` is the name of the task it comes from, ``video_id`` a video that it was given."""

    text: str
    score: float = Field(description="Cosine of the text's vector and the video's.")
    own: bool = Field(description="Whether it was given to the video that is described.")
    video_id: str
    task: str
    task_id: str


class CaptionsResponse(ResponseModel):
    """The texts that fit a video best. ``task`` is the name of its task."""

    video_id: str
    task: str
    task_id: str
    release: str
    generation: int
    mode: QueryMode
    captions: list[CaptionMatch]
    candidates: int = Field(description="How many texts were compared.")
    degraded: dict[str, str] = Field(description="Tasks (by name) that could not be searched, and why.")


class ClipTiming(ResponseModel):
    """Milliseconds."""

    decode: float
    encode: float
    search: float
    total: float


class ClipSearchResponse(ResponseModel):
    """The answer to a clip or a picture.

    Scores are cosines, stretched so that 0 is what two videos of the found one's domain have on average; 1 is the same
    video.
    """

    kind: Literal["video", "picture"]
    width: int
    height: int
    duration: float | None = Field(description="Seconds; null for a picture.")
    release: str
    generation: int
    results: list[SearchResult]
    searched: list[str] = Field(description="Names of the tasks that were searched.")
    captions: list[CaptionMatch] | None = Field(
        default=None,
        description="Texts of the best result's domain that fit the clip best; null where not asked for.",
    )
    timing_ms: ClipTiming
    degraded: dict[str, str] = Field(description="Tasks (by name) that could not be searched, and why.")
