"""Explain a search result: what its score consists of."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from cinestrata_schemas.search import MatchedText, MomentMatch, QueryWord, ResultExplanation
from index.arrays import Vectors
from index.hits import Hit
from models.routing.router import distinct_tokens
from service.core.errors import InvalidInput
from service.search.catalog_read_cache import read_cues, read_rows
from service.search.search_request import SearchRequest
from service.search.similar_search import load_stored_vector
from service.search.snapshots.search_snapshot import SearchSnapshot, ShardScan
from service.search.text_search.executor import TextSearch, execute
from service.search.text_search.result_confidence import compute_confidence
from service.search.text_search.search_responses import find_best_moments, list_routing
from service.search.video_metadata_cache import VideoMetadataCache

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
    (search,) = execute(snapshot, [request], cache)
    if task not in search.planner.prior_bonuses:
        raise InvalidInput.at(
            "task",
            f"The search does not include {snapshot.task_names[task]!r}, the video's domain.",
            "Add this domain, or leave the parameter out.",
        )
    hits = search.planner.hits()
    confidence = compute_confidence(search, hits)
    ranked = [hit.id for hit in hits[: request.query.k]]
    bonus = float(search.planner.prior_bonuses[task])
    words = float(search.words.log_odds(np.array([vector_id], np.int64))[0])
    visual = snapshot.visual_score
    (query,) = snapshot.query_vectors([(search.words.text, search.mode, task)])
    video_cosine = _video_cosine(snapshot, task, query, vector_id)
    moments: list[MomentMatch] = []
    if snapshot.shards[task].has_moments:
        search.query_vectors = {task: query}
        hit, count = Hit(task, vector_id, 0.0), max(1, request.query.moments)
        moments = find_best_moments(search, [hit], count).get(vector_id, [])
    cosine = max([video_cosine, *(visual.cosines(moment.score - bonus - words) for moment in moments)])
    is_ranked, matching_hits = vector_id in ranked, confidence.matching_hits
    weights = search.routing.weights
    return ResultExplanation(
        query=request.query.q,
        video_id=video_id,
        task=snapshot.task_names[task],
        task_id=task,
        release=snapshot.release_id,
        generation=snapshot.generation,
        mode=search.mode,
        rank=1 + ranked.index(vector_id) if is_ranked else None,
        depth=request.query.k,
        score=visual.nats(cosine) + bonus + words,
        cosine=cosine,
        video_cosine=video_cosine,
        visual_term=visual.nats(cosine),
        visual_weight=visual.weight,
        neutral_cosine=visual.neutral,
        is_fitted=snapshot.has_fitted_visual_score,
        routing_term=bonus,
        weight=math.exp(weights[task]),
        words_term=words,
        texts=_texts(search, vector_id),
        routing=list_routing(search, _LISTED_TASKS, [task]),
        confidence=confidence.results.get(vector_id) if is_ranked else None,
        matches=None if matching_hits is None or not is_ranked else vector_id in matching_hits,
        moments=moments,
        words=_words(snapshot, search.words.text, task, list(weights)),
    )


def _texts(search: TextSearch, vector_id: int) -> list[MatchedText]:
    passages = read_cues(search.words.passages([vector_id]))
    return [
        text
        for row in read_rows([vector_id]).values()
        for text in search.words.matched_texts(vector_id, row, *passages.values())
    ]


def _video_cosine(snapshot: SearchSnapshot, task: str, query: Vectors, vector_id: int) -> float:
    """Score the whole video with the same scan that searches use."""
    (hits,) = snapshot.scan([ShardScan(task, query, 1, np.array([vector_id], np.int64), group=None)])
    if not len(hits.scores):  # the shard broke since the vector was read
        raise snapshot.unavailable_error(task)
    return float(hits.scores[0])


def _words(snapshot: SearchSnapshot, text: str, task: str, tasks: Sequence[str]) -> list[QueryWord]:
    """List a query's words with their evidence for a task, from its routing profile."""
    positions = np.array([snapshot.router_positions[other] for other in tasks], np.int64)
    index = tasks.index(task)
    words = text.split()[:_MAX_WORDS]
    listed = []
    for word, tokens in zip(words, snapshot.query_vectors.encoder.tokenize(words), strict=True):
        distinct = distinct_tokens(tokens)
        evidence = snapshot.router.word_evidence(distinct, positions)
        known = snapshot.router.coverage(distinct, positions) >= 1  # without tokens, the coverage is 0
        listed.append(
            QueryWord(
                text=word,
                known=bool(known[index]),
                domains=int(known.sum()),
                evidence=float(evidence[index]) - float(evidence.mean()),
            )
        )
    return listed
