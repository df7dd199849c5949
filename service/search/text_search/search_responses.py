"""Responses of completed text searches."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from cinestrata_schemas.search import SearchResponse, SearchResult, SearchTiming, TaskRouting
from service.search.catalog_mirror import CatalogMirror, ResultRows
from service.search.requests.cursors import Cursor
from service.search.result_views import ResultList, build_results
from service.search.snapshots.search_snapshot import SearchSnapshot
from service.search.text_search.search_state import SearchState

__all__ = ["build_responses"]

_LISTED_TASKS = 10  # likeliest tasks listed in the routing of a response, in addition to the searched tasks


def build_responses(
    states: Sequence[SearchState], snapshot: SearchSnapshot, mirror: CatalogMirror
) -> list[SearchResponse]:
    """Responses of searches that one snapshot has completed; the catalog is read once for all of them."""
    start = time.perf_counter()
    pages = [
        ResultList(
            state.page,
            1 + _results_before(state),
            state.confidence.results,
            state.moments,
            state.confidence.reached,
        )
        for state in states
    ]
    rows = mirror.read_results([hit for page in pages for hit in page.hits], snapshot)
    results = build_results(pages, snapshot, rows)
    catalog_ms = 1000 * (time.perf_counter() - start) / max(1, len(states))
    return [_response(state, page, catalog_ms, rows) for state, page in zip(states, results, strict=True)]


def _results_before(state: SearchState) -> int:
    cursor = state.request.cursor
    return cursor.result_offset if cursor else 0


def _response(
    state: SearchState, results: list[SearchResult], catalog_ms: float, rows: ResultRows
) -> SearchResponse:
    snapshot, request, times = state.snapshot, state.request, state.times
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
        last_hit=state.planner.without_lift(state.page[-1]),
    )
    return SearchResponse(
        query=request.query.q,
        release=snapshot.release_id,
        generation=generation,
        mode=state.mode,
        results=results,
        confidence=state.confidence.answer,
        matches=state.confidence.matches,
        routing=[
            TaskRouting(
                task=snapshot.task_names[task],
                task_id=task,
                weight=math.exp(log_weight),
                searched=task in state.planner.searched,
            )
            for place, (task, log_weight) in enumerate(state.routing.log_weights)
            if place < _LISTED_TASKS or task in state.planner.searched
        ],
        timing_ms=SearchTiming(
            encode=times.encode,
            route=times.route,
            search=times.search,
            merge=times.merge + catalog_ms,
            total=times.encode + times.route + times.search + times.merge + catalog_ms,
        ),
        degraded={
            **snapshot.degraded_by_name,
            **{snapshot.task_names[task]: reason for task, reason in rows.not_copied.items()},
        },
        metadata_as_of=rows.as_of,
        next_cursor=str(next_cursor) if next_cursor else None,
    )
