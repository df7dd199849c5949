"""Who answers searches in a process, and by which generation of the index. How they are answered is in
:mod:`service.search.text_search.executor`.

A query is answered by one :class:`~service.search.snapshots.search_snapshot.SearchSnapshot` from start to end. A new generation is loaded beside
it and takes over by the swap of one reference, so no request waits, none is dropped, and no answer mixes two releases.
"""

from __future__ import annotations

import os
import time
from asyncio import to_thread
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from threading import Event, Lock, Thread
from typing import Any, BinaryIO

import structlog
import torch
from sqlalchemy import select

from index.errors import ManifestError, ShardStoreError
from index.index_snapshot import IndexSnapshot
from index.scanning.search_threads import use_one_thread_per_search
from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import load_backbone
from models.backbones.precision import compute_device
from models.errors import ModelError
from service.catalog.database import id_chunks, session_scope
from service.catalog.tables import Task
from service.core import request_limits
from service.core.errors import FieldError, Gone, InvalidInput, Unavailable
from service.core.schemas import (
    CaptionsResponse,
    ClipSearchResponse,
    Readiness,
    SearchQuery,
    SearchResponse,
    SimilarVideosResponse,
)
from service.core.settings import Settings, settings
from service.core.thread_priority import lower_thread_priority
from service.library import prometheus_metrics
from service.search.batch_scheduler import Admission, BatchScheduler, Unfinished
from service.search.requests.video_filters import VideoFilter
from service.search.snapshots.search_snapshot import SearchSnapshot
from service.search.text_search.executor import Search, Underway, answer, begin, check, conclude, step
from service.search.video_metadata_cache import VideoMetadataCache
from service.search.video_search.captioning import CaptionSearch, captions_of
from service.search.video_search.clip_search import ClipSearch
from service.search.video_search.similar_search import similar
from service.storage.index_manifest import require_manifest
from service.storage.vector_store_selection import library_store

__all__ = ["SearchEngine"]

log = structlog.get_logger(__name__)

_POLL_SECONDS = 0.5
_RETRY_SECONDS = 30.0  # before what could not be loaded is tried again, in case somebody mended it
_AT_ONCE = 256 * 1024**2  # bytes of shards whose checksums are compared before readiness; the others follow
_BEFORE = 3  # releases that are tried where a process starts and the newest is refused; what ails more is none of them
_KEPT = 2  # earlier releases that are kept in memory for those who are turning their pages
_TOGETHER = 32  # searches that take a step together: more make each of them wait for all
# What is answered takes the interpreter's lock in turns, so few at a time are faster than many; but scans need no lock.
_LANES = max(1, len(os.sched_getaffinity(0)) // 2)
_NOTHING_LEARNED = "no domain has been learned yet; POST /tasks"


class SearchEngine:
    """Answers searches; one per process.

    Use :meth:`start` and :meth:`close`, or drive :meth:`refresh` yourself.

    Attributes:
        last_error: why the newest generation, or the backbone, could not be loaded; None when all is well.
        admit: admission control; entered for the duration of a request that came over the network.
    """

    def __init__(self, configured: Settings | None = None) -> None:
        self.last_error: str | None = None
        self._settings = configured or settings()
        self.admit = Admission(self._settings.limits.max_waiting)
        self._store = library_store(self._settings, device=self._settings.index_device)
        try:
            self._device = compute_device(self._settings.query_device)
        except ModelError as error:
            raise ModelError(f"CINESTRATA_QUERY_DEVICE: {error}") from error
        self._backbone: Backbone | None = None
        self._serving: SearchSnapshot | None = None
        self._facts = VideoMetadataCache()
        self._together: BatchScheduler[Search | Underway, SearchResponse] = BatchScheduler(
            self._step_each, _TOGETHER, _LANES
        )
        self._describer = CaptionSearch()
        self._clips = ClipSearch(self._settings, self._facts, self._describer)
        self._kept: OrderedDict[str, SearchSnapshot] = OrderedDict()  # earlier releases, by id
        self._loading_past = Lock()
        self._looked = False  # at the index, once at least
        self._seen: tuple[int, int, int] | None = None
        self._retry_at: float | None = None  # on the monotonic clock
        self._refreshing = Lock()
        self._stopped = Event()
        self._thread: Thread | None = None
        self._reading: Thread | None = None

    def start(self) -> None:
        """Load what is there, then follow the index in the background."""
        # Requests run beside each other and beside a worker that learns. More threads for each of them do not make
        # one query faster, and where cores are short they make it ten times slower.
        use_one_thread_per_search()
        torch.set_num_threads(self._settings.torch_threads or 1)
        self._stopped.clear()
        self._thread = Thread(target=self._follow, name="follow-index", daemon=True)
        self._thread.start()
        self._reading = Thread(target=self._read_on, name="compare-checksums", daemon=True)
        self._reading.start()

    def close(self) -> None:
        """Stop following the index."""
        self._stopped.set()
        for thread in (self._thread, self._reading):
            if thread is not None:
                thread.join(timeout=5)
        self._clips.close()

    def refresh(self) -> bool:
        """Take over a new generation, if there is one. Cheap when there is none.

        A generation that cannot be served is refused and remembered in :attr:`last_error`; the last good one goes on,
        and a process that has none yet begins with the release before.

        Returns:
            Whether another generation answers now.
        """
        with self._refreshing:
            stamp = self._stamp()
            due = self._retry_at is not None and time.monotonic() >= self._retry_at
            # What broke while it served is looked at right away, and from then on now and again.
            due = due or (self._retry_at is None and bool(self.degraded()))
            if self._looked and stamp == self._seen and not due:
                return False
            self._seen = stamp
            try:
                fresh = self._load()
            except Exception as error:  # whatever a broken release brings up, the last good one goes on
                reason = str(error) or type(error).__name__
                if reason != self.last_error:
                    log.error("release_refused", error=reason, kind=type(error).__name__)
                self.last_error, self._retry_at, self._looked = (
                    reason,
                    time.monotonic() + _RETRY_SECONDS,
                    True,
                )
                earlier = None if self._serving else self._earlier(reason)
                if earlier is not None:
                    self._take_over(earlier)
                return earlier is not None
            if fresh is not None:
                self._take_over(fresh)
            damaged = self._serving is not None and self._serving.degraded
            self._retry_at = time.monotonic() + _RETRY_SECONDS if damaged else None
            self.last_error, self._looked = None, True
            return fresh is not None

    def _take_over(self, fresh: SearchSnapshot) -> None:
        with self._loading_past:
            # Who turns the pages of an earlier release has it loaded anew: from what this generation holds of it, in
            # place of holding all of it twice, and from no folder that this one does without.
            self._kept.clear()
            self._serving = fresh
        prometheus_metrics.GENERATION.set(fresh.snapshot.generation)
        log.info(
            "release_serving",
            generation=fresh.snapshot.generation,
            release=fresh.release,
            tasks=len(fresh.shards),
            degraded=dict(fresh.degraded),
        )

    def _earlier(self, refused: str) -> SearchSnapshot | None:
        """For a process that starts while the newest release is refused: the last one before it that answers. What
        was laid down since is left out by name."""
        backbone = self._backbone
        if backbone is None:
            return None
        with suppress(ShardStoreError, OSError):
            snapshot = IndexSnapshot.open(self._store, max_verified_bytes=_AT_ONCE)
            before = [release for release in snapshot.manifest.releases if release != snapshot.release_id]
            for release in before[: -_BEFORE - 1 : -1]:
                with suppress(ModelError, ShardStoreError, OSError):
                    serving = SearchSnapshot.load(snapshot, backbone, release)
                    later = [task for task in snapshot.manifest.shards if task not in serving.names]
                    serving.degraded.update(dict.fromkeys(later, f"the newest release is refused: {refused}"))
                    return replace(serving, names={**serving.names, **_names(later)})
        return None

    def verify_next_shard(self) -> bool:
        """Compare the checksums of one more of the shards that are served unread, and set it aside if it was altered.

        Readiness does not wait for them: a large library takes minutes to read.

        Returns:
            Whether one was left to read.
        """
        serving = self._serving
        unread = serving.snapshot.unverified_segments if serving else []
        prometheus_metrics.UNVERIFIED_BYTES.set(sum(entry.bytes for entry in unread))
        if serving is None or not unread:
            return False
        try:
            serving.snapshot.verify_segment(unread[0])
        except ShardStoreError as error:
            log.error("shard_set_aside", task=unread[0].task, error=str(error))
            # By whichever answers now. One that is being loaded meanwhile comes to it again.
            current = self._serving or serving
            if unread[0] in current.snapshot.unverified_segments:
                current.set_aside(unread[0].task, error)
        return True

    def readiness(self) -> Readiness:
        """Whether this process can take requests, and what is wrong where something is.

        An empty library is ready: whoever waits for readiness before sending the first task must not wait forever.
        """
        serving, error = self._serving, self.last_error
        loaded = self._backbone is not None
        if serving is not None or error is not None:
            index = error or "ok"
        else:
            index = _NOTHING_LEARNED if self._looked else "still loading"
        return Readiness(
            ready=loaded and (serving is not None or (self._looked and error is None)),
            release=serving.release if serving else None,
            generation=serving.snapshot.generation if serving else 0,
            tasks=len(serving.shards) if serving else 0,
            degraded=serving.named_degraded if serving else {},
            checks={
                "model": "ok" if loaded else error or "still loading",
                "index": index if loaded else "ok",
                **_checksums(serving),
            },
        )

    def degraded(self) -> dict[str, str]:
        """Task id → why it cannot be searched."""
        return dict(self._serving.degraded) if self._serving else {}

    def search(
        self,
        q: str,
        k: int = 10,
        task: str | list[str] | None = None,
        mode: str | None = None,
        **further: Any,
    ) -> SearchResponse:
        """The k videos that fit a text best.

        Args:
            q: the text.
            k: how many results; fewer come back where fewer are left in the catalog.
            task: names or ids of the tasks to search (one: known task); all by default.
            mode: ``pinned``, ``mapped`` or ``latest``; by default the configured one where the release offers it, and
                otherwise its best.
            further: the other fields of :class:`~service.core.schemas.SearchQuery`.

        Raises:
            InvalidInput: names the field.
            Unavailable: nothing was learned yet, or it cannot be loaded.
        """
        # Not validated: its values are checked below, in words of ours.
        query = SearchQuery.model_construct(q=q, k=k, task=task, mode=mode, **further)
        return self._answer(check([query], self._settings, batch=False))[0]

    async def search_async(self, query: SearchQuery) -> SearchResponse:
        """The answer to a query as :meth:`search` gives it, for whoever must not be held up. What is asked meanwhile
        is answered together.

        Raises:
            InvalidInput, Unavailable: as :meth:`search`.
        """
        (search,) = check([query], self._settings, batch=False)
        if search.cursor is None and search.filter == VideoFilter():
            return await self._together(search)
        # It may have to read first, which nobody else is to wait for.
        return (await to_thread(self._answer, [search]))[0]

    def search_many(self, queries: Sequence[SearchQuery]) -> list[SearchResponse]:
        """The answers to several queries, as :meth:`search` gives them one by one. All are by one release, but for
        those whose cursor belongs to another.

        Raises:
            InvalidInput: too many queries, none, or wrong fields, named by the place of their query. None is answered.
            Unavailable: as :meth:`search`.
        """
        most = request_limits.MAX_BATCH_QUERIES
        if not 1 <= len(queries) <= most:
            raise InvalidInput.at(
                "queries", f"A batch of {len(queries)} queries cannot be answered.", f"Send 1 to {most}."
            )
        return self._answer(check(queries, self._settings, batch=True))

    def search_similar(
        self, video_id: str, k: int = 10, scope: str = "task", min_score: float | None = None
    ) -> SimilarVideosResponse:
        """The k videos most like one, by their stored vectors; see :func:`service.search.video_search.similar_search.similar`."""
        return similar(self._current(), self._settings, video_id, k, scope, min_score)

    def search_clip(
        self,
        upload: BinaryIO,
        k: int = 10,
        task: str | list[str] | None = None,
        captions: int | None = None,
        **further: Any,
    ) -> ClipSearchResponse:
        """The k videos most like an uploaded clip or picture; see :class:`service.search.video_search.clip_search.ClipSearch`.

        Args:
            captions: how many texts that describe it to add.
            further: filters and ``min_score`` of :class:`~service.core.schemas.SearchQuery`.
        """
        query = SearchQuery.model_construct(q="clip", k=k, task=task, **further)
        current = self._current()
        if self._backbone is None:
            raise AssertionError("what serves was loaded with a backbone")
        return self._clips.search(current, self._backbone, upload, query, captions)

    def caption_video(self, video_id: str, k: int = 10, scope: str = "task") -> CaptionsResponse:
        """The k texts of the library that fit a video best; see :func:`service.search.video_search.captioning.captions_of`."""
        return captions_of(self._current(), self._settings, self._describer, video_id, k, scope)

    def _step_each(
        self, asked: Sequence[Search | Underway]
    ) -> Sequence[SearchResponse | Exception | Unfinished[Search | Underway]]:
        """What several callers ask, taken a step further together; each as it would be by itself."""
        try:
            return self._step(asked)
        except Exception as error:  # of one of them, which is not to be the others'
            if len(asked) == 1:
                return [error]
            return [stepped for one in asked for stepped in self._step_each([one])]

    def _step(
        self, asked: Sequence[Search | Underway]
    ) -> list[SearchResponse | Exception | Unfinished[Search | Underway]]:
        new = [one for one in asked if isinstance(one, Search)]
        begun = iter(begin(self._current(), new, self._settings, self._facts))
        going = [one if isinstance(one, Underway) else next(begun) for one in asked]
        answers: dict[Underway, SearchResponse] = {}
        # Where another generation has taken over, those that the former one began are finished by it.
        for serving in dict.fromkeys(one.serving for one in going):
            same = [one for one in going if one.serving is serving]
            step(serving, same)
            ended = [one for one in same if not one.wave]
            answers |= zip(ended, conclude(serving, ended, self._settings, self._facts), strict=True)
        return [answers[one] if one in answers else Unfinished(one) for one in going]

    def _answer(self, searches: Sequence[Search]) -> list[SearchResponse]:
        current = self._current()
        by_release: dict[str, list[int]] = {}
        for number, search in enumerate(searches):
            release = search.cursor.release if search.cursor else current.release
            by_release.setdefault(release, []).append(number)
        answers: dict[int, SearchResponse] = {}
        for release, numbers in by_release.items():
            serving = current if release == current.release else self._past(release)
            asked = [searches[number] for number in numbers]
            answers |= zip(numbers, answer(serving, asked, self._settings, self._facts), strict=True)
        return [answers[number] for number in range(len(searches))]

    def _past(self, release: str) -> SearchSnapshot:
        """An earlier release, to go on with a list that it began. It is loaded anew where it is not kept."""
        with self._loading_past:
            if release in self._kept:
                self._kept.move_to_end(release)
                return self._kept[release]
            current, backbone = self._current(), self._backbone
            gone = "The release that began this list is no longer kept"
            if backbone is None or release not in current.snapshot.manifest.releases:
                raise _gone(f"{gone}.")
            try:
                serving = SearchSnapshot.load(current.snapshot, backbone, release, other=current)
            except (ModelError, ShardStoreError, OSError) as error:
                raise _gone(f"{gone} as it was: {error}.") from error
            self._kept[release] = serving
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
            return serving

    def _read_on(self) -> None:
        lower_thread_priority()
        while not self._stopped.is_set():
            if not self.verify_next_shard():
                self._stopped.wait(_POLL_SECONDS)

    def _follow(self) -> None:
        while not self._stopped.is_set():
            self.refresh()
            self._stopped.wait(_POLL_SECONDS)

    def _load(self) -> SearchSnapshot | None:
        """A new generation, ready to answer; None when there is nothing new."""
        if self._backbone is None:
            backbone = load_backbone(self._settings.backbone, self._settings.frames).to(self._device)
            backbone.query_precision = self._settings.query_precision
            self._backbone = backbone
        previous = self._serving
        snapshot = IndexSnapshot.open(
            self._store, previous=previous.snapshot if previous else None, max_verified_bytes=_AT_ONCE
        )
        if previous is None and snapshot.release_id is None:
            with suppress(Unavailable):  # readiness tells of the catalog by itself
                require_manifest(snapshot.manifest)
            return None
        if previous is None:
            return SearchSnapshot.load(snapshot, self._backbone)
        if snapshot.release_id is None:
            raise ManifestError("manifest.json is gone; restore it from a backup")
        if snapshot.manifest == previous.snapshot.manifest and not previous.degraded:
            return None
        fresh = SearchSnapshot.load(snapshot, self._backbone, other=previous)
        same = fresh.snapshot.manifest == previous.snapshot.manifest and fresh.degraded == previous.degraded
        return None if same and fresh.shards.keys() == previous.shards.keys() else fresh

    def _stamp(self) -> tuple[int, int, int] | None:
        """Changes whenever the manifest is replaced."""
        try:
            stat = self._store.manifest_path.stat()
        except OSError:
            return None
        return stat.st_ino, stat.st_mtime_ns, stat.st_size

    def _current(self) -> SearchSnapshot:
        serving = self._serving
        if serving is not None:
            return serving
        if self.last_error:
            raise Unavailable(f"Searches cannot be answered: {self.last_error}", int(_RETRY_SECONDS))
        if not self._looked:
            raise Unavailable("The model is still being loaded; try again in a few seconds.", 2)
        raise Unavailable(f"Nothing can be found: {_NOTHING_LEARNED}.", 10)


def _names(tasks: Sequence[str]) -> dict[str, str]:
    """Task id → name, as the catalog has it; the id where it cannot be asked."""
    names = dict(zip(tasks, tasks, strict=True))
    with suppress(Unavailable), session_scope() as session:
        for some in id_chunks(tasks):
            found = session.execute(select(Task.id, Task.name).where(Task.id.in_(some)))
            names |= {task: name for task, name in found}
    return names


def _checksums(serving: SearchSnapshot | None) -> dict[str, str]:
    """How far the reading of the library is, while it lasts."""
    unread = serving.snapshot.unverified_segments if serving else []
    if serving is None or not unread:
        return {}
    manifest = serving.snapshot.manifest
    total = sum(len(manifest.segments(task)) for task in manifest.shards)
    size = sum(entry.bytes for entry in unread) / 1e9
    return {"checksums": f"{len(unread)} of {total} shards ({size:.1f} GB) are still to be compared"}


def _gone(why: str) -> Gone:
    hint = "Search again without the cursor."
    return Gone(f"cursor: {why} {hint}", [FieldError("cursor", why, hint)])
