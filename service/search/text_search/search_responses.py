"""Build the responses of completed text searches: join hits with the catalog and add their best moments."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from cinestrata_schemas.search import (
    Facet,
    MatchedText,
    MomentMatch,
    SearchResponse,
    SearchResult,
    SearchTiming,
    TaskRouting,
)
from cinestrata_schemas.videos import VideoMoment
from index.hits import Hit
from index.vector_ids import video_ids_of
from service.catalog.transcripts import TimedText
from service.core.errors import Unavailable
from service.library.video_listing import stream_url, thumbnail_url
from service.search.catalog_mirror import ResultRows, VideoRow
from service.search.facets import count_facets
from service.search.search_request import Cursor
from service.search.snapshots.search_snapshot import SearchSnapshot, ShardScan
from service.search.text_search.result_confidence import compute_confidence
from service.search.text_search.search_state import UNKNOWN_CONFIDENCE, ListConfidence, SearchState
from service.search.text_search.written_words import SearchWords
from service.search.video_metadata_cache import VideoMetadataCache

_LISTED_TASKS = 10  # likeliest tasks in a response's routing, besides the searched ones

Vector = npt.NDArray[np.float32]


def finish_searches(
    snapshot: SearchSnapshot, states: Sequence[SearchState], cache: VideoMetadataCache
) -> list[SearchResponse]:
    """Build the responses of searches whose waves are all done, with at most one read of videos for all."""
    for state in states:
        hits = state.planner.hits()
        state.confidence = compute_confidence(state, hits)
        state.ranked = [hit for hit in hits if _passes_thresholds(hit, state)]
        state.offset = _find_page_start(state)
        state.end = min(state.offset + state.request.query.k, state.end)
        if state.query_vectors:
            _find_moments(state, cache)
    start = time.perf_counter()
    edits = {state.edit for state in states}
    rows = cache.mirror.read_results(
        [hit for state in states for hit in state.page], snapshot, edits.pop() if len(edits) == 1 else None
    )
    passages = cache.mirror.read_passages(
        [passage for state in states for passage in state.words.passages(hit.id for hit in state.page)]
    )
    pages = [
        build_results(
            state.page,
            rows.rows,
            snapshot,
            first_rank=1 + _results_before(state),
            confidence=state.confidence,
            moments=state.moments,
            words=state.words,
            passages=passages,
        )
        for state in states
    ]
    catalog_ms = 1000 * (time.perf_counter() - start) / max(1, len(states))
    for state in states:
        state.times["merge"] += catalog_ms
    return [_response(state, page, rows, cache) for state, page in zip(states, pages, strict=True)]


def _passes_thresholds(hit: Hit, state: SearchState) -> bool:
    query = state.request.query
    return (query.min_score is None or hit.score >= query.min_score) and (
        query.min_confidence is None or state.confidence.results.get(hit.id, 0.0) >= query.min_confidence
    )


def _find_page_start(state: SearchState) -> int:
    """Count the ranked hits that previous pages showed.

    The cursor counts the hits on previous pages. If some were deleted since, the list is ranked without them, and
    counting alone would skip as many unseen hits. So a page starts after the previous page's last hit. Videos appended
    meanwhile may push hits down the list. The page then repeats these hits, because the search was not deep enough for
    more.
    """
    cursor, count = state.request.cursor, state.offset
    if cursor is None:
        return count
    last, ids = cursor.last_hit, [hit.id for hit in state.ranked]
    if last.id in ids[:count]:
        return ids.index(last.id) + 1
    if last.task not in state.planner.lifts:
        return 0  # all videos of its domain are gone; repeating is better than omitting
    # The last hit was deleted or edited, or no longer passes the filter: its score tells its place.
    score = last.score + state.words.absent(last.task)
    end = state.planner.rank_key(state.planner.with_lift(replace(last, score=score)))
    return sum(state.planner.rank_key(hit) < end for hit in state.ranked[:count])


def _find_moments(state: SearchState, cache: VideoMetadataCache) -> None:
    start = time.perf_counter()
    hits = [hit for hit in state.page if hit.task in state.query_vectors]
    state.moments = find_best_moments(
        state.snapshot,
        hits,
        state.query_vectors,
        state.planner.lifts,
        state.request.query.moments,
        cache,
        state.words,
    )
    state.times["search"] += 1000 * (time.perf_counter() - start)


def _last_hit(state: SearchState) -> Hit:
    """Describe the page's last hit so that later pages can place it even if it is deleted.

    Its score leaves out its domain's lift and the evidence of missing words, which change for the whole domain when
    videos with the words are deleted.
    """
    last = state.planner.without_lift(state.page[-1])
    return replace(last, score=last.score - state.words.absent(last.task))


def _results_before(state: SearchState) -> int:
    cursor = state.request.cursor
    return cursor.result_offset if cursor else 0


def _facets(state: SearchState, cache: VideoMetadataCache) -> list[Facet]:
    """Count the facets of the matching videos, or of the ranked ones if none matches."""
    if not state.request.query.facets:
        return []
    matching = state.confidence.matching
    if matching is None or not len(matching):
        matching = np.array([hit.id for hit in state.ranked], np.int64)
    return count_facets(cache, state.snapshot, matching)


def _response(
    state: SearchState, results: list[SearchResult], rows: ResultRows, cache: VideoMetadataCache
) -> SearchResponse:
    snapshot, request = state.snapshot, state.request
    cursor = request.cursor
    generation = cursor.generation if cursor else snapshot.generation
    next_cursor = state.has_next_page and Cursor(
        release=snapshot.release_id,
        generation=generation,
        mode=state.mode,
        hit_offset=state.end,
        result_offset=_results_before(state) + len(results),
        parameters=request.parameter_digests,
        tasks_in_first_page=cursor.tasks_in_first_page if cursor else state.planner.reached_tasks,
        last_hit=_last_hit(state),
    )
    return SearchResponse(
        query=request.query.q,
        release=snapshot.release_id,
        generation=generation,
        mode=state.mode,
        results=results,
        confidence=state.confidence.answer,
        matches=state.confidence.matches,
        matching=None if state.confidence.matching is None else len(state.confidence.matching),
        corrected=state.words.query.corrected,
        facets=_facets(state, cache),
        routing=[
            TaskRouting(
                task=snapshot.task_names[task],
                task_id=task,
                weight=math.exp(log_weight),
                searched=task in state.planner.searched,
            )
            for place, (task, log_weight) in enumerate(state.routing.weights.items())
            if place < _LISTED_TASKS or task in state.planner.searched
        ],
        timing_ms=SearchTiming(**state.times, total=sum(state.times.values())),
        degraded={
            **snapshot.degraded_by_name,
            **{snapshot.task_names[task]: reason for task, reason in rows.not_copied.items()},
        },
        metadata_as_of=rows.as_of,
        next_cursor=str(next_cursor) if next_cursor else None,
    )


def build_results(
    hits: Sequence[Hit],
    rows: Mapping[int, VideoRow],
    snapshot: SearchSnapshot,
    *,
    first_rank: int = 1,
    confidence: ListConfidence = UNKNOWN_CONFIDENCE,
    moments: Mapping[int, list[MomentMatch]] = MappingProxyType({}),
    words: SearchWords | None = None,
    passages: Mapping[int, Sequence[TimedText]] = MappingProxyType({}),
) -> list[SearchResult]:
    """Join hits with their catalog rows. Hits without a row (deleted videos) are dropped.

    Args:
        hits: Hits, best first.
        rows: Rows by vector ID.
        snapshot: Snapshot that found the hits.
        moments: Best moments by the video's vector ID.
        words: Words of the query; None without a text.
        passages: Cues of transcript passages by ID.
    """
    results: list[SearchResult] = []
    matched = set() if words is None else words.matched_videos([hit.id for hit in hits])
    for hit in hits:
        row = rows.get(hit.id)
        if row is None:
            continue
        best = moments.get(hit.id, [])
        texts: list[MatchedText] = []
        if words is not None and hit.id in matched:
            (spoken,) = words.passages([hit.id]) or [-1]
            texts = words.matched_texts(hit.id, row, passages.get(spoken, ()))
        results.append(
            SearchResult(
                rank=first_rank + len(results),
                video_id=row.video_id,
                uri=row.uri,
                task=snapshot.task_names[hit.task],
                task_id=hit.task,
                score=hit.score,
                confidence=confidence.results.get(hit.id),
                matches=None if confidence.reached is None else hit.id in confidence.reached,
                words=texts,
                captions=row.captions,
                thumbnail_url=thumbnail_url(row.video_id),
                stream_url=stream_url(
                    row.video_id, _spoken(texts, row.duration) or (best[0] if best else None)
                ),
                moments=best,
            )
        )
    return results


def _spoken(texts: Sequence[MatchedText], duration: float | None) -> VideoMoment | None:
    """Find the part of a video whose transcript has the words; None if it starts after the video ends."""
    for text in texts:
        if text.start is not None and text.end is not None and (duration is None or text.start < duration):
            return VideoMoment(start=text.start, end=text.end)
    return None


def find_best_moments(
    snapshot: SearchSnapshot,
    hits: Sequence[Hit],
    query_vectors: Mapping[str, Vector],
    lifts: Mapping[str, float],
    max_moments: int,
    cache: VideoMetadataCache,
    words: SearchWords | None = None,
) -> dict[int, list[MomentMatch]]:
    """Find each video's best moments, best first, then by time.

    All moments of the videos are scored, because only some of them may be among the hits.

    Args:
        snapshot: Snapshot that found the hits.
        hits: Hits of videos in tasks that may have moments.
        query_vectors: Query vectors ``float32 [dim]`` by task ID.
        lifts: Value added to a task's visual scores, by task ID.
        max_moments: Maximum number of moments per video.
        words: Word evidence, which counts for a moment as for its video; None leaves it out.
        cache: Source of the moments' times.

    Returns:
        Moments by the video's vector ID.
    """
    moments_by_video: dict[int, list[MomentMatch]] = {}
    for task in dict.fromkeys(hit.task for hit in hits):
        try:
            moments = cache.moments(task, snapshot.shards[task].state)
        except Unavailable:  # the videos are found without their moments
            continue
        rows = moments.rows_of(np.array([hit.id for hit in hits if hit.task == task], np.int64))
        spans = {int(moments.ids[row]): moments.spans[row].tolist() for row in rows}
        if not spans:
            continue
        ids = moments.ids[rows]
        (found,) = snapshot.scan([ShardScan(task, query_vectors[task], len(ids), ids, group=None)])
        scores = snapshot.visual_score.nats(found.scores) + np.float32(lifts[task])
        if words is not None:
            scores = scores + words.nats(video_ids_of(found.ids))
        for moment, video, score in zip(
            found.ids.tolist(), video_ids_of(found.ids).tolist(), scores.tolist(), strict=True
        ):
            best = moments_by_video.setdefault(video, [])
            if len(best) < max_moments:
                start, end = spans[moment]
                best.append(MomentMatch(start=start, end=end, score=score))
    return moments_by_video
