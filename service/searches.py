"""One search, or many at once: from what was asked to what is answered, by one generation from start to end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import cast

import numpy as np
import numpy.typing as npt
from sqlalchemy import select

from index import Hit, Hits, merge
from models.confidence import HEAD
from service.catalog.database import session_scope
from service.catalog.models import Video
from service.confidence import among_the_first, confidences, require_calibration, sure_enough
from service.cursors import Cursor, fingerprints, read_cursor
from service.errors import FieldError, InvalidInput, Unavailable
from service.facts import FactsReader
from service.filters import Filter, allowed, filter_errors, read_filter
from service.library import stream_url, thumbnail_url
from service.serving import EncodedQuery, Serving
from service.settings import QueryMode, Settings
from service.views import RoutingView, SearchQuery, SearchResponse, SearchResult, TimingView

__all__ = ["Search", "answer", "candidates", "check", "described"]

Ids = npt.NDArray[np.int64]

_VECTORS = 8192  # query vectors held at a time: memory stays flat however many queries and tasks there are
_CHUNK = 500  # ids in one IN (…)
_MAX_ERRORS = 20
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
        at: what stands before the name of a wrong field: ``queries[3].`` in a batch.
    """

    query: SearchQuery
    text: str
    tasks: tuple[str, ...] | None
    filter: Filter
    cursor: Cursor | None
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
        wrong = [*_errors(query, limits, at), *filter_errors(query, at)]
        errors += wrong or _cursor_errors(query, limits, at)
        if len(errors) >= _MAX_ERRORS:
            break
        if not errors:
            tasks = _named_tasks(query)
            named = None if tasks is None else tuple(tasks)
            cursor = read_cursor(query.cursor) if query.cursor is not None else None
            searches.append(Search(query, query.q.strip(), named, read_filter(query), cursor, at))
    if errors:
        raise InvalidInput.of(errors[:_MAX_ERRORS])
    return searches


def answer(
    serving: Serving, searches: Sequence[Search], configured: Settings, reader: FactsReader
) -> list[SearchResponse]:
    """Answer searches with one generation. Texts that go to the same tasks are encoded together.

    Args:
        reader: where filters learn what videos are like.

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
    found: dict[int, _Found] = {}

    @lru_cache(maxsize=4)  # in a batch the same filter is likely to come many times in a row
    def admitted(chosen: Filter, tasks: tuple[str, ...], at: str) -> dict[str, Ids | None]:
        return allowed(
            chosen,
            {task: "+".join(part.id for part in serving.shards[task].parts) for task in tasks},
            reader,
            at,
        )

    for numbers, encoded, milliseconds in _encoded(serving, asked):
        for number, query in zip(numbers, encoded, strict=True):
            found[number] = _search(serving, asked[number], query, milliseconds, configured, admitted)
    return _responses([found[number] for number in range(len(asked))], serving, configured)


@dataclass(frozen=True)
class _Asked:
    """A search, and what it means for a release: ids of the tasks to search, and the query mode."""

    search: Search
    tasks: tuple[str, ...]
    mode: QueryMode


@dataclass(frozen=True)
class _Found:
    """What a search has found, before the catalog is asked. Times are in milliseconds.

    Attributes:
        passed: how many hits of the list are before its next page; None: there is none.
        sure: confidence of the hits by their ids; empty where the release is not calibrated.
    """

    asked: _Asked
    hits: list[Hit]
    passed: int | None
    sure: Mapping[int, float]
    routing: list[tuple[str, float]]
    encode: float
    route: float
    search: float
    merge: float


def _encoded(
    serving: Serving, asked: Sequence[_Asked]
) -> Iterator[tuple[list[int], list[EncodedQuery], float]]:
    """Places of searches, their encoded texts, and the milliseconds that each of them took."""
    alike: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for number, one in enumerate(asked):
        alike.setdefault((one.mode, one.tasks), []).append(number)
    for (mode, tasks), numbers in alike.items():
        size = max(1, _VECTORS // len(tasks))
        for start in range(0, len(numbers), size):
            part = numbers[start : start + size]
            begun = time.perf_counter()
            encoded = serving.encode([asked[number].search.text for number in part], mode, tasks)
            yield part, encoded, 1000 * (time.perf_counter() - begun) / len(part)


def _search(
    serving: Serving,
    asked: _Asked,
    encoded: EncodedQuery,
    encode: float,
    configured: Settings,
    admitted: Callable[[Filter, tuple[str, ...], str], dict[str, Ids | None]],
) -> _Found:
    least, cursor = asked.search.query.min_score, asked.search.cursor
    passed = cursor.passed if cursor else 0
    end = min(passed + asked.search.query.k, configured.max_depth)
    start = time.perf_counter()
    routing = serving.route(encoded, asked.tasks)
    after_route = time.perf_counter()
    # Cosines of differently conditioned encoders are made comparable by what routing says of their tasks.
    lift = {task: configured.routing_prior * log_weight for task, log_weight in routing}
    # strict: one vector for each task, in the order of the tasks
    queries = zip(asked.tasks, encoded.vectors, strict=True)
    among = admitted(asked.search.filter, asked.tasks, asked.search.at)
    depth = max(
        end + 1, HEAD
    )  # how sure an answer is depends on the head of its list, not on how much is shown
    hits = {
        task: _lifted(serving.search(task, vector, depth, among=among[task]), lift[task])
        for task, vector in queries
        if task in among
    }
    after_search = time.perf_counter()
    # One more than is shown tells whether there is another page.
    best = merge(hits, depth)
    sure = confidences(serving, best, encoded, routing, asked.mode, configured)
    merged = [
        hit
        for hit in best
        if (least is None or hit.score >= least) and sure_enough(sure, hit, asked.search.query)
    ]
    return _Found(
        asked=asked,
        hits=merged[passed:end],
        sure=sure,
        passed=end if len(merged) > end and end < configured.max_depth else None,
        routing=routing,
        encode=encode,
        route=1000 * (after_route - start),
        search=1000 * (after_search - after_route),
        merge=1000 * (time.perf_counter() - after_search),
    )


def _lifted(hits: Hits, by: float) -> Hits:
    return Hits(hits.ids, hits.scores + np.float32(by))


def _responses(found: Sequence[_Found], serving: Serving, configured: Settings) -> list[SearchResponse]:
    start = time.perf_counter()
    cursors = [one.asked.search.cursor for one in found]
    first = [1 + (cursor.shown if cursor else 0) for cursor in cursors]
    results = described([one.hits for one in found], serving, first, [one.sure for one in found])
    asking = 1000 * (time.perf_counter() - start) / max(1, len(found))
    return [
        _response(one, shown, asking, serving, configured) for one, shown in zip(found, results, strict=True)
    ]


def _response(
    found: _Found, results: list[SearchResult], asking: float, serving: Serving, configured: Settings
) -> SearchResponse:
    asked, query = found.asked, found.asked.search.query
    before = asked.search.cursor
    generation = before.generation if before else serving.snapshot.generation
    following = found.passed and Cursor(
        release=serving.release,
        generation=generation,
        mode=asked.mode,
        passed=found.passed,
        shown=(before.shown if before else 0) + len(results),
        query=_fingerprints(query, configured),
    )
    return SearchResponse(
        query=query.q,
        release=serving.release,
        generation=generation,
        mode=asked.mode,
        results=results,
        confidence=among_the_first(found.sure),
        routing=[
            RoutingView(task=serving.names[task], task_id=task, weight=math.exp(log_weight))
            for task, log_weight in found.routing
        ],
        timing_ms=TimingView(
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


def _known(vector_ids: Iterable[int]) -> dict[int, _Known]:
    ids = list(dict.fromkeys(vector_ids))
    known: dict[int, _Known] = {}
    if not ids:
        return known
    with session_scope() as session:
        for start in range(0, len(ids), _CHUNK):
            rows = session.execute(
                select(Video.vector_id, Video.id, Video.captions).where(
                    Video.vector_id.in_(ids[start : start + _CHUNK])
                )
            )
            known |= {vector_id: _Known(video, captions) for vector_id, video, captions in rows}
    return known


def described(
    lists: Sequence[Sequence[Hit]],
    serving: Serving,
    first: Sequence[int] = (),
    sure: Sequence[Mapping[int, float]] = (),
) -> list[list[SearchResult]]:
    """Hits with what the catalog says of them, asked for all lists at once; those it does not know are left out.

    Args:
        first: rank of the first result of each list; 1 by default.
        sure: confidence of the hits of each list by their ids; by default there is none.
    """
    known = _known(hit.id for hits in lists for hit in hits)
    return [
        [
            _result(rank, hit, known[hit.id], serving, likely.get(hit.id))
            for rank, hit in enumerate((hit for hit in hits if hit.id in known), start)
        ]
        for hits, start, likely in zip(
            lists, first or [1] * len(lists), sure or [{}] * len(lists), strict=True
        )
    ]


def _result(rank: int, hit: Hit, video: _Known, serving: Serving, confidence: float | None) -> SearchResult:
    return SearchResult(
        rank=rank,
        video_id=video.id,
        task=serving.names[hit.task],
        task_id=hit.task,
        score=hit.score,
        confidence=confidence,
        captions=video.captions,
        thumbnail_url=thumbnail_url(video.id),
        stream_url=stream_url(video.id),
    )


# -- what may be asked ----------------------------------------------------------------------------------------


def _errors(query: SearchQuery, limits: Settings, at: str) -> Iterator[FieldError]:
    longest, most = limits.max_query_chars, limits.max_results
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
    if query.min_score is not None and not math.isfinite(query.min_score):
        yield FieldError(f"{at}min_score", "This is no score.", "Give a number, such as 0.2.")
    if query.min_confidence is not None and not 0 <= query.min_confidence <= 1:
        yield FieldError(f"{at}min_confidence", "This is no probability.", "Give a number from 0 to 1.")
    if query.task == []:
        yield FieldError(f"{at}task", "The list of tasks is empty.", "Name one, or leave it out for all.")


def _cursor_errors(query: SearchQuery, limits: Settings, at: str) -> Iterator[FieldError]:
    if query.cursor is None:
        return
    cursor = read_cursor(query.cursor)
    if cursor is None:
        yield FieldError(
            f"{at}cursor",
            "This is no cursor of ours, or not all of it.",
            "Send the next_cursor of the page before as it came, or none for the first page.",
        )
    elif differing := cursor.differing(_fingerprints(query, limits)):
        yield FieldError(
            f"{at}cursor",
            f"It belongs to another search: {' and '.join(differing)} {'differ' if differing[1:] else 'differs'}.",
            "Repeat the search that it came from in everything but k, or leave it out.",
        )


def _named_tasks(query: SearchQuery) -> list[str] | None:
    if query.task is None:
        return None
    return [query.task] if isinstance(query.task, str) else sorted(set(query.task))


def _fingerprints(query: SearchQuery, limits: Settings) -> dict[str, str]:
    """Of everything that decides which results come in which order, but for the release."""
    chosen = read_filter(query)
    return fingerprints(
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
            "CINESTRATA_ROUTING_PRIOR": limits.routing_prior,
        }
    )


def candidates(serving: Serving, search: Search) -> tuple[str, ...]:
    """Ids of the tasks to search, in learned order, so that whoever names them in another asks the same."""
    if search.tasks is None:
        return tuple(serving.shards)
    chosen = {_candidate(serving, task, f"{search.at}task") for task in search.tasks}
    return tuple(task for task in serving.shards if task in chosen)


def _candidate(serving: Serving, task: str, field: str) -> str:
    # An id comes first: a task may be named like another one's id.
    named = [task] if task in serving.names else [key for key, name in serving.names.items() if name == task]
    for key in named:
        if key in serving.degraded:
            raise Unavailable(f"Task {serving.names[key]!r} cannot be searched: {serving.degraded[key]}", 30)
        return key
    known = ", ".join(repr(serving.names[key]) for key in list(serving.shards)[:20])
    raise InvalidInput.at(field, f"No learned task is called {task[:100]!r}.", f"Learned so far: {known}.")


def _mode(serving: Serving, search: Search, configured: Settings) -> QueryMode:
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
