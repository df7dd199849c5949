"""Requests and responses of searches by text, video or clip, and explanations of their results."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, get_args

from pydantic import Field

from cinestrata_schemas.choice_types import EffectiveSplit, Gallery, QueryMode, TextKind
from cinestrata_schemas.library import RecallFigures
from cinestrata_schemas.model_types import Open, RequestList, RequestModel, ResponseModel, ShownUri, optional
from cinestrata_schemas.videos import VideoMoment

MAX_BATCH_QUERIES = 256


# Limits are stated in the OpenAPI document only: the search engine checks the values, with its own hints.
AT_LEAST_ONE: dict[str, Any] = {"minimum": 1}
_NOT_NEGATIVE: dict[str, Any] = {"minimum": 0}


class SearchFilters(RequestModel):
    """Filters of searches by text and by clip."""

    k: int = Field(default=10, description="Maximum number of results.", json_schema_extra=AT_LEAST_ONE)
    min_duration: float | None = Field(
        default=None, description="Minimum duration in seconds.", json_schema_extra=_NOT_NEGATIVE
    )
    max_duration: float | None = Field(
        default=None, description="Maximum duration in seconds.", json_schema_extra=_NOT_NEGATIVE
    )
    arrived_after: datetime | None = optional("Added since this time; UTC unless it has a zone.")
    arrived_before: datetime | None = optional("Added before this time; UTC unless it has a zone.")
    min_score: float | None = optional("Minimum score of a result.")


class TextQuery(SearchFilters):
    """A text, and how to search for it. Types only are validated."""

    q: str = Field(
        description="Description of the video, in words.",
        examples=["eggs are whisked"],
        json_schema_extra={"minLength": 1},
    )
    mode: str | None = Field(
        default=None,
        description="'pinned' or 'latest'; default: 'pinned' if offered.",
        json_schema_extra={"enum": [*get_args(QueryMode), None]},
    )
    routes: int | str | None = optional(
        "Domains to search: 'all', 'auto' (likely domains that can still contribute to the top k), or a number of the "
        "likeliest domains."
    )
    moments: int = Field(default=3, description="Maximum number of moments per long video, best first.")


class SearchQuery(TextQuery):
    """A text query with the parameters of ``GET /search``."""

    task: str | RequestList[str] | None = optional("Names or IDs of the domains to search; all by default.")
    where: dict[str, Any] | None = optional(
        "Metadata conditions by field, all of which must match: a value, {min, max}, {any: [values]} or {all: "
        "[strings]}. A list of strings matches each of its strings."
    )
    min_confidence: float | None = Field(
        default=None,
        description="Minimum confidence of a result, 0..1.",
        json_schema_extra={"minimum": 0, "maximum": 1},
    )
    facets: bool = Field(default=False, description="Whether to count domains and metadata values.")
    cursor: str | None = optional("`next_cursor` of the previous page; only k and moments may change.")


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
    start: float | None = optional("Start of a matching timed text in seconds; null for other kinds.")
    end: float | None = optional("End of a matching timed text in seconds; null for other kinds.")
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
        "Whether the video is right for the query: its texts contain the words, or its visual score is high and close "
        "to the first result's. Null if the release can't tell."
    )
    words: list[MatchedText] = Field(
        default_factory=list,
        description="Matching texts of the video, best first; empty if only its visual score is high.",
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
        "results with a high visual score. Depends on filters, but not on thresholds and pages. Null if `matches` is."
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
        default_factory=dict, description="Domains not searched, with reasons; `words` while texts are not."
    )
    metadata_as_of: datetime | None = optional(
        "Time of the catalog copy used for captions and filters while the catalog database is unreachable or slow: "
        "later edits and videos are left out. Null otherwise."
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
    not_compared: dict[str, str] = Field(description="Reasons by name, for domains with another encoder.")
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


class QueryOutcome(ResponseModel):
    """A caption used as a query, and the rank of its video."""

    caption: str
    video_id: str = Field(description="The caption's video.")
    thumbnail_url: str
    rank: int | None = Field(description="Rank of the video; null if it is not in the first `depth`.")
    domain_weight: float = Field(description="Routing weight of the video's domain, 0..1.")
    results: list[SearchResult] = Field(description="The first three results.")


class FirstResultShare(ResponseModel):
    """Share of queries whose first result is from one domain. ``task`` is its name."""

    task: str
    task_id: str
    queries: int
    share: float = Field(description="Share of all searched captions, 0..1.")


class QueryReport(ResponseModel):
    """Results of searching the whole library with a domain's captions. ``task`` is the domain's name.

    The captions are a fixed sample from one split: the held-out videos if there are any, otherwise the validation
    videos, the fold, or the appended or training videos. A solution without the fold scores the fold's videos.
    """

    task: str
    task_id: str
    release: str | None
    generation: int
    mode: Open[QueryMode] | None
    split: Open[EffectiveSplit] | None = Field(description="Split of the videos; null without captions.")
    held_out: bool = Field(description="Whether they were neither learned nor used for routing.")
    queries: int = Field(description="Number of searched captions.")
    captions: int = Field(description="Number of captioned videos in the split.")
    depth: int = Field(description="Number of ranked results per query.")
    recall_at_1: float | None = Field(description="Share of queries with rank 1, 0..1.")
    recall_at_10: float | None = Field(description="Share of queries with rank 1 to 10, 0..1.")
    measured: dict[Open[Gallery], RecallFigures] = Field(
        description="Recall of the newest measured release by gallery, as in the recall matrix."
    )
    first_results: list[FirstResultShare] = Field(description="Their domains, largest share first.")
    worst: list[QueryOutcome] = Field(description="Queries that rank another video first, worst first.")


class QueryWord(ResponseModel):
    """A word of a query and its routing evidence for a domain."""

    text: str
    known: bool = Field(description="Whether the domain's captions contain all tokens of the word.")
    in_texts: bool = Field(
        description="Whether a text of the video contains it, such as its name, or what is heard or read in it."
    )
    domains: int = Field(description="Number of searched domains whose captions contain it.")
    evidence: float = Field(description="Evidence for the domain in log-odds, above the mean.")


class ResultExplanation(ResponseModel):
    """Parts of a video's score for a query: ``score = visual_term + routing_term + words_term``, in log-odds.

    ``visual_term`` is ``visual_weight × (cosine − neutral_cosine)``.
    ``task`` is the name of the video's domain.
    """

    query: str
    video_id: str
    task: str
    task_id: str
    release: str
    generation: int
    mode: Open[QueryMode]
    rank: int | None = Field(description="Rank of the video; null if it is not among the first `k` results.")
    depth: int = Field(description="Number of ranked results.")
    score: float
    cosine: float = Field(description="Cosine between the query vector and the video's best vector.")
    video_cosine: float | None = Field(
        description="Cosine between the query vector and the whole video's vector; lower than `cosine` if a moment is "
        "nearer."
    )
    visual_term: float = Field(description="Evidence of the similarity.")
    visual_weight: float = Field(description="Log-odds per cosine.")
    neutral_cosine: float = Field(description="Cosine that says nothing.")
    is_fitted: bool = Field(
        description="Whether these two are fitted to the release; false with few captions and with trained methods."
    )
    routing_term: float = Field(description="Bounded evidence of the domain below the likeliest; at most 0.")
    weight: float = Field(description="Routing weight of the domain among the searched domains, 0..1.")
    words_term: float = Field(description="Evidence of the words in its texts; without any, in its domain.")
    texts: list[MatchedText] = Field(description="Matching texts of the video, best first.")
    routing: list[TaskRouting] = Field(description="The likeliest domains, largest weight first.")
    confidence: float | None = Field(
        description="Probability that the video is right for the query; null outside the first `k` results, or if "
        "neither the release nor a text of the video can tell."
    )
    matches: bool | None = Field(description="Whether it is above the cut-off; null if `confidence` is.")
    moments: list[MomentMatch] = Field(description="Best first.")
    words: list[QueryWord] = Field(description="Words of the query, in order.")
