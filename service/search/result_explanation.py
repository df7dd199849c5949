"""Explain a search result: what its score consists of."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from cinestrata_schemas.explanations import QueryWord, ResultExplanation
from cinestrata_schemas.search import MatchedText, MomentMatch, TaskRouting
from index.hits import Hit
from models.routing.router import distinct_tokens
from service.core.errors import InvalidInput
from service.search.catalog_mirror import read_cues, read_rows
from service.search.search_request import SearchRequest
from service.search.similar_search import load_stored_vector
from service.search.snapshots.search_snapshot import SearchSnapshot, ShardScan
from service.search.text_search.executor import advance_searches, start_searches
from service.search.text_search.result_confidence import compute_confidence
from service.search.text_search.search_responses import find_best_moments
from service.search.text_search.search_state import SearchState
from service.search.video_metadata_cache import VideoMetadataCache

Vector = npt.NDArray[np.float32]

_MAX_WORDS = 64
_LISTED_TASKS = 8


def explain_result(
    snapshot: SearchSnapshot,
    cache: VideoMetadataCache,
    video_id: str,
    request: SearchRequest,
) -> ResultExplanation:
    """Break down the score that a search gives a video, whether or not it is among the results.

    Args:
        cache: Source of metadata for filters and moments.
        request: The search; the video has a rank among its first k results.

    Raises:
        NotFound: There is no such video.
        TaskNotLoaded: The snapshot does not contain the video's task.
        Conflict: The video has no vector.
        InvalidInput: A parameter is invalid, or the search excludes the video's domain.
        Unavailable: A task's shard cannot be searched.
    """
    vector_id, task, _ = load_stored_vector(snapshot, video_id)
    (state,) = start_searches(snapshot, [request], cache)
    if task not in state.planner.lifts:
        raise InvalidInput.at(
            "task",
            f"The search does not include {snapshot.task_names[task]!r}, the video's domain.",
            "Add this domain, or leave the parameter out.",
        )
    while state.wave:
        advance_searches(snapshot, [state])
    hits = state.planner.hits()
    confidence = compute_confidence(state, hits)
    ranked = [hit.id for hit in hits[: request.query.k]]
    lift = float(state.planner.lifts[task])
    words = float(state.words.nats(np.array([vector_id], np.int64))[0])
    visual = snapshot.visual_score
    (query,) = snapshot.query_vectors([(state.words.query.text, str(state.mode), task)])
    video_cosine = _video_cosine(snapshot, task, query, vector_id)
    moments = _moments(state, task, query, vector_id, lift, cache)
    cosine = max([video_cosine, *(visual.cosines(moment.score - lift - words) for moment in moments)])
    is_ranked = vector_id in ranked
    weights = state.routing.weights
    return ResultExplanation(
        query=request.query.q,
        video_id=video_id,
        task=snapshot.task_names[task],
        task_id=task,
        release=snapshot.release_id,
        generation=snapshot.generation,
        mode=state.mode,
        rank=1 + ranked.index(vector_id) if is_ranked else None,
        depth=request.query.k,
        score=visual.nats(cosine) + lift + words,
        cosine=cosine,
        video_cosine=video_cosine,
        visual_term=visual.nats(cosine),
        visual_weight=visual.weight,
        neutral_cosine=visual.neutral,
        is_fitted=snapshot.has_fitted_visual_score,
        routing_term=lift,
        weight=math.exp(weights[task]),
        words_term=words,
        texts=_texts(state, vector_id),
        routing=_routing(snapshot, state, task),
        confidence=confidence.results.get(vector_id) if is_ranked else None,
        matches=None if confidence.reached is None or not is_ranked else vector_id in confidence.reached,
        moments=moments,
        words=_words(snapshot, state.words.query.text, task, list(weights)),
    )


def _texts(state: SearchState, vector_id: int) -> list[MatchedText]:
    passages = read_cues(state.words.passages([vector_id]))
    return [
        text
        for row in read_rows([vector_id]).values()
        for text in state.words.matched_texts(vector_id, row, *passages.values())
    ]


def _video_cosine(snapshot: SearchSnapshot, task: str, query: Vector, vector_id: int) -> float:
    """Score the whole video with the same scan that searches use."""
    (found,) = snapshot.scan([ShardScan(task, query, 1, np.array([vector_id], np.int64), group=None)])
    if not len(found.scores):  # the shard broke since the vector was read
        raise snapshot.unavailable_error(task)
    return float(found.scores[0])


def _moments(
    state: SearchState, task: str, query: Vector, vector_id: int, lift: float, cache: VideoMetadataCache
) -> list[MomentMatch]:
    if not state.snapshot.shards[task].has_moments:
        return []
    hits, count = [Hit(task, vector_id, 0.0)], max(1, state.request.query.moments)
    found = find_best_moments(state.snapshot, hits, {task: query}, {task: lift}, count, cache, state.words)
    return found.get(vector_id, [])


def _routing(snapshot: SearchSnapshot, state: SearchState, task: str) -> list[TaskRouting]:
    """List the likeliest tasks and the video's own."""
    return [
        TaskRouting(
            task=snapshot.task_names[other],
            task_id=other,
            weight=math.exp(log_weight),
            searched=other in state.planner.searched,
        )
        for place, (other, log_weight) in enumerate(state.routing.weights.items())
        if place < _LISTED_TASKS or other == task
    ]


def _words(snapshot: SearchSnapshot, text: str, task: str, tasks: Sequence[str]) -> list[QueryWord]:
    """List a query's words with their evidence for a task, from its routing profile."""
    positions = np.array([snapshot.router_positions[other] for other in tasks], np.int64)
    own = tasks.index(task)
    words = text.split()[:_MAX_WORDS]
    found = []
    for word, tokens in zip(words, snapshot.query_vectors.encoder.tokenize(words), strict=True):
        distinct = distinct_tokens(tokens)
        evidence = snapshot.router.word_evidence(distinct, positions)
        known = snapshot.router.coverage(distinct, positions) >= 1  # without tokens, the coverage is 0
        found.append(
            QueryWord(
                text=word,
                known=bool(known[own]),
                domains=int(known.sum()),
                evidence=float(evidence[own]) - float(evidence.mean()),
            )
        )
    return found
