"""One search, or many at once: from what was asked to what is answered, by one generation from start to end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import cast

import numpy as np
import numpy.typing as npt
from sqlalchemy import bindparam, select

from index.hits import Hit
from models.routing.confidence_model import CONFIDENCE_DEPTH
from service.catalog.database import session_scope
from service.catalog.tables import Video
from service.core import request_limits
from service.core.errors import FieldError, InvalidInput, Unavailable
from service.core.schemas import (
    MomentMatch,
    SearchQuery,
    SearchResponse,
    SearchResult,
    SearchTiming,
    TaskRouting,
)
from service.core.settings import QueryMode, Settings
from service.library.video_details import stream_url, thumbnail_url
from service.search.requests.cursors import Cursor, parameter_digests, parse_cursor
from service.search.requests.video_filters import VideoFilter, allowed, find_filter_errors, parse_filter
from service.search.snapshots.search_snapshot import SearchSnapshot, ShardScan
from service.search.snapshots.video_grouping import has_moments
from service.search.text_search.best_moments import best_moments
from service.search.text_search.planner import Routes, WavePlanner, parse_routes
from service.search.text_search.result_confidence import (
    among_the_first,
    calibration,
    confidences,
    require_calibration,
    sure_enough,
)
from service.search.video_metadata_cache import VideoMetadataCache

__all__ = ["Search", "Underway", "answer", "begin", "candidates", "check", "conclude", "described", "step"]

Ids = npt.NDArray[np.int64]
Vector = npt.NDArray[np.float32]

_VECTORS = 8192  # query vectors made at a time: memory stays flat however many queries and tasks there are
_SHOWN = 10  # tasks of which the routing is told, beside those that were searched
_CHUNK = 500  # ids in one IN (…)
_MAX_ERRORS = 20
_MOMENTS = 100  # of a video
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Search:
    """A search whose values make sense by themselves; what depends on a release is looked at when it is answered.

    Attributes:
        query: as it was asked.
        text: the words.
        tasks: names or ids of the tasks to search; None: all.
        filter: what may be found.
        cursor: where its list goes on; None: at its beginning.
        routes: which tasks count; None: what the server is set to.
        at: what stands before the name of a wrong field: ``queries[3].`` in a batch.
    """

    query: SearchQuery
    text: str
    tasks: tuple[str, ...] | None
    filter: VideoFilter
    cursor: Cursor | None
    routes: Routes | None
    at: str


def check(queries: Sequence[SearchQuery], limits: Settings, *, batch: bool) -> list[Search]:
    """What can be known of searches without a release.

    Args:
        batch: fields are named by the place of their query.

    Raises:
        InvalidInput: with up to 20 wrong fields.
    """
    searches: list[Search] = []
    errors: list[FieldError] = []
    for number, query in enumerate(queries):
        at = f"queries[{number}]." if batch else ""
        wrong = [*_errors(query, limits, at), *find_filter_errors(query, at)]
        errors += wrong or _cursor_errors(query, limits, at)
        if len(errors) >= _MAX_ERRORS:
            break
        if not errors:
            tasks = _named_tasks(query)
            named = None if tasks is None else tuple(tasks)
            cursor = parse_cursor(query.cursor) if query.cursor is not None else None
            routes = None if query.routes is None else parse_routes(query.routes)
            searches.append(Search(query, query.q.strip(), named, parse_filter(query), cursor, routes, at))
    if errors:
        raise InvalidInput.of(errors[:_MAX_ERRORS])
    return searches


def answer(
    serving: SearchSnapshot, searches: Sequence[Search], configured: Settings, reader: VideoMetadataCache
) -> list[SearchResponse]:
    """Answer searches with one generation.

    Args:
        reader: where filters learn what videos are like.

    Raises:
        InvalidInput, Unavailable: as :func:`begin`.
    """
    underway = begin(serving, searches, configured, reader)
    while any(one.wave for one in underway):
        step(serving, underway)
    return conclude(serving, underway, configured, reader)


def begin(
    serving: SearchSnapshot, searches: Sequence[Search], configured: Settings, reader: VideoMetadataCache
) -> list[Underway]:
    """Find out where searches go, by one generation. It is theirs to the end.

    Raises:
        InvalidInput: a task that was not learned, a mode that is not offered, or a field of metadata that no video has;
            names the field.
        Unavailable: a task that was asked for by name cannot be searched.
    """
    asked = [
        _Asked(search, candidates(serving, search), _mode(serving, search, configured)) for search in searches
    ]
    for one in asked:
        require_calibration(serving, one.search.query, one.mode, configured, one.search.at)

    @lru_cache(maxsize=4)  # in a batch the same filter is likely to come many times in a row
    def admitted(chosen: VideoFilter, tasks: tuple[str, ...], at: str) -> dict[str, Ids | None]:
        if chosen == VideoFilter():
            return dict.fromkeys(tasks)
        shards = {task: serving.shards[task] for task in tasks}
        videos = allowed(chosen, {task: shard.state for task, shard in shards.items()}, reader, at)
        return {
            task: ids
            if ids is None or not has_moments(shards[task])
            else reader.moments(task, shards[task].state).added_to(ids)
            for task, ids in videos.items()
        }

    begun = time.perf_counter()
    routing = serving.route([one.search.text for one in asked], [one.tasks for one in asked])
    route = 1000 * (time.perf_counter() - begun) / max(1, len(asked))
    return [
        _begin(serving, one, weights, configured, admitted, route)
        for one, weights in zip(asked, routing, strict=True)
    ]


def step(serving: SearchSnapshot, underway: Sequence[Underway]) -> None:
    """Take searches that this generation began a wave further, but for the last ones where there is no room for all.

    The waves go together: their texts are encoded in one batch, each under the tasks that it goes to.
    """
    going: list[Underway] = []
    size = 0
    for one in underway:
        size += len(one.wave)
        if going and size > _VECTORS:
            break
        if one.wave:
            going.append(one)
    if not going:
        return
    begun = time.perf_counter()
    vectors = serving.encode(
        [(one.asked.search.text, str(one.asked.mode), task) for one in going for task in one.wave]
    )
    encoded = time.perf_counter()
    places = [(one, task) for one in going for task in one.wave]
    hits = serving.scan(
        [
            ShardScan(task, vector, one.depth, one.among[task])
            for (one, task), vector in zip(places, vectors, strict=True)
        ]
    )
    searched = time.perf_counter()
    start = 0
    for one in going:
        after = start + len(one.wave)
        one.course.add(dict(zip(one.wave, hits[start:after], strict=True)))
        if one.asked.search.query.moments:
            _keep(one, vectors[start:after])
        one.wave, start = one.course.wave(), after
    merged = time.perf_counter()
    for one in going:
        one.encode += 1000 * (encoded - begun) / len(going)
        one.search += 1000 * (searched - encoded) / len(going)
        one.merge += 1000 * (merged - searched) / len(going)


def conclude(
    serving: SearchSnapshot, underway: Sequence[Underway], configured: Settings, reader: VideoMetadataCache
) -> list[SearchResponse]:
    """The answers to searches that this generation began, and that have come to their ends."""
    for ended in underway:
        _judge(ended, configured)
        _look_inside(ended, reader)
    return _responses(underway, serving, configured)


@dataclass(frozen=True)
class _Asked:
    """A search, and what it means for a release: ids of the tasks to search, and the query mode."""

    search: Search
    tasks: tuple[str, ...]
    mode: QueryMode


@dataclass(eq=False)
class Underway:
    """A search on its way, and what it has found before the catalog is asked. Times are in milliseconds.

    Attributes:
        serving: the generation that it began on, and ends on.
        routing: candidate tasks and their log weights, best first.
        among: task id → what may be found there, with the moments of videos, None for all; only tasks where something
            may.
        course: which tasks it goes to.
        wave: those among them that are next; none when it has come to its end.
        passed: videos of the list that earlier pages have come past.
        end: how many there are with this page.
        depth: how many are looked for.
        more: whether there may be another page.
        listed: its hits from the first on, when it is over.
        sure: confidence of hits by their ids; empty where the release is not calibrated.
        vectors: of the text, for the tasks of hits that may have moments, where these are asked for.
        moments: the best ones of the videos that have any, by vector id.
    """

    serving: SearchSnapshot
    asked: _Asked
    routing: list[tuple[str, float]]
    among: dict[str, Ids | None]
    course: WavePlanner
    passed: int
    end: int
    depth: int
    more: bool
    route: float
    encode: float = 0.0
    search: float = 0.0
    merge: float = 0.0
    wave: list[str] = field(default_factory=list)
    listed: Sequence[Hit] = ()
    sure: Mapping[int, float] = field(default_factory=dict)
    vectors: dict[str, Vector] = field(default_factory=dict)
    moments: dict[int, list[MomentMatch]] = field(default_factory=dict)

    @property
    def hits(self) -> Sequence[Hit]:
        """Those of the page."""
        return self.listed[self.passed : self.end]

    @property
    def following(self) -> bool:
        """Whether there is another page: one more is looked for than is shown."""
        return self.more and len(self.listed) > self.end


def _begin(
    serving: SearchSnapshot,
    asked: _Asked,
    routing: list[tuple[str, float]],
    configured: Settings,
    admitted: Callable[[VideoFilter, tuple[str, ...], str], dict[str, Ids | None]],
    route: float,
) -> Underway:
    search, start = asked.search, time.perf_counter()
    calibrated = calibration(serving, asked.mode, configured) is not None
    cursor = search.cursor
    passed = cursor.passed if cursor else 0
    end = min(passed + search.query.k, request_limits.MAX_PAGED_RESULTS)
    # How sure an answer is follows from the head of its list, whatever is shown of it, and a threshold cuts off.
    depth = max(end + 1, CONFIDENCE_DEPTH) if calibrated else end + 1
    among = admitted(search.filter, asked.tasks, search.at)
    lifts = [(task, configured.routing_prior * log_weight) for task, log_weight in routing]
    course = WavePlanner(
        lifts,
        [task for task in asked.tasks if task in among],
        depth,
        least=None if calibrated else search.query.min_score,
        routes=search.routes or configured.routes,
        chosen=cursor.chosen if cursor else None,
    )
    more = end < request_limits.MAX_PAGED_RESULTS
    found = Underway(serving, asked, routing, among, course, passed, end, depth, more, route)
    found.wave = course.wave()
    found.search = 1000 * (time.perf_counter() - start)
    return found


def _keep(found: Underway, vectors: Sequence[Vector]) -> None:
    """Keep the vectors of a wave that moments will be scored with. A task without a hit so far will have none later."""
    new = {
        task: vector
        for task, vector in zip(found.wave, vectors, strict=True)
        if has_moments(found.serving.shards[task])
    }
    if new or found.vectors:
        known, hits = found.vectors | new, {hit.task for hit in found.course.hits()}
        found.vectors = {task: vector for task, vector in known.items() if task in hits}


def _judge(found: Underway, configured: Settings) -> None:
    """Tell how sure the hits of a search are, and leave out those below its thresholds."""
    query, hits = found.asked.search.query, found.course.hits()
    found.sure = confidences(
        found.serving, hits, found.asked.search.text, found.routing, found.asked.mode, configured
    )
    found.listed = [
        hit
        for hit in hits
        if (query.min_score is None or hit.score >= query.min_score) and sure_enough(found.sure, hit, query)
    ]


def _look_inside(found: Underway, reader: VideoMetadataCache) -> None:
    """Find out which moments of the videos of the page fit best."""
    if found.vectors:
        start, most = time.perf_counter(), found.asked.search.query.moments
        shown = [hit for hit in found.hits if hit.task in found.vectors]
        found.moments = best_moments(found.serving, shown, found.vectors, found.course.lift, most, reader)
        found.search += 1000 * (time.perf_counter() - start)


def _responses(
    found: Sequence[Underway], serving: SearchSnapshot, configured: Settings
) -> list[SearchResponse]:
    start = time.perf_counter()
    cursors = [one.asked.search.cursor for one in found]
    first = [1 + (cursor.shown if cursor else 0) for cursor in cursors]
    results = described(
        [one.hits for one in found],
        serving,
        first,
        [one.sure for one in found],
        [one.moments for one in found],
    )
    asking = 1000 * (time.perf_counter() - start) / max(1, len(found))
    return [_response(one, shown, asking, configured) for one, shown in zip(found, results, strict=True)]


def _response(
    found: Underway, results: list[SearchResult], asking: float, configured: Settings
) -> SearchResponse:
    asked, query, serving = found.asked, found.asked.search.query, found.serving
    before = asked.search.cursor
    generation = before.generation if before else serving.snapshot.generation
    following = found.following and Cursor(
        release=serving.release,
        generation=generation,
        mode=asked.mode,
        passed=found.end,
        shown=(before.shown if before else 0) + len(results),
        query=_fingerprints(query, configured),
        chosen=before.chosen if before else found.course.chosen,
    )
    return SearchResponse(
        query=query.q,
        release=serving.release,
        generation=generation,
        mode=asked.mode,
        results=results,
        confidence=among_the_first(found.sure),
        routing=[
            TaskRouting(
                task=serving.names[task],
                task_id=task,
                weight=math.exp(log_weight),
                searched=task in found.course.searched,
            )
            for place, (task, log_weight) in enumerate(found.routing)
            if place < _SHOWN or task in found.course.searched
        ],
        timing_ms=SearchTiming(
            encode=found.encode,
            route=found.route,
            search=found.search,
            merge=found.merge + asking,
            total=found.encode + found.route + found.search + found.merge + asking,
        ),
        degraded=serving.named_degraded,
        next_cursor=str(following) if following else None,
    )


@dataclass(frozen=True)
class _Known:
    id: str
    captions: list[str]


# Of the table and not of its class, and built once: asked for in every search, it takes half the time.
_VIDEOS = Video.__table__.c
_BY_VECTOR_ID = select(_VIDEOS.vector_id, _VIDEOS.id, _VIDEOS.captions).where(
    _VIDEOS.vector_id.in_(bindparam("ids", expanding=True))
)


def _known(vector_ids: Iterable[int]) -> dict[int, _Known]:
    ids = list(dict.fromkeys(vector_ids))
    known: dict[int, _Known] = {}
    if not ids:
        return known
    with session_scope() as session:
        for start in range(0, len(ids), _CHUNK):
            rows = session.execute(_BY_VECTOR_ID, {"ids": ids[start : start + _CHUNK]})
            known |= {vector_id: _Known(video, captions) for vector_id, video, captions in rows}
    return known


def described(
    lists: Sequence[Sequence[Hit]],
    serving: SearchSnapshot,
    first: Sequence[int] = (),
    sure: Sequence[Mapping[int, float]] = (),
    moments: Sequence[Mapping[int, list[MomentMatch]]] = (),
) -> list[list[SearchResult]]:
    """Hits with what the catalog says of them, asked for all lists at once; those it does not know are left out.

    Args:
        first: rank of the first result of each list; 1 by default.
        sure: confidence of the hits of each list by their ids; by default there is none.
        moments: of the videos of each list, by vector id.
    """
    known = _known(hit.id for hits in lists for hit in hits)
    return [
        [
            _result(rank, hit, known[hit.id], serving, likely.get(hit.id), theirs.get(hit.id, []))
            for rank, hit in enumerate((hit for hit in hits if hit.id in known), start)
        ]
        for hits, start, likely, theirs in zip(
            lists,
            first or [1] * len(lists),
            sure or [{}] * len(lists),
            moments or [{}] * len(lists),
            strict=True,
        )
    ]


def _result(
    rank: int,
    hit: Hit,
    video: _Known,
    serving: SearchSnapshot,
    confidence: float | None,
    moments: list[MomentMatch],
) -> SearchResult:
    return SearchResult(
        rank=rank,
        video_id=video.id,
        task=serving.names[hit.task],
        task_id=hit.task,
        score=hit.score,
        confidence=confidence,
        captions=video.captions,
        thumbnail_url=thumbnail_url(video.id),
        stream_url=stream_url(video.id, moments[0] if moments else None),
        moments=moments,
    )


# -- what may be asked ----------------------------------------------------------------------------------------


def _errors(query: SearchQuery, limits: Settings, at: str) -> Iterator[FieldError]:
    longest, most = request_limits.MAX_QUERY_CHARS, limits.limits.max_results
    if not query.q.strip():
        yield FieldError(f"{at}q", "The query is empty.", "Say what is seen, in a few words.")
    elif len(query.q) > longest:
        yield FieldError(
            f"{at}q",
            f"The query has {len(query.q)} characters.",
            f"Use at most {longest}; a sentence is best.",
        )
    elif "\0" in query.q or any("\ud800" <= character <= "\udfff" for character in query.q):
        yield FieldError(f"{at}q", "The query holds characters that are not text.", "Send plain Unicode.")
    if not 1 <= query.k <= most:
        # A number of ten thousand digits is not repeated to whoever sent it.
        said = f"{query.k} results" if abs(query.k) < 10**9 else "So many results"
        yield FieldError(f"{at}k", f"{said} cannot be given.", f"Ask for 1 to {most}.")
    if not 0 <= query.moments <= _MOMENTS:
        yield FieldError(
            f"{at}moments", "So many moments of a video cannot be given.", f"Ask for 0 to {_MOMENTS}."
        )
    if query.min_score is not None and not math.isfinite(query.min_score):
        yield FieldError(f"{at}min_score", "This is no score.", "Give a number, such as 0.2.")
    if query.min_confidence is not None and not 0 <= query.min_confidence <= 1:
        yield FieldError(f"{at}min_confidence", "This is no probability.", "Give a number from 0 to 1.")
    if query.routes is not None and parse_routes(query.routes) is None:
        yield FieldError(
            f"{at}routes", "This is no way to choose tasks.", "Give auto, all, or a number from 1 on."
        )
    if query.task == []:
        yield FieldError(f"{at}task", "The list of tasks is empty.", "Name one, or leave it out for all.")


def _cursor_errors(query: SearchQuery, limits: Settings, at: str) -> Iterator[FieldError]:
    if query.cursor is None:
        return
    cursor = parse_cursor(query.cursor)
    if cursor is None:
        yield FieldError(
            f"{at}cursor",
            "This is no cursor of ours, or not all of it.",
            "Send the next_cursor of the page before as it came, or none for the first page.",
        )
    elif differing := cursor.differing(_fingerprints(query, limits)):
        if "routes" in differing:  # which stands in for the setting, and was changed by whoever asks
            differing = [name for name in differing if name != "CINESTRATA_ROUTES"]
        yield FieldError(
            f"{at}cursor",
            f"It belongs to another search: {' and '.join(differing)} {'differ' if differing[1:] else 'differs'}.",
            "Repeat the search that it came from in everything but k and moments, or leave it out.",
        )


def _named_tasks(query: SearchQuery) -> list[str] | None:
    if query.task is None:
        return None
    return [query.task] if isinstance(query.task, str) else sorted(set(query.task))


def _fingerprints(query: SearchQuery, limits: Settings) -> dict[str, str]:
    """Of everything that decides which results come in which order, but for the release."""
    chosen = parse_filter(query)
    return parameter_digests(
        {
            "q": query.q.strip(),
            "task": _named_tasks(query),
            "mode": query.mode,
            "min_duration": query.min_duration,
            "max_duration": query.max_duration,
            # Not as UTC: the first and the last times that there are have no place there.
            "arrived_after": chosen.after and (chosen.after - _EPOCH).total_seconds(),
            "arrived_before": chosen.before and (chosen.before - _EPOCH).total_seconds(),
            "where": query.where or None,
            "min_score": query.min_score,
            "min_confidence": query.min_confidence,
            "routes": query.routes and parse_routes(query.routes),
            "CINESTRATA_ROUTES": None if query.routes else limits.routes,
            "CINESTRATA_ROUTING_PRIOR": limits.routing_prior,
        }
    )


def candidates(serving: SearchSnapshot, search: Search) -> tuple[str, ...]:
    """Ids of the tasks to search, in learned order, so that whoever names them in another asks the same.

    Those whose videos are all deleted are left out where others are not: words that speak for them would take weight
    from the others, and make results seem to be of a domain that the library knows.
    """
    if search.tasks is None:
        return serving.held or tuple(serving.shards)
    chosen = {_candidate(serving, task, f"{search.at}task") for task in search.tasks}
    return tuple(task for task in serving.held if task in chosen) or tuple(
        task for task in serving.shards if task in chosen
    )


def _candidate(serving: SearchSnapshot, task: str, field: str) -> str:
    # An id comes first: a task may be named like another one's id.
    named = [task] if task in serving.names else [key for key, name in serving.names.items() if name == task]
    for key in named:
        if key in serving.degraded:
            raise Unavailable(f"Task {serving.names[key]!r} cannot be searched: {serving.degraded[key]}", 30)
        return key
    known = ", ".join(repr(serving.names[key]) for key in list(serving.shards)[:20])
    raise InvalidInput.at(field, f"No learned task is called {task[:100]!r}.", f"Learned so far: {known}.")


def _mode(serving: SearchSnapshot, search: Search, configured: Settings) -> QueryMode:
    offered, mode = serving.modes, search.cursor.mode if search.cursor else search.query.mode
    if mode is None:
        return configured.served_mode(offered)
    if mode not in offered:
        raise InvalidInput.at(
            f"{search.at}mode",
            f"Mode {mode[:40]!r} is not offered by this release.",
            f"Use {' or '.join(offered)}.",
        )
    return cast(QueryMode, mode)
