"""Requests and responses of text search."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import Field

from service.core import request_limits
from service.core.choice_types import QueryMode
from service.core.schemas.model_types import RequestList, RequestModel, ResponseModel, ShownUri
from service.core.schemas.videos import VideoMoment

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
    """A text query, with the parameters of ``GET /search``.

    The model validates types only; the search engine validates the values.
    """

    q: str = Field(description="Description of the scene in words.")
    k: int = Field(default=10, description="Maximum number of results.")
    task: str | RequestList[str] | None = Field(
        default=None, description="Names or IDs of the tasks to search; all by default."
    )
    mode: str | None = Field(default=None, description="Query encoders: 'pinned' or 'latest'.")
    min_duration: float | None = Field(default=None, description="Minimum duration of a video in seconds.")
    max_duration: float | None = Field(default=None, description="Maximum duration of a video in seconds.")
    arrived_after: datetime | None = Field(
        default=None, description="Earliest creation time of the video's task; UTC without a zone."
    )
    arrived_before: datetime | None = Field(
        default=None, description="Time before which the video's task was created; UTC without a zone."
    )
    where: dict[str, Any] | None = Field(
        default=None,
        description=(
            "Conditions on metadata by field, all of which must match: a value, {min, max}, {any: [values]} or "
            "{all: [texts]}. A list of texts matches each of its texts."
        ),
    )
    min_score: float | None = Field(default=None, description="Minimum score of a result.")
    min_confidence: float | None = Field(default=None, description="Minimum confidence of a result, 0..1.")
    routes: int | str | None = Field(
        default=None,
        description=(
            "Tasks that are searched: 'all', 'auto' (likely tasks that can still contribute results), or a number of "
            "the likeliest tasks."
        ),
    )
    moments: int = Field(default=3, description="Maximum number of moments of each long video.")
    cursor: str | None = Field(
        default=None,
        description="`next_cursor` of the previous page; parameters other than k and moments must not change.",
    )


class SearchBatch(RequestModel):
    """Several queries, answered together by one release."""

    queries: RequestList[SearchQuery] = Field(max_length=request_limits.MAX_BATCH_QUERIES)


class MomentMatch(VideoMoment):
    """A moment and its score."""

    score: float


class SearchResult(ResponseModel):
    """A video that matches the query. ``task`` is the name of its task."""

    rank: int
    video_id: str
    uri: ShownUri
    task: str
    task_id: str
    score: float = Field(description="Best score of the whole video and its moments.")
    confidence: float | None = Field(
        default=None,
        description="Probability that this is the described video, 0..1; null where the release is not calibrated.",
    )
    matches: bool | None = Field(
        default=None,
        description="Whether the result belongs to the answer: the library has a match, and the score is near the "
        "first score of the list; null where the release does not tell.",
    )
    captions: list[str]
    thumbnail_url: str
    stream_url: str = Field(
        description="URL of the video; plays the best moment, where there is one (`#t=start,end`)."
    )
    moments: list[MomentMatch] = Field(
        default_factory=list, description="Best moments of a long video, by falling score."
    )


class TaskRouting(ResponseModel):
    """A task and its routing weight for the query. ``task`` is the name of the task."""

    task: str
    task_id: str
    weight: float
    searched: bool = Field(description="Whether the query was encoded for the task and its shard searched.")


class SearchTiming(ResponseModel):
    """Duration of each stage of a search in milliseconds."""

    encode: float
    route: float
    search: float
    merge: float
    total: float


class SearchResponse(ResponseModel):
    """Results of a query."""

    query: str
    release: str | None
    generation: int
    mode: QueryMode
    results: list[SearchResult]
    confidence: float | None = Field(
        default=None,
        description="Probability that the searched videos contain a described one, 0..1; null where the release is "
        "not calibrated. Depends on filters, but not on thresholds and pages. Releases without `matches` have the "
        "sum of the confidences of the first ten results, at most 1.",
    )
    matches: bool | None = Field(
        default=None,
        description="Whether the searched videos contain a match: false where the confidence is below 0.5 and below "
        "that of 95 % of the calibration captions with a video; null where the release does not tell.",
    )
    routing: list[TaskRouting] = Field(
        description="The searched tasks and the 10 likeliest tasks, by falling weight."
    )
    timing_ms: SearchTiming
    degraded: dict[str, str] = Field(
        default_factory=dict, description="Task name → reason, for tasks that could not be searched."
    )
    metadata_as_of: datetime | None = Field(
        default=None,
        description="Time of the copy of the catalog that captions and filters are taken from while the catalog "
        "database cannot be reached: videos that were added since are left out. Null while it can be reached.",
    )
    next_cursor: str | None = Field(
        default=None,
        description="`cursor` of the next page; null on the last page.",
    )


class SearchBatchResponse(ResponseModel):
    """Results of a batch, in the order of its queries."""

    answers: list[SearchResponse]
