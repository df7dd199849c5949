"""Requests and responses of searches by text, video or clip."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from cinestrata_schemas.choice_types import QueryMode, TextKind
from cinestrata_schemas.model_types import Open, RequestList, RequestModel, ResponseModel, ShownUri, optional
from cinestrata_schemas.videos import VideoMoment

MAX_BATCH_QUERIES = 256


class SearchQuery(RequestModel):
    """A text query with the parameters of ``GET /search``.

    The model validates types only; the search engine validates the values.
    """

    q: str = Field(description="Description of the scene.")
    k: int = Field(default=10, description="Maximum number of results.")
    task: str | RequestList[str] | None = optional("Names or IDs of the domains to search; all by default.")
    mode: str | None = optional("Query encoders: 'pinned' or 'latest'.")
    min_duration: float | None = optional("Minimum duration of a video in seconds.")
    max_duration: float | None = optional("Maximum duration of a video in seconds.")
    arrived_after: datetime | None = optional("Added at this time or later; UTC unless it has a time zone.")
    arrived_before: datetime | None = optional("Added before this time; UTC unless it has a time zone.")
    where: dict[str, Any] | None = optional(
        "Metadata conditions by field, all of which must match: a value, {min, max}, {any: [values]} or {all: "
        "[strings]}. A list of strings matches each of its strings."
    )
    min_score: float | None = optional("Minimum score of a result.")
    min_confidence: float | None = optional("Lowest confidence, 0..1.")
    routes: int | str | None = optional(
        "Domains to search: 'all', 'auto' (likely domains that can still contribute to the top k), or a number of the "
        "likeliest domains."
    )
    moments: int = Field(default=3, description="Maximum number per long video.")
    facets: bool = Field(default=False, description="Whether to count domains and metadata values.")
    cursor: str | None = optional(
        "`next_cursor` from the previous page; parameters other than k and moments must not change."
    )


class SearchBatch(RequestModel):
    """Several queries, run together on one release."""

    queries: RequestList[SearchQuery] = Field(max_length=MAX_BATCH_QUERIES)


class MomentMatch(VideoMoment):
    """A moment and its score."""

    score: float


class MatchedText(ResponseModel):
    """A text of a video that contains words of the query."""

    kind: Open[TextKind]
    field: str | None = optional("Metadata field of the text; null for other kinds.")
    start: float | None = optional("Start of a matching transcript in seconds; null for other kinds.")
    end: float | None = optional("End of a matching transcript in seconds; null for other kinds.")
    text: str = Field(description="The text; if it is long, the part around the first matched word.")
    marks: list[tuple[int, int]] = Field(description="Start and end of each matched word, in code points.")


class FacetValue(ResponseModel):
    """A value by which results can be filtered, and how many of them have it."""

    value: str | int | float | bool
    count: int


class Facet(ResponseModel):
    """A field by which results can be filtered: ``task``, or a metadata field as ``where.<name>``."""

    field: str
    values: list[FacetValue] = Field(description="Most frequent values first.")


class SearchResult(ResponseModel):
    """A search result. ``task`` is the name of the video's domain."""

    rank: int
    video_id: str
    uri: ShownUri
    task: str
    task_id: str
    score: float = Field(description="Best score among the whole video and its moments.")
    confidence: float | None = optional(
        "Probability that the video is right for the query, 0..1; several videos may be right. Null if the release is "
        "not calibrated and no text of the video contains the words."
    )
    matches: bool | None = optional(
        "Whether the video is right for the query: its texts contain the words, or it looks right and scores close to "
        "the first result. Null if the release can't tell."
    )
    words: list[MatchedText] = Field(
        default_factory=list,
        description="Matching texts of the video, best first; empty if the video only looks right.",
    )
    captions: list[str]
    thumbnail_url: str
    stream_url: str = Field(
        description="URL of the video file. A fragment `#t=start,end` selects the part whose transcript has the "
        "words, or the best moment, if there is one."
    )
    moments: list[MomentMatch] = Field(default_factory=list, description="Best first.")


class TaskRouting(ResponseModel):
    """A domain's routing weight for the query. ``task`` is the domain's name."""

    task: str
    task_id: str
    weight: float
    searched: bool = Field(description="Whether the query was encoded for the domain and its shard searched.")


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
    mode: Open[QueryMode]
    results: list[SearchResult]
    confidence: float | None = optional(
        "Probability that a searched video is right for the query, 0..1; null if neither the release nor any text can "
        "tell. Depends on filters, but not on thresholds and pages."
    )
    matches: bool | None = optional("Whether a searched video is right; null if the release can't tell.")
    matching: int | None = optional(
        "Number of searched videos that match: all whose texts contain the query, and those among the first ten "
        "results that look right. Depends on filters, but not on thresholds and pages. Null if `matches` is."
    )
    corrected: str | None = optional(
        "The text searched instead of the query, because one of its words is not in the library but differs by one "
        "letter from one that is; null without a correction."
    )
    facets: list[Facet] = Field(
        default_factory=list,
        description="Domains and metadata values of the matching videos, or of the first results if "
        "none matches; empty unless requested.",
    )
    routing: list[TaskRouting] = Field(description="The searched and the 10 likeliest, likeliest first.")
    timing_ms: SearchTiming
    degraded: dict[str, str] = Field(
        default_factory=dict, description="Reasons by name, for domains that could not be searched."
    )
    metadata_as_of: datetime | None = optional(
        "Time of the catalog copy used for captions and filters while the catalog database is unreachable: videos "
        "added since are left out. Null while it is reachable."
    )
    next_cursor: str | None = optional("`cursor` of the next page; null on the last page.")


class Suggestion(ResponseModel):
    """A word from the library's texts."""

    text: str
    count: int = Field(description="Number of captions, metadata values and names with it.")


class SuggestionsResponse(ResponseModel):
    """Words that complete the last word of a query, most frequent first."""

    suggestions: list[Suggestion]


class SearchBatchResponse(ResponseModel):
    """Results of a batch, in the order of its queries."""

    answers: list[SearchResponse]


class SimilarVideosResponse(ResponseModel):
    """Videos similar to a library video. ``task`` is the name of its domain; scores are cosines of stored vectors."""

    video_id: str
    task: str
    task_id: str
    release: str
    generation: int
    results: list[SearchResult]
    searched: list[str] = Field(description="Names of the searched domains.")
    not_compared: dict[str, str] = Field(
        description="Reasons by domain name, for domains whose videos were embedded by another encoder."
    )
    degraded: dict[str, str] = Field(description="Reasons by name, for domains that could not be searched.")


class CaptionMatch(ResponseModel):
    """A library caption. ``video_id`` is the first video that has it, and ``task`` the name of that video's domain."""

    text: str
    score: float = Field(description="Cosine between caption vector and video vector.")
    own: bool = Field(description="Whether it is the video's own caption.")
    video_id: str
    task: str
    task_id: str


class CaptionsResponse(ResponseModel):
    """Library captions nearest to a video. ``task`` is the name of the video's domain."""

    video_id: str
    task: str
    task_id: str
    release: str
    generation: int
    mode: Open[QueryMode]
    captions: list[CaptionMatch]
    candidates: int = Field(description="Number of compared captions.")
    degraded: dict[str, str] = Field(description="Reasons by name, for domains that could not be searched.")


class ClipTiming(ResponseModel):
    """Duration of each stage of a clip search in milliseconds."""

    decode: float
    encode: float
    search: float
    total: float


class ClipSearchResponse(ResponseModel):
    """Videos similar to an uploaded clip or picture.

    Scores are rescaled cosines: 0 is the mean cosine between two videos of the result's domain, 1 is the same video.
    """

    kind: Open[Literal["video", "picture"]]
    width: int
    height: int
    duration: float | None = Field(description="Duration in seconds; null for a picture.")
    release: str
    generation: int
    results: list[SearchResult]
    searched: list[str] = Field(description="Names of the searched domains.")
    captions: list[CaptionMatch] | None = optional(
        "Captions from the best result's task that are nearest to the clip; null unless requested."
    )
    timing_ms: ClipTiming
    degraded: dict[str, str] = Field(description="Reasons by name, for domains that could not be searched.")
