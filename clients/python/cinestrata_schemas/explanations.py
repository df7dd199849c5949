"""Responses that explain search results: ranks of a domain's queries, and the score of a single result."""

from __future__ import annotations

from pydantic import Field

from cinestrata_schemas.choice_types import EffectiveSplit, Gallery, QueryMode
from cinestrata_schemas.library import RecallFigures
from cinestrata_schemas.model_types import Open, ResponseModel
from cinestrata_schemas.search import MatchedText, MomentMatch, SearchResult, TaskRouting


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
    domains: int = Field(description="Number of searched domains whose captions contain it.")
    evidence: float = Field(description="Evidence for the domain in nats, above the mean.")


class ResultExplanation(ResponseModel):
    """Parts of a video's score for a query: ``score = visual_term + routing_term + words_term``, in nats.

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
    visual_weight: float = Field(description="Nats per cosine.")
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
