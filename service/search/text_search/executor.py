"""Run text searches on one snapshot, round by round; :mod:`.answers` answers them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache as cache_results
from functools import lru_cache, partial
from itertools import chain
from typing import cast

import numpy as np
import numpy.typing as npt

from cinestrata_schemas.choice_types import QueryMode
from cinestrata_schemas.search import MomentMatch
from index.arrays import Hit, Hits, Ids, Vectors
from index.files.manifest_format import task_of
from models.routing import DEFAULT_PRIOR
from models.routing.confidence_model import CONFIDENCE_DEPTH, ConfidenceModel
from models.routing.router import log_probabilities
from service.core import request_limits
from service.core.errors import FieldError, InvalidInput, Unavailable
from service.search.catalog_read_cache import CatalogReadCache
from service.search.library_words import LibraryTexts
from service.search.search_request import NO_FILTER, SearchRequest, VideoFilter
from service.search.snapshots.query_vector_cache import DEGRADED_RETRY_SECONDS
from service.search.snapshots.search_snapshot import (
    Routing,
    SearchScope,
    SearchSnapshot,
    ServedLineage,
    ShardScan,
)
from service.search.text_search.planner import SEPARATE_ENCODINGS, SHARED_ENCODING, RoundPlanner, TaskValues
from service.search.text_search.query_words import QueryWords
from service.search.video_filters import find_passing_videos

MAX_VECTORS_PER_BATCH = 8192  # limits memory, whatever the number of queries and tasks
_FEW_VECTORS = 256  # one scan finds all of them as fast as several find the best
_MAX_LISTED_TASKS = 20  # in an error


class UnknownTask(InvalidInput):
    """A request names a task that the snapshot does not have; the error suggests some ``searchable`` ones."""

    def __init__(self, task: str, field: str, searchable: Sequence[str]) -> None:
        message = f"There is no searchable task {task[:100]!r}."
        hint = f"Searchable tasks: {', '.join(map(repr, searchable)) or 'none'}."
        super().__init__(f"{field}: {message} {hint}", [FieldError(field, message, hint)])
        self.task = task


@dataclass(eq=False)
class TextSearch:
    """A search, from its request to the answer."""

    snapshot: SearchSnapshot
    request: SearchRequest
    cache: CatalogReadCache
    as_of: datetime | None  # when edits were last read, if that is longer ago than usual
    mode: QueryMode
    # Those of the searched lineages that have one for the query mode.
    calibrations: Mapping[ServedLineage, ConfidenceModel]
    words: QueryWords
    routing: Routing  # of the searched tasks
    # Log weights of the searched tasks within their lineage, for the calibration.
    unbounded_weights: TaskValues
    weights: TaskValues  # log weights from bounded evidence and the words of the tasks' videos
    # IDs that pass the filter, including moments, by task ID; None if all of a task pass, or all of all tasks. Tasks
    # without any are left out.
    allowed_ids: Mapping[str, Ids | None] | None
    planner: RoundPlanner
    # Milliseconds by stage; a shared batch's time is divided equally among its searches.
    times: dict[str, float]
    round: list[str] = field(default_factory=list)  # tasks to search next; empty when the search is complete
    nearest: dict[str, Hits] = field(default_factory=dict)  # nearest videos by cosine alone, by searched task
    # Query vectors by task ID, for tasks with hits that may have moments, if moments are requested.
    query_vectors: dict[str, Vectors] = field(default_factory=dict)
    # Hits of the completed search that pass its thresholds, from the first page on.
    ranked: Sequence[Hit] = ()
    # Number of hits on previous pages; once the search is complete, without those deleted since.
    offset: int = 0
    end: int = 0  # number of hits up to the end of this page
    page: Sequence[Hit] = ()  # hits on the requested page
    # Probability that each video is right, by vector ID in list order; without videos for which nothing can tell.
    probabilities: Mapping[int, float] = field(default_factory=dict)
    answer_probability: float | None = None  # that a searched video is right; None if unknown
    matching_hits: Set[int] | None = None  # vector IDs of the matching hits; None if unknown
    # Vector IDs of all matching videos, ascending, including those beyond the hits; None if unknown.
    matching: Ids | None = None
    # Best moments, by vector ID of the video.
    moments: dict[int, list[MomentMatch]] = field(default_factory=dict)


def execute(
    snapshot: SearchSnapshot,
    requests: Sequence[SearchRequest],
    cache: CatalogReadCache,
    *,
    with_words: bool = True,
) -> list[TextSearch]:
    """Run searches on one snapshot.

    Args:
        with_words: Whether words in video texts count. Without them, captions are unknown, as in recall measurements.

    Raises:
        InvalidInput: A request names an unknown task, a mode that the release lacks, a threshold without calibration,
            or a metadata field that no video has.
        Unavailable: A request names a task that cannot be searched.
    """
    searches = start_searches(snapshot, requests, cache, with_words=with_words)
    while unfinished := [search for search in searches if search.round]:
        # One batch encodes the texts of all rounds. If it is full, the last searches wait for the next one.
        batch: list[TextSearch] = []
        size = 0
        for search in unfinished:
            size += len(search.round)
            if batch and size > MAX_VECTORS_PER_BATCH:
                break
            batch.append(search)
        start = time.perf_counter()
        pairs = [(search.words.text, search.mode, task) for search in batch for task in search.round]
        vectors = iter(snapshot.query_vectors(pairs))
        encoded = time.perf_counter()
        queries = [{task: next(vectors) for task in search.round} for search in batch]
        scans = [_plan_scans(search, query) for search, query in zip(batch, queries, strict=True)]
        hits = iter(snapshot.scan([scan for scan, _ in chain(*scans)]))
        scanned = time.perf_counter()
        for search, query, planned in zip(batch, queries, scans, strict=True):
            scanned_hits = [(scan.task, is_whole, next(hits)) for scan, is_whole in planned]
            search.nearest |= {task: task_hits for task, is_whole, task_hits in scanned_hits if is_whole}
            search.planner.add_hits(
                [(task, task_hits) for task, _, task_hits in scanned_hits], search.words.look_up
            )
            if search.request.query.moments:
                # For scoring moments. A searched task without a hit will not get one later.
                tasks = {hit.task for hit in search.planner.hits}
                with_moments = {task: query[task] for task in query if snapshot.shards[task].has_moments}
                vectors_of_hits = (search.query_vectors | with_moments).items()
                search.query_vectors = {task: vector for task, vector in vectors_of_hits if task in tasks}
            search.round = search.planner.next_round()
        merged = time.perf_counter()
        for search in batch:
            search.times["encode"] += 1000 * (encoded - start) / len(batch)
            search.times["search"] += 1000 * (scanned - encoded) / len(batch)
            search.times["merge"] += 1000 * (merged - scanned) / len(batch)
    return searches


# -- start ------------------------------------------------------------------------------------------------------


def start_searches(
    snapshot: SearchSnapshot,
    requests: Sequence[SearchRequest],
    cache: CatalogReadCache,
    *,
    with_words: bool,
) -> list[TextSearch]:
    """Resolve requests, evaluate their filters and plan their first rounds."""

    make_scope = cache_results(snapshot.scope)  # requests with equal tasks share a scope

    def get_scope(tasks: tuple[str, ...]) -> SearchScope:
        # Most searches have thousands of tasks that need not be hashed.
        return snapshot.default_scope if tasks is snapshot.nonempty_tasks else make_scope(tasks)

    scopes = [get_scope(resolve_tasks(snapshot, request, cache)) for request in requests]
    if len(snapshot.distinct_lineages) > 1:
        scopes = [get_scope(tasks) for tasks in _leave_out_unopened(snapshot, requests, scopes)]
    modes = [_resolve_mode(snapshot, request, scope) for request, scope in zip(requests, scopes, strict=True)]

    @lru_cache(maxsize=4)  # in a batch, consecutive queries often have the same filter
    def find_allowed_ids(
        video_filter: VideoFilter, searched: tuple[str, ...], field_prefix: str
    ) -> dict[str, Ids | None]:
        passing = find_passing_videos(video_filter, snapshot, searched, cache, field_prefix)
        return {
            task: None if ids is None else _with_moments(snapshot, cache, task, ids)
            for task, ids in passing.items()
        }

    start = time.perf_counter()
    if with_words:
        as_of = cache.follow()
        texts = cache.words.texts
        captions = cache.words.captions_of(snapshot.video_tasks, texts.words)
    else:
        as_of, texts, captions = None, LibraryTexts(), snapshot.without_captions
    words = [
        QueryWords(request.text, texts, captions=captions, snapshot=snapshot, numbers=scope.numbers)
        for request, scope in zip(requests, scopes, strict=True)
    ]
    looked_up = time.perf_counter()
    query_texts = [query.text for query in words]
    encoders = [
        lineage.query_cache for lineage in dict.fromkeys(chain(*(scope.lineages for scope in scopes)))
    ]
    for encoder in encoders:
        encoder.tokens(query_texts)
    encoded = time.perf_counter()
    routings = snapshot.route(query_texts, scopes)
    routed = time.perf_counter()
    count = max(1, len(requests))
    times = {
        "encode": 1000 * (encoded - looked_up) / count,
        "route": 1000 * (routed - encoded + looked_up - start) / count,
        "search": 0.0,
        "merge": 0.0,
    }
    is_shared = all(encoder.shares_text_encoding for encoder in encoders)
    limits = SHARED_ENCODING if is_shared else SEPARATE_ENCODINGS
    searches: list[TextSearch] = []
    for request, scope, (mode, calibrations), query, routing in zip(
        requests, scopes, modes, words, routings, strict=True
    ):
        start = time.perf_counter()
        cursor = request.cursor
        offset = cursor.hit_offset if cursor else 0
        end = min(offset + request.query.k, request_limits.MAX_PAGED_RESULTS)
        # One more hit than the page shows tells whether another page follows. Confidence depends on the head of the
        # list, regardless of page and thresholds.
        depth = max(end + 1, CONFIDENCE_DEPTH if calibrations else 0)
        allowed_ids: dict[str, Ids | None] | None = None
        is_searchable: npt.NDArray[np.bool_] | None = None  # all in the scope
        if request.filter is not NO_FILTER:
            allowed_ids = find_allowed_ids(request.filter, scope.tasks, request.field_prefix)
            is_searchable = np.zeros(len(snapshot.shards), np.bool_)
            is_searchable[[snapshot.task_indices[task] for task in allowed_ids]] = True
        log_weights = log_probabilities(routing.bounded + query.highest)
        planner = RoundPlanner(
            snapshot.task_ids,
            snapshot.task_indices,
            routing.bounded,
            is_searchable,
            depth=depth,
            min_score=None if calibrations else request.query.min_score,
            routes=request.routes,
            limits=limits,
            tasks_in_first_page=cursor.tasks_in_first_page if cursor else None,
            words=query.highest,
            likelihoods=routing.likelihoods,
            visuals=[lineage.visual_score for lineage in snapshot.distinct_lineages],
            lineages=snapshot.lineage_indices,
        )
        search = TextSearch(
            snapshot=snapshot,
            request=request,
            cache=cache,
            as_of=as_of,
            mode=mode,
            calibrations=calibrations,
            words=query,
            routing=routing,
            unbounded_weights=TaskValues(snapshot.task_indices, routing.log_weights),
            weights=TaskValues(snapshot.task_indices, log_weights),
            allowed_ids=allowed_ids,
            planner=planner,
            times=dict(times),
            round=planner.next_round(),
            offset=offset,
            end=end,
        )
        search.times["search"] = 1000 * (time.perf_counter() - start)
        searches.append(search)
    return searches


def resolve_tasks(
    snapshot: SearchSnapshot, request: SearchRequest, read_cache: CatalogReadCache
) -> tuple[str, ...]:
    """Resolve the tasks to search to IDs, in learned order whatever the request's order.

    Tasks whose videos are all deleted are left out if others remain: evidence for them would take routing weight from
    the others, and the results would seem to belong to a known domain.

    Raises UnknownTask, or Unavailable if a task cannot be searched, or if only the catalog knows it and is unreachable.
    """
    if request.tasks is None:
        return snapshot.nonempty_tasks or tuple(snapshot.shards)
    tasks = {
        _resolve_task(snapshot, task, f"{request.field_prefix}task", read_cache) for task in request.tasks
    }
    keys = [key for task in tasks for key in snapshot.keys_by_task.get(task, ())]
    nonempty = [key for key in keys if snapshot.shards[key].count]
    return tuple(sorted(nonempty or keys, key=snapshot.task_indices.__getitem__))


def _resolve_task(snapshot: SearchSnapshot, task: str, field_name: str, read_cache: CatalogReadCache) -> str:
    names, named = snapshot.task_names, snapshot.tasks_by_name.get(task, ())
    task_id: str | None = task
    if task not in names:  # IDs take precedence: a task's name may equal another task's ID
        # If no single name is the same, it may be a slug, differ in case, or be the previous name of a deleted domain.
        task_id = named[0] if len(named) == 1 else read_cache.find_task(task, snapshot)
        if task_id not in names:
            task_id = named[-1] if named else None
    if task_id is None:
        raise UnknownTask(task, field_name, [names[key] for key in list(snapshot.shards)[:_MAX_LISTED_TASKS]])
    snapshot.require_searchable(task_id)
    return task_of(task_id)


def _leave_out_unopened(
    snapshot: SearchSnapshot, requests: Sequence[SearchRequest], scopes: Sequence[SearchScope]
) -> list[tuple[str, ...]]:
    """Leave out tasks whose encoder, one of several, cannot be opened, which become degraded.

    One that is not open, and whose tasks are all degraded, is not tried again: a snapshot that replaces this one does.

    Raises Unavailable if a request names such a task or has no other, or if it continues a list, which would lack hits.
    """
    unopened: dict[str, str] = {}
    for lineage in dict.fromkeys(chain(*(scope.lineages for scope in scopes))):
        degraded = dict(snapshot.degraded).items()  # other threads add shards that they cannot read
        reasons = {task: reason for task, reason in degraded if snapshot.lineages.get(task) is lineage}
        index = snapshot.distinct_lineages.index(lineage)
        is_open = lineage.query_cache.opened is not None  # then, shards are why they are degraded
        if is_open or len(reasons) < np.count_nonzero(snapshot.lineage_indices == index):
            reasons = {}
            try:
                _ = lineage.query_cache.encoder
            except Unavailable as error:
                members = (task for task, each in snapshot.lineages.items() if each is lineage)
                reasons = dict.fromkeys(members, str(error))
        unopened |= reasons
    if not unopened:
        return [scope.tasks for scope in scopes]
    if any(request.cursor for request in requests):
        raise Unavailable(next(iter(unopened.values())), DEGRADED_RETRY_SECONDS)
    snapshot.degraded.update(unopened)
    remaining = [tuple(task for task in scope.tasks if task not in unopened) for scope in scopes]
    for request, scope, others in zip(requests, scopes, remaining, strict=True):
        if request.tasks is not None or not others:
            for task in scope.tasks:
                snapshot.require_searchable(task)
    return remaining


def _resolve_mode(
    snapshot: SearchSnapshot, request: SearchRequest, scope: SearchScope
) -> tuple[QueryMode, dict[ServedLineage, ConfidenceModel]]:
    """Choose a request's query mode, and the calibrations for it of those searched lineages that have one.

    Raises InvalidInput if the release does not offer the requested mode, or lacks a calibration that the request needs.
    """
    mode = snapshot.served_mode if request.mode is None else request.mode
    models = {each: each.confidence_model for each in scope.lineages if each.confidence_model is not None}
    if mode not in snapshot.modes:
        raise InvalidInput.at(
            f"{request.field_prefix}mode",
            f"The release does not offer mode {mode[:40]!r}.",
            f"Use {' or '.join(snapshot.modes)}.",
        )
    applicable = {key: model for key, model in models.items() if model.applies_to(mode, DEFAULT_PRIOR)}
    if not applicable and request.query.min_confidence is not None:
        reason = "is not calibrated: it has too few captions."
        if models:
            reason = f"is calibrated for mode {next(iter(models.values())).mode!r}."
        raise InvalidInput.at(
            f"{request.field_prefix}min_confidence",
            f"The release {reason}",
            "Leave it out, or use min_score instead.",
        )
    return cast(QueryMode, mode), applicable


def _plan_scans(search: TextSearch, vectors: Mapping[str, Vectors]) -> list[tuple[ShardScan, bool]]:
    """Plan a round's scans, each with whether it looks for the nearest videos in the whole task.

    There is one scan for the nearest videos, if any can enter, also those without captions, and those for videos with
    more evidence. In a task of few videos, one scan finds all.
    """
    planned: list[tuple[ShardScan, bool]] = []
    words = search.words
    for task, vector in vectors.items():
        allowed = None if search.allowed_ids is None else search.allowed_ids[task]
        size = search.snapshot.shards[task].count if allowed is None else len(allowed)
        if size <= _FEW_VECTORS:
            planned.append((ShardScan(task, vector, max(1, size), allowed), True))
            continue
        groups = words.groups(task, search.planner.depth)
        captions = words.captions if words.prefers_uncaptioned(task, many=True) else None
        narrow = partial(_narrow, search, task, allowed)
        # Where no other video can enter, only those with more evidence are scanned.
        is_whole = not (groups or captions) or search.planner.can_enter(task, words.absent(task))
        if is_whole or captions:
            count = search.planner.depth + words.negative_count(task)
            scan = ShardScan(task, vector, count, allowed, captions=captions, narrow=narrow)
            planned.append((scan, is_whole))
        for videos, count in groups:
            if len(among := narrow(videos)):
                planned.append((ShardScan(task, vector, count, among), False))
    return planned


def _narrow(search: TextSearch, task: str, allowed: Ids | None, videos: Ids) -> Ids:
    """Add the moments to some of a task's video IDs, and leave out those that do not pass the filter."""
    ids = _with_moments(search.snapshot, search.cache, task, videos)
    return ids if allowed is None else np.intersect1d(ids, allowed)


def _with_moments(snapshot: SearchSnapshot, cache: CatalogReadCache, task: str, ids: Ids) -> Ids:
    """Add the moments to a task's video IDs."""
    return cache.words.texts.columns.with_moments(ids) if snapshot.shards[task].has_moments else ids
