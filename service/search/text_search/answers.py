"""Answer completed text searches: the confidence of their hits, joined with the catalog and their best moments."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
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
from index.arrays import Hit, Hits, Ids, find_ids, merge_hits, video_ids_of
from index.files.manifest_format import task_of
from models.routing import DEFAULT_PRIOR
from models.routing.confidence_model import CONFIDENCE_DEPTH, logistic
from service.catalog.video_texts import SourcedCues
from service.core import request_limits
from service.core.media_urls import media_urls
from service.search.catalog_read_cache import VideoRow, read_rows
from service.search.search_request import Cursor
from service.search.snapshots.search_snapshot import SearchSnapshot, ShardScan
from service.search.text_search.executor import TextSearch
from service.search.text_search.planner import best_first
from service.search.video_filters import count_facets

_LISTED_TASKS = 10  # likeliest tasks in a response's routing, besides the searched ones
_UNKNOWN_VISUAL = -4.0  # log-odds of a video whose visual score tells nothing: one in fifty-five is right
_NEARLY_CERTAIN = 0.9  # a video with some of the words matches from this probability on
_SPEAKS_AGAINST = -4.0  # log-odds; captions that deny the query this strongly overrule the visual score


def answer_searches(searches: Sequence[TextSearch]) -> list[SearchResponse]:
    """Answer one or more completed searches of one snapshot, with at most one read of videos for all."""
    snapshot, read_cache = searches[0].snapshot, searches[0].cache
    for search in searches:
        hits, query = search.planner.hits, search.request.query
        compute_confidence(search, hits)
        least = query.min_confidence
        search.ranked = [
            hit
            for hit in hits
            if (query.min_score is None or hit.score >= query.min_score)
            and (least is None or search.probabilities.get(hit.id, 0.0) >= least)
        ]
        if search.request.cursor:
            search.offset = _find_page_start(search, search.request.cursor)
        search.end = min(search.offset + query.k, search.end)
        search.page = search.ranked[search.offset : search.end]
        if search.query_vectors:
            start = time.perf_counter()
            search.moments = find_best_moments(search, search.page, query.moments)
            search.times["search"] += 1000 * (time.perf_counter() - start)
    start = time.perf_counter()
    rows, as_of, not_cached = read_cache.read_results(
        [hit for search in searches for hit in search.page], snapshot
    )
    said = [(search.words.passages, hit.id) for search in searches for hit in search.page]
    ids = [by_video[video] for by_video, video in said if video in by_video]
    passages = read_cache.read_passages(ids) if ids else {}
    pages = [
        build_results(search.page, rows, snapshot, search=search, passages=passages) for search in searches
    ]
    catalog_ms = 1000 * (time.perf_counter() - start) / len(searches)
    degraded = {
        **snapshot.degraded_by_name,
        **{snapshot.task_names[task]: reason for task, reason in not_cached.items()},
    }
    if problem := searches[0].cache.words.problem:
        degraded["words"] = problem
    for search in searches:
        search.times["merge"] += catalog_ms
    return [
        _build_response(search, page, degraded=degraded, as_of=as_of or search.as_of)
        for search, page in zip(searches, pages, strict=True)
    ]


def _find_page_start(search: TextSearch, cursor: Cursor) -> int:
    """Count the ranked hits that previous pages showed.

    The cursor counts the hits on previous pages. If some were deleted since, the list is ranked without them, and
    counting alone would skip as many unseen hits. So a page starts after the previous page's last hit. Videos appended
    meanwhile may push hits down the list. The page then repeats these hits, because the search was not deep enough for
    more.
    """
    count, planner = cursor.hit_offset, search.planner
    last, ids = Hit(*cursor.last), [hit.id for hit in search.ranked]
    if last.id in ids[:count]:
        return ids.index(last.id) + 1
    if last.task not in planner.prior_bonuses:
        return 0  # all videos of its domain are gone; repeating is better than omitting
    # The last hit was deleted or edited, or no longer passes the filter: its score tells its rank.
    score = last.score + search.words.absent(last.task) + planner.prior_bonuses[last.task]
    end = planner.rank_key(replace(last, score=score))
    return sum(planner.rank_key(hit) < end for hit in search.ranked[:count])


def list_routing(search: TextSearch, shown: int, also: Collection[str]) -> list[TaskRouting]:
    """List the ``shown`` likeliest tasks, and those in ``also``, with their weights."""
    rows: dict[str, TaskRouting] = {}
    weights, likelihoods = search.weights.array, search.routing.likelihoods
    listed = best_first(weights, min(shown, len(search.weights)), likelihoods)
    numbers = np.union1d(listed, [search.snapshot.task_indices[task] for task in also]).astype(np.intp)
    for number in numbers[best_first(weights[numbers], len(numbers), likelihoods[numbers])].tolist():
        key = search.snapshot.task_ids[number]
        name, before = search.snapshot.task_names[key], rows.get(task_of(key))
        row = TaskRouting(
            task=name,
            task_id=task_of(key),
            weight=math.exp(weights[number]) + (before.weight if before else 0.0),
            searched=key in search.planner.searched or bool(before and before.searched),
        )
        rows[row.task_id] = row
    return list(rows.values())


def _build_response(
    search: TextSearch, results: list[SearchResult], degraded: dict[str, str], as_of: datetime | None
) -> SearchResponse:
    snapshot, request, planner = search.snapshot, search.request, search.planner
    cursor = request.cursor
    generation = cursor.generation if cursor else snapshot.generation
    end = (cursor.hit_offset if cursor else 0) + request.query.k
    next_cursor: Cursor | None = None
    if end < request_limits.MAX_PAGED_RESULTS and len(search.ranked) > search.end:
        # The score of the page's last hit leaves out the prior bonus of its domain and the evidence of missing words,
        # which change for the whole domain when videos are deleted. So later pages can find its rank even if it is
        # deleted.
        last = search.page[-1]
        score = last.score - planner.prior_bonuses[last.task] - search.words.absent(last.task)
        next_cursor = Cursor(
            release=snapshot.release_id,
            generation=generation,
            mode=search.mode,
            hit_offset=search.end,
            result_offset=(cursor.result_offset if cursor else 0) + len(results),
            parameters=dict(request.parameter_digests),
            tasks_in_first_page=cursor.tasks_in_first_page if cursor else planner.reached_tasks,
            last=(last.task, last.id, score),
        )
    matching, facets = search.matching, list[Facet]()
    if request.query.facets:
        counted = matching
        if counted is None or not len(counted):
            counted = np.array([hit.id for hit in search.ranked[: search.end]], np.int64)
        facets = count_facets(search.cache, snapshot, counted)
    return SearchResponse(
        query=request.query.q,
        release=snapshot.release_id,
        generation=generation,
        mode=search.mode,
        results=results,
        confidence=search.answer_probability,
        matches=None if matching is None else len(matching) > 0,
        matching=None if matching is None else len(matching),
        corrected=search.words.corrected,
        facets=facets,
        routing=list_routing(search, _LISTED_TASKS, planner.searched),
        timing_ms=SearchTiming(**search.times, total=sum(search.times.values())),
        degraded=degraded,
        metadata_as_of=as_of,
        next_cursor=str(next_cursor) if next_cursor else None,
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
    passages: Mapping[int, SourcedCues] = MappingProxyType({}),
) -> list[SearchResult]:
    """Join hits, best first, with their catalog rows by vector ID. Hits without a row (deleted videos) are dropped.

    The confidence, moments and words of a text search are added, with the passages of timed texts by ID.
    """
    results: list[SearchResult] = []
    first_rank, has_words = 1, np.zeros(len(hits), np.bool_)
    if search is not None:
        if search.request.cursor:
            first_rank += search.request.cursor.result_offset
        has_words, _ = find_ids(search.words.evidence.videos, np.array([hit.id for hit in hits], np.int64))
    for hit, may_have_texts in zip(hits, has_words.tolist(), strict=True):
        row = rows.get(hit.id)
        if row is None:
            continue
        best, matching_hits = (search.moments.get(hit.id, []), search.matching_hits) if search else ([], None)
        texts: list[MatchedText] = []
        if search is not None and may_have_texts:
            passage = search.words.passages.get(hit.id, -1)
            texts = search.words.matched_texts(hit.id, row, passages.get(passage))
        # The player starts where the transcript has the words, unless that is after the end of the video.
        spoken = [
            VideoMoment(start=text.start, end=text.end)
            for text in texts
            if text.start is not None
            and text.end is not None
            and (row.duration is None or text.start < row.duration)
        ]
        thumbnail, stream = media_urls(row.video_id, next(iter([*spoken, *best]), None))
        results.append(
            SearchResult(
                rank=first_rank + len(results),
                video_id=row.video_id,
                uri=row.uri,
                task=snapshot.task_names[hit.task],
                task_id=task_of(hit.task),
                score=hit.score,
                confidence=search.probabilities.get(hit.id) if search else None,
                matches=None if matching_hits is None else hit.id in matching_hits,
                words=texts,
                captions=row.captions,
                thumbnail_url=thumbnail,
                stream_url=stream,
                moments=best,
            )
        )
    return results


def find_best_moments(
    search: TextSearch, hits: Sequence[Hit], max_moments: int
) -> dict[int, list[MomentMatch]]:
    """Find each video's best moments, best first, then by time, by the video's vector ID.

    All moments of the videos are scored, because only some of them may be among the hits. Hits of tasks without a query
    vector are ignored.
    """
    snapshot, moments_by_video = search.snapshot, dict[int, list[MomentMatch]]()
    for task in dict.fromkeys(hit.task for hit in hits if hit.task in search.query_vectors):
        of_task = np.array([hit.id for hit in hits if hit.task == task], np.int64)
        ids, times = search.cache.words.texts.columns.moments_of(of_task)
        if not len(ids):
            continue
        spans = dict(zip(ids.tolist(), times.tolist(), strict=True))
        (scanned,) = snapshot.scan([ShardScan(task, search.query_vectors[task], len(ids), ids, group=None)])
        videos = video_ids_of(scanned.ids)
        scores = snapshot.lineages[task].visual_score.log_odds(scanned.scores) + np.float32(
            search.planner.prior_bonuses[task]
        )
        scores = scores + search.words.look_up(videos)[0]
        for moment, video, score in zip(scanned.ids.tolist(), videos.tolist(), scores.tolist(), strict=True):
            best = moments_by_video.setdefault(video, [])
            if len(best) < max_moments:
                start, end = spans[moment]
                best.append(MomentMatch(start=start, end=end, score=score))
    return moments_by_video


# -- confidence -------------------------------------------------------------------------------------------------


def compute_confidence(search: TextSearch, hits: Sequence[Hit]) -> None:
    """Compute the confidence of a search's list of hits, from the first one on, and of each hit.

    The calibration of a hit's lineage compares its visual score with those of the lineage's other hits, and turns it
    into log-odds that it is right; the evidence of its words is added.
    A video matches if its texts match all terms, if it is likely right and has some of the words, or if its visual
    score is high and the calibration says that some video's is.
    """
    with_all_terms = _videos_with_all_terms(search)
    if not hits or (not search.calibrations and not len(with_all_terms)):
        return
    ids = np.array([hit.id for hit in hits], np.int64)
    domains = search.snapshot.video_tasks.locate(ids)
    is_captioned = search.words.captions.are_captioned(ids, domains)
    # What a lack of captions adds to the evidence makes no result likelier.
    without_captions = np.where(is_captioned, np.float32(0), search.words.evidence.unknown[domains])
    words = np.array([hit.words for hit in hits]) - without_captions
    has_all_terms, _ = find_ids(with_all_terms, ids)
    is_head = np.arange(len(hits)) < CONFIDENCE_DEPTH  # matches depend neither on k nor on the page
    is_known, is_near = has_all_terms.copy(), np.zeros(len(hits), np.bool_)
    log_odds = np.full(len(hits), _UNKNOWN_VISUAL)
    visual_probability: float | None = None
    lineages = search.snapshot.lineages
    for lineage, model in search.calibrations.items():
        rows = np.array([row for row, hit in enumerate(hits) if lineages[hit.task] is lineage], np.intp)
        if not len(rows):
            continue
        weights = search.unbounded_weights
        scores = np.array([hits[row].cosine + DEFAULT_PRIOR * weights[hits[row].task] for row in rows])
        nearest = [
            best.scores[:CONFIDENCE_DEPTH] + DEFAULT_PRIOR * weights[task]
            for task, best in search.nearest.items()
            if lineages[task] is lineage
        ]
        head = np.sort(np.concatenate([np.empty(0), *nearest]))[::-1][:CONFIDENCE_DEPTH]
        evidence = search.routing.evidence[lineage]
        log_odds[rows] = model.log_odds(scores, evidence.familiarity, evidence.log_weight, head)
        is_known[rows] = True
        if model.answer is not None:
            probability = model.answer.probability(head, evidence)
            visual_probability = max(probability, visual_probability or 0.0)
            if probability >= model.answer.threshold:
                is_close = (scores >= float(head[0]) - model.answer.reach) & (words[rows] > _SPEAKS_AGAINST)
                is_near[rows] = is_close & is_head[rows]
    # If words speak for a video, an unlikely visual score is no evidence against it.
    log_odds = np.where(words > 0, np.maximum(log_odds, _UNKNOWN_VISUAL), log_odds) + words
    probabilities = np.minimum.accumulate(logistic(log_odds))  # in the order of the list
    search.probabilities = dict(zip(ids[is_known].tolist(), probabilities[is_known].tolist(), strict=True))
    answer = max([0.0, *probabilities[has_all_terms].tolist()])
    if visual_probability is not None:
        # A text that lacks only a word such as "in" still supports its video.
        is_nearly_certain = (words > 0) & (probabilities >= _NEARLY_CERTAIN) & is_head
        answer = max([answer, visual_probability, *probabilities[is_nearly_certain].tolist()])
        is_near |= is_nearly_certain
    elif search.calibrations:
        # At most one video is the described one, so the first probabilities add up.
        answer = max(answer, min(1.0, float(probabilities[:CONFIDENCE_DEPTH].sum())))
        if not len(with_all_terms):
            search.answer_probability = answer
            return
    search.answer_probability = answer
    search.matching_hits = frozenset(ids[has_all_terms | is_near].tolist())
    search.matching = np.sort(np.concatenate([with_all_terms, ids[is_near & ~has_all_terms]]))


def _videos_with_all_terms(search: TextSearch) -> Ids:
    """Find the videos that pass the filter and whose texts match all terms: vector IDs, ascending."""
    evidence = search.words.evidence
    videos, domains = evidence.videos[evidence.has_all_terms], evidence.domains[evidence.has_all_terms]
    is_counted = np.zeros(len(search.snapshot.shards), np.bool_)
    left_out = []
    for index in np.unique(domains).tolist():
        task = search.snapshot.task_ids[index]
        if search.allowed_ids is not None and task not in search.allowed_ids:
            continue
        is_counted[index] = search.request.routes in ("auto", "all") or task in search.planner.searched
        if search.allowed_ids is not None and (allowed := search.allowed_ids[task]) is not None:
            of_task = videos[domains == index]
            left_out.append(of_task[~np.isin(of_task, allowed)])
    counted = videos[is_counted[domains]]
    return np.setdiff1d(counted, np.concatenate(left_out)) if left_out else counted
