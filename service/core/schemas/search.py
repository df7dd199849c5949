"""Requests and responses of text search."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import Field

from service.core.schemas.model_types import RequestModel, ResponseModel
from service.core.schemas.videos import VideoMoment
from service.core.settings import QueryMode

__all__ = [
    "MomentMatch",
    "SearchBatch",
    "SearchBatchResponse",
    "SearchQuery",
    "SearchResponse",
    "SearchResult",
    "SearchTiming",
    "TaskRouting",
]


class SearchQuery(RequestModel):
    """What to look for: the same as the parameters of ``GET /search``.

    Only its shape is checked here. Its values are checked by the service, whatever way they came in.
    """

    q: str = Field(description="What is seen, in words.")
    k: int = Field(default=10, description="How many results.")
    task: str | list[str] | None = Field(
        default=None, description="Names or ids of the domains to search; all by default."
    )
    mode: str | None = Field(default=None, description="'pinned', 'mapped' or 'latest' query encoders.")
    min_duration: float | None = Field(default=None, description="Seconds.")
    max_duration: float | None = Field(default=None, description="Seconds.")
    arrived_after: datetime | None = Field(
        default=None, description="Posted then or later; UTC without a zone."
    )
    arrived_before: datetime | None = Field(default=None, description="Posted earlier.")
    where: dict[str, Any] | None = Field(
        default=None,
        description=(
            "Metadata that a video must have: by field a value, {min, max}, {any: [values]} or {all: [texts]}. "
            "A list of texts has each of them."
        ),
    )
    min_score: float | None = Field(default=None, description="Results below this score are left out.")
    min_confidence: float | None = Field(
        default=None, description="Results that are less likely than this to be right are left out; 0..1."
    )
    routes: int | str | None = Field(
        default=None,
        description=(
            "Which domains count: 'all', 'auto' (those that the words make likely and that can still matter), or how "
            "many of the likeliest."
        ),
    )
    moments: int = Field(default=3, description="How many moments of each long video, the best first.")
    cursor: str | None = Field(
        default=None,
        description="`next_cursor` of the page before; everything but k and moments stays as it was.",
    )


class SearchBatch(RequestModel):
    """Several searches, answered together and from one release."""

    queries: list[SearchQuery]


class MomentMatch(VideoMoment):
    """A moment, and how well it fits."""

    score: float


class SearchResult(ResponseModel):
    """One hit: a video. ``task`` is the task's name."""

    rank: int
    video_id: str
    task: str
    task_id: str
    score: float = Field(description="The best of the whole video's and its moments'.")
    confidence: float | None = Field(
        default=None,
        description="Probability that this is the video asked for, 0..1; null where the release is not calibrated.",
    )
    captions: list[str]
    thumbnail_url: str
    stream_url: str = Field(
        description="Where moments were found, it plays the best of them (`#t=start,end`)."
    )
    moments: list[MomentMatch] = Field(
        default_factory=list, description="Of a long video, where in it: the best first."
    )


class TaskRouting(ResponseModel):
    """A task, and how much the query sounds like it. ``task`` is the task's name."""

    task: str
    task_id: str
    weight: float
    searched: bool = Field(
        description="Whether the query was encoded for it and its shard searched; where not, it was too unlikely."
    )


class SearchTiming(ResponseModel):
    """Milliseconds."""

    encode: float
    route: float
    search: float
    merge: float
    total: float


class SearchResponse(ResponseModel):
    """The answer to a query."""

    query: str
    release: str | None
    generation: int
    mode: QueryMode
    results: list[SearchResult]
    confidence: float | None = Field(
        default=None,
        description="Probability that what is asked for is among the first ten of the list, 0..1; null where the "
        "release is not calibrated. Filters count, thresholds and pages do not.",
    )
    routing: list[TaskRouting] = Field(
        description="The tasks that were searched, and others up to 20, the likeliest first."
    )
    timing_ms: SearchTiming
    degraded: dict[str, str] = Field(
        default_factory=dict, description="Tasks (by name) that could not be searched, and why."
    )
    next_cursor: str | None = Field(
        default=None,
        description="Send it as `cursor` for the results after these; null where there are none.",
    )


class SearchBatchResponse(ResponseModel):
    """The answers to a batch, in the order of its queries."""

    answers: list[SearchResponse]
