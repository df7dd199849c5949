"""Run text searches on one snapshot, wave by wave; :mod:`.search_responses` completes them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cinestrata_schemas.search import SearchResponse
from index.hits import Hits
from index.words.word_index import WordIndex
from models.routing.confidence_model import CONFIDENCE_DEPTH
from service.core import request_limits
from service.core.errors import Unavailable
from service.search.search_request import SearchRequest
from service.search.snapshots.search_snapshot import SearchSnapshot, ShardScan
from service.search.text_search.planner import SEPARATE_ENCODINGS, SHARED_ENCODING, WavePlanner
from service.search.text_search.request_resolution import resolve_mode, resolve_tasks
from service.search.text_search.result_confidence import applicable_calibration, require_calibration
from service.search.text_search.search_responses import finish_searches
from service.search.text_search.search_state import SearchState
from service.search.text_search.written_words import SearchWords, find_words
from service.search.video_filters import NO_FILTER, VideoFilter, find_passing_videos
from service.search.video_metadata_cache import VideoMetadataCache
from service.search.words.domain_captions import DomainCaptions
from service.search.words.judged_texts import JudgedTexts
from service.search.words.transcript_words import TranscriptWords

Ids = npt.NDArray[np.int64]
Vector = npt.NDArray[np.float32]

MAX_VECTORS_PER_BATCH = 8192  # limits memory, whatever the number of queries and tasks
_FEW_VECTORS = 256  # one scan finds all of them as fast as several find the best


def execute(
    snapshot: SearchSnapshot,
    requests: Sequence[SearchRequest],
    cache: VideoMetadataCache,
) -> list[SearchResponse]:
    """Answer requests from one snapshot.

    Args:
        snapshot: Snapshot that answers all of them.
        cache: Source of metadata for filters and moments.

    Raises:
        InvalidInput, Unavailable: As :func:`start_searches`.
    """
    states = start_searches(snapshot, requests, cache)
    while any(state.wave for state in states):
        advance_searches(snapshot, states)
    return finish_searches(snapshot, states, cache)


def start_searches(
    snapshot: SearchSnapshot,
    requests: Sequence[SearchRequest],
    cache: VideoMetadataCache,
    *,
    with_words: bool = True,
) -> list[SearchState]:
    """Resolve requests, evaluate their filters and plan their first waves.

    Args:
        with_words: Whether words in video texts count. Without them, captions are unknown, as in recall measurements.

    Raises:
        InvalidInput: A request names an unknown task, a mode that the release lacks, a threshold without calibration,
            or a metadata field that no video has.
        Unavailable: A request names a task that cannot be searched.
    """
    resolved = [
        (request, resolve_tasks(snapshot, request, cache.mirror), resolve_mode(snapshot, request))
        for request in requests
    ]
    for request, _, mode in resolved:
        require_calibration(snapshot, request, mode)

    def with_moments(task: str, ids: Ids) -> Ids:
        if not snapshot.shards[task].has_moments:
            return ids
        try:
            return cache.moments(task, snapshot.shards[task].state).with_moments(ids)
        except Unavailable:  # whole videos are still found without the catalog
            return ids

    @lru_cache(maxsize=4)  # in a batch, consecutive queries often have the same filter
    def find_allowed_ids(
        video_filter: VideoFilter, tasks: tuple[str, ...], field_prefix: str
    ) -> dict[str, Ids | None]:
        if video_filter == NO_FILTER:
            return dict.fromkeys(tasks)
        states = {task: snapshot.shards[task].state for task in tasks}
        return {
            task: None if ids is None else with_moments(task, ids)
            for task, ids in find_passing_videos(video_filter, states, cache, field_prefix).items()
        }

    start = time.perf_counter()
    if with_words:
        edit = cache.words.follow_edits()
        index, transcripts, judged = cache.words.index, cache.words.transcripts, cache.words.judged
        captions = cache.words.captions.of(index, snapshot.video_positions)
    else:
        edit, index, transcripts, judged = None, WordIndex.empty(), TranscriptWords.empty(), JudgedTexts()
        captions = DomainCaptions.unknown(snapshot.video_positions)
    words = [
        SearchWords(
            *find_words(request.text, index, transcripts, snapshot.query_vectors.are_words),
            index,
            transcripts,
            judged,
            captions,
            snapshot,
            tasks,
        )
        for request, tasks, _ in resolved
    ]
    found = time.perf_counter()
    tokens = snapshot.query_vectors.tokens([own.query.text for own in words])
    encoded = time.perf_counter()
    meanings = snapshot.route(tokens, [tasks for _, tasks, _ in resolved])
    routings = [
        meaning.with_words(own.highest(meaning.tasks)) for meaning, own in zip(meanings, words, strict=True)
    ]
    count = max(1, len(resolved))
    encode_ms = 1000 * (encoded - found) / count
    route_ms = 1000 * (time.perf_counter() - encoded + found - start) / count
    limits = SHARED_ENCODING if snapshot.query_vectors.encoder.shares_text_encoding else SEPARATE_ENCODINGS
    states: list[SearchState] = []
    for (request, tasks, mode), own, meaning, routing in zip(
        resolved, words, meanings, routings, strict=True
    ):
        start = time.perf_counter()
        is_calibrated = applicable_calibration(snapshot, mode) is not None
        cursor = request.cursor
        offset = cursor.hit_offset if cursor else 0
        end = min(offset + request.query.k, request_limits.MAX_PAGED_RESULTS)
        # Confidence depends on the head of the list, regardless of page and thresholds.
        depth = max(end + 1, CONFIDENCE_DEPTH) if is_calibrated else end + 1
        allowed_ids = find_allowed_ids(request.filter, tasks, request.field_prefix)
        planner = WavePlanner(
            routing.tasks,
            routing.bounded.astype(np.float64),
            [task for task in tasks if task in allowed_ids],
            depth,
            min_score=None if is_calibrated else request.query.min_score,
            routes=request.routes,
            limits=limits,
            tasks_in_first_page=cursor.tasks_in_first_page if cursor else None,
            words=own.highest(routing.tasks),
            visual=snapshot.visual_score,
        )
        wave = planner.next_wave()
        states.append(
            SearchState(
                snapshot=snapshot,
                request=request,
                edit=edit,
                mode=mode,
                words=own,
                meaning=meaning,
                routing=routing,
                allowed_ids=allowed_ids,
                with_moments=with_moments,
                planner=planner,
                offset=offset,
                end=end,
                depth=depth,
                can_have_next_page=end < request_limits.MAX_PAGED_RESULTS,
                wave=wave,
                times={
                    "encode": encode_ms,
                    "route": route_ms,
                    "search": 1000 * (time.perf_counter() - start),
                    "merge": 0.0,
                },
            )
        )
    return states


def advance_searches(snapshot: SearchSnapshot, states: Sequence[SearchState]) -> None:
    """Run the next wave of each search on a snapshot.

    The texts of all waves are encoded in one batch. If it is full, the last searches keep their waves for the next
    call.
    """
    batch: list[SearchState] = []
    size = 0
    for state in states:
        size += len(state.wave)
        if batch and size > MAX_VECTORS_PER_BATCH:
            break
        if state.wave:
            batch.append(state)
    if not batch:
        return
    start = time.perf_counter()
    vectors = snapshot.query_vectors(
        [(state.words.query.text, str(state.mode), task) for state in batch for task in state.wave]
    )
    encoded = time.perf_counter()
    first, scans = 0, list[list[_PlannedScan]]()
    for state in batch:
        end = first + len(state.wave)
        scans.append(_plan_scans(state, vectors[first:end]))
        first = end
    hits = iter(snapshot.scan([planned.scan for planned in chain(*scans)]))
    scanned = time.perf_counter()
    first = 0
    for state, own in zip(batch, scans, strict=True):
        end = first + len(state.wave)
        _add_hits(state, own, [next(hits) for _ in own])
        if state.request.query.moments:
            _keep_query_vectors(state, vectors[first:end])
        state.wave, first = state.planner.next_wave(), end
    merged = time.perf_counter()
    for state in batch:
        state.times["encode"] += 1000 * (encoded - start) / len(batch)
        state.times["search"] += 1000 * (scanned - encoded) / len(batch)
        state.times["merge"] += 1000 * (merged - scanned) / len(batch)


class _PlannedScan(NamedTuple):
    """A scan in a wave, and whether it looks for the nearest videos in the whole domain."""

    scan: ShardScan
    is_whole: bool


def _plan_scans(state: SearchState, vectors: Sequence[Vector]) -> list[_PlannedScan]:
    """Plan a wave's scans: one for the nearest videos, if any can enter, and those for videos with more evidence.

    A few videos are scanned once, and all are found.
    """
    planned: list[_PlannedScan] = []
    domains = [state.words.domain(task) for task in state.wave]
    # Where no other video can enter, only those in the groups are scanned.
    can_enter = state.planner.can_enter(state.wave, np.array([words.absent for words in domains])).tolist()
    for task, vector, words, can_any_enter in zip(state.wave, vectors, domains, can_enter, strict=True):
        allowed, groups = state.allowed_ids[task], words.groups(state.depth)
        if not groups or can_any_enter:
            count = state.depth + words.refused
            size = state.snapshot.shards[task].count if allowed is None else len(allowed)
            if groups and size <= _FEW_VECTORS:
                count, groups = size, []  # one scan that finds all
            planned.append(_PlannedScan(ShardScan(task, vector, count, allowed), True))
        for videos, count in groups:
            among = state.with_moments(task, videos)
            if allowed is not None:
                among = np.intersect1d(among, allowed)
            if len(among):
                planned.append(_PlannedScan(ShardScan(task, vector, count, among), False))
    return planned


def _add_hits(state: SearchState, planned: Sequence[_PlannedScan], found: Sequence[Hits]) -> None:
    """Add the hits of a wave's scans, with the evidence of their texts."""
    for (scan, is_whole), hits in zip(planned, found, strict=True):
        if is_whole:
            state.nearest[scan.task] = hits
    state.planner.add_hits(
        [(scan.task, hits) for (scan, _), hits in zip(planned, found, strict=True)],
        state.words.nats,
        state.words.are_complete,
    )


def _keep_query_vectors(state: SearchState, vectors: Sequence[Vector]) -> None:
    """Keep the vectors for scoring moments. A searched task without a hit will not get one later."""
    new = {
        task: vector
        for task, vector in zip(state.wave, vectors, strict=True)
        if state.snapshot.shards[task].has_moments
    }
    if new or state.query_vectors:
        known, tasks = state.query_vectors | new, {hit.task for hit in state.planner.hits()}
        state.query_vectors = {task: vector for task, vector in known.items() if task in tasks}
