"""The search engine: answers text, similar-video, clip and caption queries from the current snapshot.

It admits searches up to a limit, and runs concurrent ones in batches. One
:class:`~service.search.snapshots.search_snapshot.SearchSnapshot` serves a query from start to end, so no response mixes
two releases.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from asyncio import AbstractEventLoop, Future, Task, get_running_loop
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import Any, BinaryIO, Generic, TypeVar

from cinestrata_schemas.library import UncaptionedDomain
from cinestrata_schemas.search import (
    MAX_BATCH_QUERIES,
    CaptionsResponse,
    ClipSearchResponse,
    QueryReport,
    ResultExplanation,
    SearchQuery,
    SearchResponse,
    SimilarVideosResponse,
    SuggestionsResponse,
)
from index.files.manifest_format import task_of
from index.scanning.exact_scan import use_one_thread_per_search
from models.backbones.query_backbone import set_torch_threads
from service.catalog.database import CatalogReads
from service.core import request_limits
from service.core.change_sequence import required_edit
from service.core.errors import InvalidInput, TooManyRequests
from service.core.settings import Settings, settings
from service.search.catalog_read_cache import CatalogReadCache
from service.search.clip_search import ClipSearch
from service.search.explanations import QueryReports, explain_result
from service.search.library_words import LibraryWords, word_files
from service.search.search_request import NO_FILTER, SearchRequest, parse_requests
from service.search.snapshots.search_snapshot import SearchSnapshot
from service.search.snapshots.snapshot_manager import SnapshotManager
from service.search.text_search.answers import answer_searches
from service.search.text_search.executor import UnknownTask, execute
from service.search.text_search.query_words import suggest_words
from service.search.video_search import CaptionIndex, TaskNotLoaded, caption_video, search_similar

MAX_BATCH = 32  # searches; in larger batches, each waits longer for the others
# Batches compete for the interpreter lock, so a few large ones beat many small ones; scans release the lock.
LANES = max(1, len(os.sched_getaffinity(0)) // 2)
# Event loop turns between two batches of a lane: responses are written in the first, the same clients' next requests
# are read in the second and queued in the third. A turn begins with the callbacks from the previous one.
_TURNS_BETWEEN_BATCHES = 4

Item = TypeVar("Item")
Result = TypeVar("Result")
Value = TypeVar("Value")
Response = TypeVar("Response")


class AdmissionControl:
    """Admits concurrent searches up to a number; a request that comes alone always, whatever its size. Thread-safe."""

    def __init__(self, max_admitted: int) -> None:
        self._max_admitted = max_admitted
        self._lock = Lock()
        self._admitted = 0

    @contextmanager
    def admit(self, count: int) -> Iterator[None]:
        """Hold a place for a request with ``count`` searches during the ``with`` block; raises TooManyRequests."""
        with self._lock:
            self.check(count)
            self._admitted += count
        try:
            yield
        finally:
            with self._lock:
                self._admitted -= count

    def check(self, count: int = 1) -> None:
        """Check whether a request would be admitted now; raises TooManyRequests as :meth:`admit`."""
        if self._admitted and self._admitted + count > self._max_admitted:
            raise TooManyRequests(
                f"The server is busy: {self._admitted} searches are waiting or running, this request "
                f"adds {count}, and the limit is {self._max_admitted}. Try again in a second."
            )


class BatchScheduler(Generic[Item, Result]):
    """Runs a function over batches of items that arrive concurrently on one event loop, on ``lanes`` threads.

    No item is delayed to fill a batch: batches grow because items queue up while others run. Waiting coroutines occupy
    no thread.

    Args:
        run: Function that returns the result or the exception of each item in a batch, in order. If it raises, every
            item gets the exception.
        max_wait: Maximum wait in seconds. Items that waited longer are refused.
    """

    def __init__(
        self,
        run: Callable[[list[Item]], Sequence[Result | Exception]],
        *,
        max_batch: int,
        lanes: int = 1,
        max_wait: float = math.inf,
    ) -> None:
        self._run = run
        self._max_batch = max_batch
        self._max_wait = max_wait
        # Used only in the event loop's thread, except for reading the queue length.
        self._lanes = lanes
        self._free_lanes = lanes
        self._running: set[Task[None]] = set()
        self._loop: AbstractEventLoop | None = None
        self._queue: deque[tuple[Item, Future[Result], float]] = deque()  # with the times of refusal
        self._threads = ThreadPoolExecutor(lanes, "search-lane")

    @property
    def queue_length(self) -> int:
        """Number of submitted items that wait."""
        return len(self._queue)

    async def submit(self, item: Item) -> Result:
        """Queue an item and wait for its result.

        Items that arrive while a lane is free start together at the end of the current event loop turn. A lane pauses
        for a few turns after each batch, so that the clients it answered can send their next requests: one large batch
        costs less than two small ones. An item that is cancelled while it waits does not run.

        Raises:
            TooManyRequests: The item waited longer than ``max_wait``.
            Exception: Whatever the function raised, or returned for the item.
        """
        loop = get_running_loop()
        if loop is not self._loop:  # the previous event loop has ended, along with its lanes
            self._loop, self._free_lanes, self._queue = loop, self._lanes, deque()
        future: Future[Result] = loop.create_future()
        self._queue.append((item, future, time.monotonic() + self._max_wait))
        if len(self._queue) == 1:  # else, a lane that is busy or about to start takes the item
            self._start_lane()
        return await future

    async def run_blocking(self, function: Callable[..., Value], *args: object) -> Value:
        """Run a function that may block on the catalog or the disk in a thread besides the lanes.

        Raises TooManyRequests if no thread was free within ``max_wait``.
        """
        latest = time.monotonic() + self._max_wait

        def call() -> Value:
            if time.monotonic() > latest:
                raise self._late_error()
            return function(*args)

        return await asyncio.to_thread(call)

    def _late_error(self) -> TooManyRequests:
        return TooManyRequests(
            f"The server is busy: the search didn't start within {self._max_wait:g} seconds. Try again in a second."
        )

    def _start_lane(self) -> None:
        """Start a free lane, if there is one, in the next event loop turn."""
        if self._free_lanes:
            self._free_lanes -= 1
            lane = get_running_loop().create_task(self._run_lane())
            self._running.add(lane)  # the event loop holds only a weak reference
            lane.add_done_callback(self._running.discard)

    async def _run_lane(self) -> None:
        """Run batches from the head of the queue until it is empty."""
        while self._queue:
            batch: list[tuple[Item, Future[Result]]] = []
            now = time.monotonic()
            while self._queue and len(batch) < self._max_batch:
                item, future, latest = self._queue.popleft()
                if future.done():  # its request was cancelled
                    continue
                if now > latest:
                    future.set_exception(self._late_error())
                else:
                    batch.append((item, future))
            if not batch:
                break
            if self._queue:
                self._start_lane()
            outcomes: Sequence[Result | Exception]
            try:
                items = [item for item, _ in batch]
                outcomes = await get_running_loop().run_in_executor(self._threads, self._run, items)
            except Exception as error:  # raised to every caller of the batch
                outcomes = [error] * len(batch)
            for (_, future), outcome in zip(batch, outcomes, strict=True):
                if future.done():  # its request was cancelled
                    continue
                if isinstance(outcome, Exception):
                    future.set_exception(outcome)
                else:
                    future.set_result(outcome)
            for _ in range(_TURNS_BETWEEN_BATCHES):
                await asyncio.sleep(0)
        self._free_lanes += 1


class SearchEngine:
    """Answers a process's searches. Thread-safe.

    A server calls :meth:`start` and :meth:`close`; a one-off command calls ``snapshots.refresh()`` once instead.
    """

    def __init__(self, configured: Settings | None = None) -> None:
        self.settings = configured or settings()
        self.catalog_reads = CatalogReads()
        words = LibraryWords(self.catalog_reads, word_files(self.settings))
        self.snapshots = SnapshotManager(self.settings, self.catalog_reads, words)
        self.scheduler: BatchScheduler[SearchRequest, SearchResponse] = BatchScheduler(
            self._answer_batch, max_batch=MAX_BATCH, lanes=LANES, max_wait=self.settings.max_wait_seconds
        )
        self.admission = AdmissionControl(request_limits.MAX_WAITING_TEXTS)
        self.read_cache = CatalogReadCache(self.catalog_reads, self.snapshots.changed_ids, words=words)
        self.caption_index = CaptionIndex()
        self.clips = ClipSearch(self.settings, self.read_cache, self.caption_index)
        self.query_reports = QueryReports(self.settings, self.read_cache)

    def start(self) -> None:
        """Load the newest generation and start the background threads that follow the index."""
        # Requests run concurrently, and a worker may train on the same machine. With more threads per request, no query
        # is faster, and each is ten times slower when cores are scarce.
        use_one_thread_per_search()
        set_torch_threads(self.settings.torch_threads or 1)
        self.snapshots.start()
        self.read_cache.start(self.snapshots.loaded)

    def close(self) -> None:
        """Stop the background threads and the decoder process."""
        self.read_cache.close()
        self.snapshots.close()
        self.catalog_reads.close()
        self.clips.close()

    # -- text ---------------------------------------------------------------------------------------------------

    def search(
        self,
        q: str,
        k: int = 10,
        task: str | list[str] | None = None,
        mode: str | None = None,
        **parameters: Any,
    ) -> SearchResponse:
        """Find the k videos that best match a text, with other fields of :class:`SearchQuery` as parameters.

        Raises InvalidInput, and Unavailable if no snapshot is loaded or a requested task cannot be searched.
        """
        # Built without pydantic validation: parse_requests validates the values.
        query = SearchQuery.model_construct(q=q, k=k, task=task, mode=mode, **parameters)
        return self._answer(parse_requests([query], self.settings))[0]

    async def search_async(self, query: SearchQuery) -> SearchResponse:
        """Run :meth:`search` without blocking the event loop. Concurrent searches share batches."""
        (request,) = parse_requests([query], self.settings)
        # Filters and earlier releases may need a read, which must not delay the other searches in the batch.
        if request.cursor is None and request.filter is NO_FILTER:
            if required_edit():  # before the batch, which others share
                await self.scheduler.run_blocking(self._follow_caller)
            try:
                return await self.scheduler.submit(request)
            except UnknownTask:  # the snapshot may lag behind the catalog
                pass
        return (await self.scheduler.run_blocking(self._answer, [request]))[0]

    def search_many(self, queries: Sequence[SearchQuery]) -> list[SearchResponse]:
        """Run :meth:`search` for several queries, all on one release except those with a cursor.

        If one is invalid, none runs, and the error names it by position.
        """
        if not 1 <= len(queries) <= MAX_BATCH_QUERIES:
            raise InvalidInput.at(
                "queries", f"The batch has {len(queries)} queries.", f"Send 1 to {MAX_BATCH_QUERIES} queries."
            )
        return self._answer(parse_requests(queries, self.settings, is_batch=True))

    def _answer(self, requests: Sequence[SearchRequest]) -> list[SearchResponse]:
        """Answer requests; those with a cursor, on the release that produced their list."""
        self._follow_caller()
        current = self.snapshots.current()
        by_release: dict[str, list[int]] = {}
        for number, request in enumerate(requests):
            release_id = request.cursor.release if request.cursor else current.release_id
            by_release.setdefault(release_id, []).append(number)
        responses: dict[int, SearchResponse] = {}
        for release_id, numbers in by_release.items():
            group = [requests[number] for number in numbers]
            if release_id == current.release_id:
                run = partial(execute, requests=group, cache=self.read_cache)
                searches = self._with_loaded_tasks(run, current)
            else:
                searches = execute(self.snapshots.of_release(release_id), group, self.read_cache)
            responses |= zip(numbers, answer_searches(searches), strict=True)
        return [responses[number] for number in range(len(requests))]

    def _follow_caller(self) -> None:
        """Read the edits of the request's caller, unless they were read."""
        if edit := required_edit():
            self.read_cache.follow(edit)

    def _answer_batch(self, requests: Sequence[SearchRequest]) -> Sequence[SearchResponse | Exception]:
        """Answer concurrent requests for new lists. An invalid one does not affect the others."""
        snapshot = self.snapshots.current()
        try:
            return answer_searches(execute(snapshot, requests, self.read_cache))
        except Exception as error:
            if len(requests) == 1:
                return [error]
            return [outcome for request in requests for outcome in self._answer_batch([request])]

    def suggest(self, q: str, k: int = 8) -> SuggestionsResponse:
        """Suggest words of the library; see :func:`service.search.text_search.query_words.suggest_words`."""
        self.read_cache.follow(required_edit())
        return suggest_words(self.read_cache.words.texts.words, q, k)

    # -- explanations -------------------------------------------------------------------------------------------

    def report_queries(self, name_or_id: str, worst: int = 10) -> QueryReport:
        """Search with a domain's own captions and report how they rank; see :mod:`service.search.explanations`."""
        return self._with_loaded_tasks(
            lambda snapshot: self.query_reports.report(snapshot, name_or_id, worst)
        )

    def explain(self, video_id: str, query: SearchQuery) -> ResultExplanation:
        """Break down a video's score; see :func:`service.search.explanations.explain_result`."""
        (request,) = parse_requests([query], self.settings)
        return self._with_loaded_tasks(
            lambda snapshot: explain_result(snapshot, self.read_cache, video_id, request)
        )

    def find_uncaptioned(self) -> UncaptionedDomain | None:
        """Find the domain with the most videos without captions, among those in which most videos have none."""
        snapshot, words = self.snapshots.loaded(), self.read_cache.words
        if snapshot is None or words.problem is not None:
            return None
        videos, uncaptioned = Counter[str](), Counter[str]()
        missing = words.captions_of(snapshot.video_tasks).uncaptioned_counts
        for key, number in snapshot.task_indices.items():
            videos[task_of(key)] += int(snapshot.video_tasks.counts[number])
            uncaptioned[task_of(key)] += int(missing[number])
        for task, count in uncaptioned.most_common():
            if 2 * count > videos[task]:
                name = snapshot.task_names.get(task, task)
                return UncaptionedDomain(task_id=task, task=name, videos=videos[task], uncaptioned=count)
        return None

    # -- videos -------------------------------------------------------------------------------------------------

    def search_similar(
        self, video_id: str, k: int = 10, scope: str = "task", min_score: float | None = None
    ) -> SimilarVideosResponse:
        """Find the k videos most similar to a library video; see :mod:`service.search.video_search`."""
        return self._with_loaded_tasks(
            lambda snapshot: search_similar(snapshot, video_id, k=k, scope=scope, min_score=min_score)
        )

    def search_clip(
        self,
        upload: BinaryIO,
        k: int = 10,
        task: str | list[str] | None = None,
        captions: int | None = None,
        **parameters: Any,
    ) -> ClipSearchResponse:
        """Find the k videos most similar to an uploaded clip or picture; see :mod:`service.search.clip_search`.

        Args:
            captions: Number of captions to return for the clip; None: none.
            parameters: Filters and ``min_score`` of :class:`SearchQuery`.
        """
        # Clip searches have no text.
        query = SearchQuery.model_construct(q="clip", k=k, task=task, **parameters)
        return self._with_loaded_tasks(
            lambda snapshot: self.clips.search(snapshot, upload, query=query, captions=captions)
        )

    def caption_video(self, video_id: str, k: int = 10, scope: str = "task") -> CaptionsResponse:
        """Find the k library captions nearest to a video; see :mod:`service.search.video_search`."""
        return self._with_loaded_tasks(
            lambda snapshot: caption_video(snapshot, self.caption_index, video_id, k=k, scope=scope)
        )

    def _with_loaded_tasks(
        self, answer: Callable[[SearchSnapshot], Response], snapshot: SearchSnapshot | None = None
    ) -> Response:
        """Answer from the current snapshot, or from a newer one if a ready task is missing."""
        self._follow_caller()
        snapshot = snapshot or self.snapshots.current()
        while True:
            try:
                return answer(snapshot)
            except (UnknownTask, TaskNotLoaded) as error:
                newer = self.snapshots.catch_up(error.task, snapshot)
                if newer is None:
                    raise
                snapshot = newer
