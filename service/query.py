"""The query path: encode, route, search every shard with its own vector, merge.

A query is answered by one :class:`~service.serving.Serving` from start to end. A new generation is loaded beside
it and takes over by the swap of one reference, so no request waits, none is dropped, and no answer mixes two releases.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from threading import Event, Lock, Thread
from typing import NamedTuple, cast

import numpy as np
import structlog
import torch
from sqlalchemy import select

from index import Hit, Hits, ManifestError, ShardStore, Snapshot, merge, one_thread_per_search
from models.backbone import Backbone, load_backbone
from service import metrics
from service.catalog.database import session_scope
from service.catalog.models import Video
from service.errors import FieldError, InvalidInput, Unavailable
from service.library import stream_url, thumbnail_url
from service.serving import Serving
from service.settings import QueryMode, Settings, settings
from service.views import ReadyView, RoutingView, SearchResponse, SearchResult, TimingView

__all__ = ["QueryService"]

log = structlog.get_logger(__name__)

_POLL_SECONDS = 0.5
_RETRY_SECONDS = 30.0  # before what could not be loaded is tried again, in case somebody mended it
_NOTHING_LEARNED = "no domain has been learned yet; POST /tasks"


class QueryService:
    """Answers searches; one per process.

    Use :meth:`start` and :meth:`close`, or drive :meth:`refresh` yourself.

    Attributes:
        last_error: why the newest generation, or the backbone, could not be loaded; None when all is well.
    """

    def __init__(self, configured: Settings | None = None) -> None:
        self.last_error: str | None = None
        self._settings = configured or settings()
        self._store = ShardStore(self._settings.index_dir, open_bytes=self._settings.open_bytes)
        self._backbone: Backbone | None = None
        self._serving: Serving | None = None
        self._looked = False  # at the index, once at least
        self._seen: tuple[int, int, int] | None = None
        self._retry_at: float | None = None  # on the monotonic clock
        self._refreshing = Lock()
        self._stopped = Event()
        self._thread: Thread | None = None

    def start(self) -> None:
        """Load what is there, then follow the index in the background."""
        # Requests run beside each other and beside a worker that learns. More threads for each of them do not make
        # one query faster, and where cores are short they make it ten times slower.
        one_thread_per_search()
        torch.set_num_threads(self._settings.torch_threads or 1)
        self._stopped.clear()
        self._thread = Thread(target=self._follow, name="follow-index", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop following the index."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def refresh(self) -> bool:
        """Take over a new generation, if there is one. Cheap when there is none.

        A generation that cannot be served is refused and remembered in :attr:`last_error`; the last good one
        goes on.

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
                return False
            if fresh is not None:
                self._serving = fresh
                metrics.GENERATION.set(fresh.snapshot.generation)
                log.info(
                    "release_serving",
                    generation=fresh.snapshot.generation,
                    release=fresh.snapshot.release_id,
                    tasks=len(fresh.shards),
                    degraded=dict(fresh.degraded),
                )
            damaged = self._serving is not None and self._serving.degraded
            self._retry_at = time.monotonic() + _RETRY_SECONDS if damaged else None
            self.last_error, self._looked = None, True
            return fresh is not None

    def ready(self) -> ReadyView:
        """Whether this process can take requests, and what is wrong where something is.

        An empty library is ready: whoever waits for readiness before sending the first task must not wait forever.
        """
        serving, error = self._serving, self.last_error
        loaded = self._backbone is not None
        if serving is not None or error is not None:
            index = error or "ok"
        else:
            index = _NOTHING_LEARNED if self._looked else "still loading"
        return ReadyView(
            ready=loaded and (serving is not None or (self._looked and error is None)),
            release=serving.snapshot.release_id if serving else None,
            generation=serving.snapshot.generation if serving else 0,
            tasks=len(serving.shards) if serving else 0,
            degraded=_named(serving) if serving else {},
            checks={
                "model": "ok" if loaded else error or "still loading",
                "index": index if loaded else "ok",
            },
        )

    def degraded(self) -> dict[str, str]:
        """Task id → why it cannot be searched."""
        return dict(self._serving.degraded) if self._serving else {}

    def search(self, q: str, k: int = 10, task: str | None = None, mode: str | None = None) -> SearchResponse:
        """The k videos that fit a text best.

        Args:
            q: the text.
            k: how many results; fewer come back where fewer are left in the catalog.
            task: name or id of the one task to search (known task); all by default.
            mode: ``pinned``, ``mapped`` or ``latest``; by default the configured one where the release offers it, and
                otherwise its best.

        Raises:
            InvalidInput: names the field.
            Unavailable: nothing was learned yet, or it cannot be loaded.
        """
        start = time.perf_counter()
        text = self._checked(q, k)
        serving = self._current()
        tasks = _candidates(serving, task)
        chosen = self._mode(serving, mode)

        encoded = serving.encode(text, chosen, tasks)
        after_encode = time.perf_counter()
        routing = serving.route(encoded, tasks)
        after_route = time.perf_counter()
        # strict: one vector for each task, in the order of the tasks
        queries = dict(zip(tasks, encoded.vectors, strict=True))
        # Cosines of differently conditioned encoders are made comparable by what routing says of their tasks.
        lift = {name: self._settings.routing_prior * log_weight for name, log_weight in routing}
        hits = {name: _lifted(serving.search(name, v, k), lift[name]) for name, v in queries.items()}
        after_search = time.perf_counter()
        results = _results(merge(hits, k), serving)
        end = time.perf_counter()

        return SearchResponse(
            query=q,
            release=serving.snapshot.release_id,
            generation=serving.snapshot.generation,
            mode=chosen,
            results=results,
            routing=[
                RoutingView(task=serving.names[name], task_id=name, weight=math.exp(log_weight))
                for name, log_weight in routing
            ],
            timing_ms=TimingView(
                encode=1000 * (after_encode - start),
                route=1000 * (after_route - after_encode),
                search=1000 * (after_search - after_route),
                merge=1000 * (end - after_search),
                total=1000 * (end - start),
            ),
            degraded=_named(serving),
        )

    def _follow(self) -> None:
        while not self._stopped.is_set():
            self.refresh()
            self._stopped.wait(_POLL_SECONDS)

    def _load(self) -> Serving | None:
        """A new generation, ready to answer; None when there is nothing new."""
        if self._backbone is None:
            self._backbone = load_backbone(self._settings.backbone, self._settings.frames)
        previous = self._serving
        snapshot = Snapshot.open(self._store, previous=previous.snapshot if previous else None)
        if previous is None:
            return Serving.load(snapshot, self._backbone) if snapshot.release_id else None
        if snapshot.release_id is None:
            raise ManifestError("manifest.json is gone; restore it from a backup")
        if snapshot.manifest == previous.snapshot.manifest and not previous.degraded:
            return None
        fresh = Serving.load(snapshot, self._backbone)
        same = fresh.snapshot.manifest == previous.snapshot.manifest and fresh.degraded == previous.degraded
        return None if same and fresh.shards.keys() == previous.shards.keys() else fresh

    def _stamp(self) -> tuple[int, int, int] | None:
        """Changes whenever the manifest is replaced."""
        try:
            stat = self._store.manifest_path.stat()
        except OSError:
            return None
        return stat.st_ino, stat.st_mtime_ns, stat.st_size

    def _current(self) -> Serving:
        serving = self._serving
        if serving is not None:
            return serving
        if self.last_error:
            raise Unavailable(f"Searches cannot be answered: {self.last_error}", int(_RETRY_SECONDS))
        if not self._looked:
            raise Unavailable("The model is still being loaded; try again in a few seconds.", 2)
        raise Unavailable(f"Nothing can be found: {_NOTHING_LEARNED}.", 10)

    def _checked(self, q: str, k: int) -> str:
        errors = []
        limit, most = self._settings.max_query_chars, self._settings.max_results
        if not q.strip():
            errors.append(FieldError("q", "The query is empty.", "Say what is seen, in a few words."))
        elif len(q) > limit:
            errors.append(
                FieldError(
                    "q", f"The query has {len(q)} characters.", f"Use at most {limit}; a sentence is best."
                )
            )
        elif "\0" in q or any("\ud800" <= character <= "\udfff" for character in q):
            errors.append(
                FieldError("q", "The query holds characters that are not text.", "Send plain Unicode.")
            )
        if not 1 <= k <= most:
            # A number of ten thousand digits is not repeated to whoever sent it.
            said = f"{k} results" if abs(k) < 10**9 else "So many results"
            errors.append(FieldError("k", f"{said} cannot be given.", f"Ask for 1 to {most}."))
        if errors:
            raise InvalidInput.of(errors)
        return q.strip()

    def _mode(self, serving: Serving, mode: str | None) -> QueryMode:
        offered = serving.modes
        if mode is None:
            return self._settings.served_mode(offered)
        if mode not in offered:
            raise InvalidInput.at(
                "mode", f"Mode {mode[:40]!r} is not offered by this release.", f"Use {' or '.join(offered)}."
            )
        return cast(QueryMode, mode)


def _candidates(serving: Serving, task: str | None) -> tuple[str, ...]:
    """Ids of the tasks to search."""
    if task is None:
        return tuple(serving.shards)
    # An id comes first: a task may be named like another one's id.
    named = [task] if task in serving.names else [key for key, name in serving.names.items() if name == task]
    for key in named:
        if key in serving.degraded:
            raise Unavailable(f"Task {serving.names[key]!r} cannot be searched: {serving.degraded[key]}", 30)
        return (key,)
    known = ", ".join(repr(serving.names[key]) for key in list(serving.shards)[:20])
    raise InvalidInput.at("task", f"No learned task is called {task[:100]!r}.", f"Learned so far: {known}.")


class _Found(NamedTuple):
    id: str
    captions: list[str]


def _lifted(hits: Hits, by: float) -> Hits:
    return Hits(hits.ids, hits.scores + np.float32(by))


def _results(hits: Sequence[Hit], serving: Serving) -> list[SearchResult]:
    """Hits with what the catalog says of them, asked in one query; those that it does not know are left out."""
    if not hits:
        return []
    with session_scope() as session:
        rows = session.execute(
            select(Video.vector_id, Video.id, Video.captions).where(
                Video.vector_id.in_([hit.id for hit in hits])
            )
        )
        videos = {vector_id: _Found(video_id, captions) for vector_id, video_id, captions in rows}
    return [
        SearchResult(
            rank=rank,
            video_id=videos[hit.id].id,
            task=serving.names[hit.task],
            task_id=hit.task,
            score=hit.score,
            captions=videos[hit.id].captions,
            thumbnail_url=thumbnail_url(videos[hit.id].id),
            stream_url=stream_url(videos[hit.id].id),
        )
        for rank, hit in enumerate((hit for hit in hits if hit.id in videos), start=1)
    ]


def _named(serving: Serving) -> dict[str, str]:
    return {serving.names.get(task, task): why for task, why in serving.degraded.items()}
