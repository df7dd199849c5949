"""The search engine: answers text, similar-video, clip and caption queries from the current snapshot.

One :class:`~service.search.snapshots.search_snapshot.SearchSnapshot` serves a query from start to end, so no response
mixes two releases.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, BinaryIO, TypeVar

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
from index.scanning.exact_scan import use_one_thread_per_search
from models.backbones.query_backbone import set_torch_threads
from service.catalog.database import CatalogReads
from service.core import request_limits
from service.core.errors import InvalidInput
from service.core.settings import Settings, settings
from service.search.catalog_read_cache import CatalogReadCache
from service.search.clip_search import ClipSearch
from service.search.explanations import QueryReports, explain_result
from service.search.library_words import LibraryWords
from service.search.search_load import AdmissionControl, BatchScheduler
from service.search.search_request import NO_FILTER, SearchRequest, parse_requests
from service.search.snapshots.search_snapshot import SearchSnapshot
from service.search.snapshots.snapshot_manager import SnapshotManager
from service.search.text_search.answers import answer_searches
from service.search.text_search.executor import UnknownTask, execute
from service.search.text_search.query_words import suggest_words
from service.search.video_metadata_cache import VideoMetadataCache
from service.search.video_search import CaptionIndex, TaskNotLoaded, caption_video, search_similar

MAX_BATCH = 32  # searches; in larger batches, each waits longer for the others
# Batches compete for the interpreter lock, so a few large ones beat many small ones; scans release the lock.
LANES = max(1, len(os.sched_getaffinity(0)) // 2)

Response = TypeVar("Response")


class SearchEngine:
    """Answers a process's searches. Thread-safe.

    A server calls :meth:`start` and :meth:`close`; a one-off command calls ``snapshots.refresh()`` once instead.
    """

    def __init__(self, configured: Settings | None = None) -> None:
        self.settings = configured or settings()
        self.catalog_reads = CatalogReads()
        words = LibraryWords(self.catalog_reads)
        self.snapshots = SnapshotManager(self.settings, self.catalog_reads, words)
        self.scheduler: BatchScheduler[SearchRequest, SearchResponse] = BatchScheduler(
            self._answer_batch, max_batch=MAX_BATCH, lanes=LANES, max_wait=self.settings.max_wait_seconds
        )
        self.admission = AdmissionControl(request_limits.MAX_WAITING_TEXTS)
        self.read_cache = CatalogReadCache(self.catalog_reads, self.snapshots.changed_ids)
        self.metadata_cache = VideoMetadataCache(
            read_cache=self.read_cache, reads=self.catalog_reads, words=words
        )
        self.caption_index = CaptionIndex()
        self.clips = ClipSearch(self.settings, self.metadata_cache, self.caption_index)
        self.query_reports = QueryReports(self.settings, self.metadata_cache)

    def start(self) -> None:
        """Load the newest generation and start the background threads that follow the index."""
        # Requests run concurrently, and a worker may train on the same machine. With more threads per request, no query
        # is faster, and each is ten times slower when cores are scarce.
        use_one_thread_per_search()
        set_torch_threads(self.settings.torch_threads or 1)
        self.snapshots.start()
        self.read_cache.start(self.snapshots.loaded, self.metadata_cache.preload)

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

        Raises:
            InvalidInput: A parameter is invalid.
            Unavailable: No snapshot is loaded, or a requested task cannot be searched.
        """
        # Built without pydantic validation: parse_requests validates the values.
        query = SearchQuery.model_construct(q=q, k=k, task=task, mode=mode, **parameters)
        return self._answer(parse_requests([query], self.settings))[0]

    async def search_async(self, query: SearchQuery) -> SearchResponse:
        """Run :meth:`search` without blocking the event loop. Concurrent searches share batches."""
        (request,) = parse_requests([query], self.settings)
        # Filters and earlier releases may need a read, which must not delay the other searches in the batch.
        if request.cursor is None and request.filter == NO_FILTER:
            try:
                return await self.scheduler.submit(request)
            except UnknownTask:  # the snapshot may lag behind the catalog
                pass
        return (await self.scheduler.run_blocking(self._answer, [request]))[0]

    def search_many(self, queries: Sequence[SearchQuery]) -> list[SearchResponse]:
        """Run :meth:`search` for several queries, all on one release except those with a cursor.

        Raises:
            InvalidInput: The batch is empty or too large, or it has invalid queries, which the error names by position.
                No query runs.
            Unavailable: As :meth:`search`.
        """
        if not 1 <= len(queries) <= MAX_BATCH_QUERIES:
            raise InvalidInput.at(
                "queries", f"The batch has {len(queries)} queries.", f"Send 1 to {MAX_BATCH_QUERIES} queries."
            )
        return self._answer(parse_requests(queries, self.settings, is_batch=True))

    def _answer(self, requests: Sequence[SearchRequest]) -> list[SearchResponse]:
        """Answer requests; those with a cursor, on the release that produced their list."""
        current = self.snapshots.current()
        by_release: dict[str, list[int]] = {}
        for number, request in enumerate(requests):
            release_id = request.cursor.release if request.cursor else current.release_id
            by_release.setdefault(release_id, []).append(number)
        responses: dict[int, SearchResponse] = {}
        for release_id, numbers in by_release.items():
            group = [requests[number] for number in numbers]
            if release_id == current.release_id:
                answers = self._with_loaded_tasks(partial(self._answer_on, requests=group), current)
            else:
                answers = self._answer_on(self.snapshots.of_release(release_id), group)
            responses |= zip(numbers, answers, strict=True)
        return [responses[number] for number in range(len(requests))]

    def _answer_on(self, snapshot: SearchSnapshot, requests: Sequence[SearchRequest]) -> list[SearchResponse]:
        searches = execute(snapshot, requests, self.metadata_cache)
        return answer_searches(snapshot, searches, self.metadata_cache)

    def _answer_batch(self, requests: Sequence[SearchRequest]) -> Sequence[SearchResponse | Exception]:
        """Answer concurrent requests for new lists. An invalid one does not affect the others."""
        snapshot = self.snapshots.current()
        try:
            return self._answer_on(snapshot, requests)
        except Exception as error:
            if len(requests) == 1:
                return [error]
            return [outcome for request in requests for outcome in self._answer_batch([request])]

    def suggest(self, q: str, k: int = 8) -> SuggestionsResponse:
        """Suggest words of the library; see :func:`service.search.text_search.query_words.suggest_words`."""
        return suggest_words(self.metadata_cache.words.current(), q, k)

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
            lambda snapshot: explain_result(snapshot, self.metadata_cache, video_id, request)
        )

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
        snapshot = snapshot or self.snapshots.current()
        while True:
            try:
                return answer(snapshot)
            except (UnknownTask, TaskNotLoaded) as error:
                newer = self.snapshots.catch_up(error.task, snapshot)
                if newer is None:
                    raise
                snapshot = newer
