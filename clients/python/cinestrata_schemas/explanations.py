"""Responses that explain search results: queries of a domain with their ranks, score of a single result, losses."""

from __future__ import annotations

from pydantic import Field

from cinestrata_schemas.choice_types import EffectiveSplit, Gallery, QueryMode
from cinestrata_schemas.library import RecallFigures
from cinestrata_schemas.model_types import Open, ResponseModel
from cinestrata_schemas.search import MatchedText, MomentMatch, SearchResult, TaskRouting


class QueryOutcome(ResponseModel):
    """A caption that was searched, and the rank of its video."""

    caption: str
    video_id: str = Field(description="Video of the caption.")
    thumbnail_url: str
    rank: int | None = Field(
        description="Rank of the video; null if it is not among the first `depth` results."
    )
    domain_weight: float = Field(description="Routing weight of the video's domain, 0..1.")
    results: list[SearchResult] = Field(description="The first three results.")


class FirstResultShare(ResponseModel):
    """Share of the queries whose first result is a video of one domain. ``task`` is the name of its task."""

    task: str
    task_id: str
    queries: int
    share: float = Field(description="Share of all searched captions, 0..1.")


class QueryReport(ResponseModel):
    """Captions of a domain, searched like queries among all videos of the library. ``task`` is its name.

    The captions are a fixed sample of one split: of the held-out videos where there are any, otherwise of the
    validation, appended or training videos.
    """

    task: str
    task_id: str
    release: str | None
    generation: int
    mode: Open[QueryMode] | None
    split: Open[EffectiveSplit] | None = Field(description="Split of the videos; null without captions.")
    held_out: bool = Field(
        description="Whether the videos were held out: neither learned nor used for routing."
    )
    queries: int = Field(description="Number of searched captions.")
    captions: int = Field(description="Number of videos of the split that have captions.")
    depth: int = Field(description="Number of results in which a video has a rank.")
    recall_at_1: float | None = Field(description="Share of the queries with rank 1, 0..1.")
    recall_at_10: float | None = Field(description="Share of the queries with rank 1 to 10, 0..1.")
    measured: dict[Open[Gallery], RecallFigures] = Field(
        description="Stored recall of the newest release that was measured, by gallery, as in the recall matrix."
    )
    first_results: list[FirstResultShare] = Field(
        description="Domains of the first results, by falling share."
    )
    worst: list[QueryOutcome] = Field(
        description="Queries that do not rank their video first, worst rank first."
    )


class QueryWord(ResponseModel):
    """A word of a query and its routing evidence for a domain."""

    text: str
    known: bool = Field(description="Whether the captions of the domain contain all tokens of the word.")
    domains: int = Field(
        description="Number of searched domains whose captions contain all tokens of the word."
    )
    evidence: float = Field(
        description="Evidence for the domain in nats, relative to the mean over the searched domains."
    )


class ResultExplanation(ResponseModel):
    """Parts of the score of a video for a query: ``score = cosine + routing_term + words_term``.

    ``routing_term`` is ``routing_prior × log(weight)``, ``words_term`` is ``routing_prior × words_evidence``.

    ``task`` is the name of the video's task.
    """

    query: str
    video_id: str
    task: str
    task_id: str
    release: str
    generation: int
    mode: Open[QueryMode]
    rank: int | None = Field(description="Rank of the video; null if it is not among the first `k` results.")
    depth: int = Field(description="Number of results in which the video has a rank.")
    score: float
    cosine: float = Field(description="Cosine of the query vector and the best vector of the video.")
    video_cosine: float | None = Field(
        description="Cosine of the query vector and the vector of the whole video; lower than `cosine` where a moment "
        "is nearer."
    )
    routing_prior: float = Field(description="Cosine per nat of routing evidence.")
    routing_term: float = Field(description="Routing prior times the log weight of the domain; at most 0.")
    weight: float = Field(description="Routing weight of the domain among the searched domains, 0..1.")
    words_evidence: float = Field(
        description="Evidence of the words in the texts of the video, in nats; 0 without texts."
    )
    words_term: float = Field(description="Routing prior times the evidence of the words.")
    texts: list[MatchedText] = Field(
        description="Texts of the video that contain words of the query, best first."
    )
    routing: list[TaskRouting] = Field(description="The likeliest domains, by falling weight.")
    confidence: float | None = Field(
        description="Probability that the video is right for the text; null outside the first `k` results, and where "
        "neither the release nor a text of the video tells."
    )
    matches: bool | None = Field(
        description="Whether the result belongs to the answer; null as `confidence`."
    )
    moments: list[MomentMatch] = Field(description="Best moments of a long video, by falling score.")
    words: list[QueryWord] = Field(description="Words of the query, in order.")
