"""Build the responses of completed text searches: join hits with the catalog and add their best moments."""

from __future__ import annotations

import math
import time
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

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
from index.hits import Hit, Hits, merge_hits
from index.vector_ids import video_ids_of
from service.catalog.domain_videos import TimedText
from service.core.errors import Unavailable
from service.library.video_listing import stream_url, thumbnail_url
from service.search.catalog_read_cache import ResultRows, VideoRow, read_rows
from service.search.facets import count_facets
from service.search.search_request import Cursor
from service.search.snapshots.search_snapshot import SearchSnapshot, ShardScan
from service.search.text_search.executor import UNKNOWN_CONFIDENCE, TextSearch
from service.search.text_search.result_confidence import compute_confidence
from service.search.video_metadata_cache import VideoMetadataCache

_LISTED_TASKS = 10  # likeliest tasks in a response's routing, besides the searched ones


def answer_searches(
    snapshot: SearchSnapshot, searches: Sequence[TextSearch], cache: VideoMetadataCache
) -> list[SearchResponse]:
    """Answer searches whose rounds are all done, with at most one read of videos for all."""
    for search in searches:
        hits = search.planner.hits()
        search.confidence = compute_confidence(search, hits)
        search.ranked = [hit for hit in hits if _passes_thresholds(hit, search)]
        search.offset = _find_page_start(search)
        search.end = min(search.offset + search.request.query.k, search.end)
        if search.query_vectors:
            start = time.perf_counter()
            search.moments = find_best_moments(search, search.page, search.request.query.moments)
            search.times["search"] += 1000 * (time.perf_counter() - start)
    start = time.perf_counter()
    edits = {search.edit for search in searches}
    rows = cache.read_cache.read_results(
        [hit for search in searches for hit in search.page],
        snapshot,
        edits.pop() if len(edits) == 1 else None,
    )
    passages = cache.read_cache.read_passages(
        [passage for search in searches for passage in search.words.passages(hit.id for hit in search.page)]
    )
    pages = [
        build_results(search.page, rows.rows, snapshot, search=search, passages=passages)
        for search in searches
    ]
    catalog_ms = 1000 * (time.perf_counter() - start) / max(1, len(searches))
    for search in searches:
        search.times["merge"] += catalog_ms
    return [_response(search, page, rows) for search, page in zip(searches, pages, strict=True)]


def _passes_thresholds(hit: Hit, search: TextSearch) -> bool:
    query = search.request.query
    return (query.min_score is None or hit.score >= query.min_score) and (
        query.min_confidence is None or search.confidence.results.get(hit.id, 0.0) >= query.min_confidence
    )


def _find_page_start(search: TextSearch) -> int:
    """Count the ranked hits that previous pages showed.

    The cursor counts the hits on previous pages. If some were deleted since, the list is ranked without them, and
    counting alone would skip as many unseen hits. So a page starts after the previous page's last hit. Videos appended
    meanwhile may push hits down the list. The page then repeats these hits, because the search was not deep enough for
    more.
    """
    cursor, count, planner = search.request.cursor, search.offset, search.planner
    if cursor is None:
        return count
    last, ids = cursor.last_hit, [hit.id for hit in search.ranked]
    if last.id in ids[:count]:
        return ids.index(last.id) + 1
    if last.task not in planner.prior_bonuses:
        return 0  # all videos of its domain are gone; repeating is better than omitting
    # The last hit was deleted or edited, or no longer passes the filter: its score tells its rank.
    end = planner.rank_key(
        planner.with_bonus(replace(last, score=last.score + search.words.absent(last.task)))
    )
    return sum(planner.rank_key(hit) < end for hit in search.ranked[:count])


def _next_cursor(search: TextSearch, generation: int, results: int) -> str:
    """Encode where the next page starts.

    The score of the page's last hit leaves out the prior bonus of its domain and the evidence of missing words, which
    change for the whole domain when videos with the words are deleted. So later pages can find its rank even if it is
    deleted.
    """
    cursor = search.request.cursor
    last = search.page[-1]
    return str(
        Cursor(
            release=search.snapshot.release_id,
            generation=generation,
            mode=search.mode,
            hit_offset=search.end,
            result_offset=_results_before(search) + results,
            parameters=search.request.parameter_digests,
            tasks_in_first_page=cursor.tasks_in_first_page if cursor else search.planner.reached_tasks,
            last=(last.task, last.id, search.planner.without_bonus(last) - search.words.absent(last.task)),
        )
    )


def _results_before(search: TextSearch) -> int:
    cursor = search.request.cursor
    return cursor.result_offset if cursor else 0


def _facets(search: TextSearch) -> list[Facet]:
    """Count the facets of the matching videos, or of the ranked ones if none matches."""
    if not search.request.query.facets:
        return []
    matching = search.confidence.matching
    if matching is None or not len(matching):
        matching = np.array([hit.id for hit in search.ranked], np.int64)
    return count_facets(search.cache, search.snapshot, matching)


def list_routing(search: TextSearch, shown: int, also: Container[str]) -> list[TaskRouting]:
    """List the likeliest tasks, and some others, with their weights.

    Args:
        shown: Number of likeliest tasks.
        also: IDs of the others.
    """
    return [
        TaskRouting(
            task=search.snapshot.task_names[task],
            task_id=task,
            weight=math.exp(log_weight),
            searched=task in search.planner.searched,
        )
        for rank, (task, log_weight) in enumerate(search.routing.weights.items())
        if rank < shown or task in also
    ]


def _response(search: TextSearch, results: list[SearchResult], rows: ResultRows) -> SearchResponse:
    snapshot, request, confidence = search.snapshot, search.request, search.confidence
    generation = request.cursor.generation if request.cursor else snapshot.generation
    return SearchResponse(
        query=request.query.q,
        release=snapshot.release_id,
        generation=generation,
        mode=search.mode,
        results=results,
        confidence=confidence.answer,
        matches=confidence.matches,
        matching=None if confidence.matching is None else len(confidence.matching),
        corrected=search.words.corrected,
        facets=_facets(search),
        routing=list_routing(search, _LISTED_TASKS, search.planner.searched),
        timing_ms=SearchTiming(**search.times, total=sum(search.times.values())),
        degraded={
            **snapshot.degraded_by_name,
            **{snapshot.task_names[task]: reason for task, reason in rows.not_cached.items()},
        },
        metadata_as_of=rows.as_of,
        next_cursor=_next_cursor(search, generation, len(results)) if search.has_next_page else None,
    )


def build_nearest(
    hits: Mapping[str, Hits], k: int, min_score: float | None, snapshot: SearchSnapshot
) -> list[SearchResult]:
    """Merge the hits of tasks, best first, and join the k best with their catalog rows."""
    merged = [hit for hit in merge_hits(hits, k) if min_score is None or hit.score >= min_score]
    return build_results(merged, read_rows([hit.id for hit in merged]), snapshot)


def build_results(
    hits: Sequence[Hit],
    rows: Mapping[int, VideoRow],
    snapshot: SearchSnapshot,
    *,
    search: TextSearch | None = None,
    passages: Mapping[int, Sequence[TimedText]] = MappingProxyType({}),
) -> list[SearchResult]:
    """Join hits with their catalog rows. Hits without a row (deleted videos) are dropped.

    Args:
        hits: Hits, best first.
        rows: Rows by vector ID.
        snapshot: Snapshot that found the hits.
        search: Text search that found them; its confidence, moments and words are added.
        passages: Cues of transcript passages by ID.
    """
    results: list[SearchResult] = []
    first_rank, confidence, moments, matched = 1, UNKNOWN_CONFIDENCE, {}, set[int]()
    if search is not None:
        first_rank += _results_before(search)
        confidence, moments = search.confidence, search.moments
        matched = search.words.matched_videos([hit.id for hit in hits])
    for hit in hits:
        row = rows.get(hit.id)
        if row is None:
            continue
        best = moments.get(hit.id, [])
        texts: list[MatchedText] = []
        if search is not None and hit.id in matched:
            (passage,) = search.words.passages([hit.id]) or [-1]
            texts = search.words.matched_texts(hit.id, row, passages.get(passage, ()))
        matching_hits = confidence.matching_hits
        results.append(
            SearchResult(
                rank=first_rank + len(results),
                video_id=row.video_id,
                uri=row.uri,
                task=snapshot.task_names[hit.task],
                task_id=hit.task,
                score=hit.score,
                confidence=confidence.results.get(hit.id),
                matches=None if matching_hits is None else hit.id in matching_hits,
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
    search: TextSearch, hits: Sequence[Hit], max_moments: int
) -> dict[int, list[MomentMatch]]:
    """Find each video's best moments, best first, then by time.

    All moments of the videos are scored, because only some of them may be among the hits.

    Args:
        search: Search with the query vectors of the tasks that may have moments; hits of other tasks are ignored.
        hits: Hits of videos.
        max_moments: Maximum number of moments per video.

    Returns:
        Moments by the video's vector ID.
    """
    snapshot, moments_by_video = search.snapshot, dict[int, list[MomentMatch]]()
    for task in dict.fromkeys(hit.task for hit in hits if hit.task in search.query_vectors):
        try:
            moments = search.cache.moments(task, snapshot.shards[task].state)
        except Unavailable:  # the videos are found without their moments
            continue
        rows = moments.rows_of(np.array([hit.id for hit in hits if hit.task == task], np.int64))
        spans = {int(moments.ids[row]): moments.spans[row].tolist() for row in rows}
        if not spans:
            continue
        ids = moments.ids[rows]
        (scanned,) = snapshot.scan([ShardScan(task, search.query_vectors[task], len(ids), ids, group=None)])
        videos = video_ids_of(scanned.ids)
        scores = snapshot.visual_score.nats(scanned.scores) + np.float32(search.planner.prior_bonuses[task])
        scores = scores + search.words.log_odds(videos)
        for moment, video, score in zip(scanned.ids.tolist(), videos.tolist(), scores.tolist(), strict=True):
            best = moments_by_video.setdefault(video, [])
            if len(best) < max_moments:
                start, end = spans[moment]
                best.append(MomentMatch(start=start, end=end, score=score))
    return moments_by_video
