"""The query path: encode, route, search every shard with its own vector, merge.

A query is answered by one :class:`~service.serving.Serving` from start to end. A new generation is loaded beside
it and takes over by the swap of one reference, so no request waits, none is dropped, and no answer mixes two releases.
"""

from __future__ import annotations

import time
from threading import Event, Lock, Thread
from urllib.parse import quote

import numpy as np
import structlog
import torch
from sqlalchemy import select

from index import ShardStore, ShardStoreError, Snapshot, merge, one_thread_per_search
from models.backbone import Backbone, load_backbone
from models.errors import ModelError
from service.catalog.database import session_scope
from service.catalog.models import Video
from service.errors import FieldError, InvalidInput, Unavailable
from service.serving import Serving
from service.settings import Settings, settings
from service.views import ReadyView, RoutingView, SearchResponse, SearchResult, TimingView

__all__ = ["QueryService"]

log = structlog.get_logger(__name__)

_POLL_SECONDS = 0.5


class QueryService:
    """Answers searches; one per process.

    Use :meth:`start` and :meth:`close`, or drive :meth:`refresh` yourself.
    """

    def __init__(self, configured: Settings | None = None) -> None:
        self._settings = configured or settings()
        self._store = ShardStore(self._settings.index_dir)
        self._backbone: Backbone | None = None
        self._serving: Serving | None = None
        self._seen: tuple[int, int, int] | None = None
        self._last_error: str | None = None
        self._refreshing = Lock()
        self._stopped = Event()
        self._thread: Thread | None = None

    def start(self) -> None:
        """Load what is there, then follow the index in the background."""
        one_thread_per_search()
        if self._settings.torch_threads:
            torch.set_num_threads(self._settings.torch_threads)
        self._thread = Thread(target=self._follow, name="follow-index", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop following the index."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def refresh(self) -> bool:
        """Take over a new generation, if there is one. Cheap when there is none.

        A generation that cannot be served is refused and remembered in :meth:`ready`; the last good one goes on.

        Returns:
            Whether another generation answers now.
        """
        with self._refreshing:
            backbone = self._loaded_backbone()
            seen = self._stamp()
            if backbone is None or seen == self._seen:
                return False
            self._seen = seen
            try:
                previous = self._serving
                snapshot = Snapshot.open(self._store, previous=previous.snapshot if previous else None)
                if snapshot.release_id is None:
                    return False
                self._serving = Serving.load(snapshot, backbone)
            except (ShardStoreError, ModelError, OSError) as error:
                self._last_error = str(error)
                log.error("release_refused", error=str(error))
                return False
            self._last_error = None
            log.info("release_serving", generation=snapshot.generation, release=snapshot.release_id)
            return True

    def ready(self) -> ReadyView:
        """Whether searches can be answered, and what is wrong where something is."""
        serving = self._serving
        return ReadyView(
            ready=self._backbone is not None and serving is not None,
            release=serving.snapshot.release_id if serving else None,
            generation=serving.snapshot.generation if serving else 0,
            tasks=len(serving.tasks) if serving else 0,
            degraded=self._degraded(serving) if serving else {},
            checks={
                "model": "ok" if self._backbone is not None else self._last_error or "still loading",
                "index": self._last_error or "ok",
            },
        )

    def degraded(self) -> dict[str, str]:
        """Task id → why its shard cannot be searched."""
        return dict(self._serving.snapshot.degraded) if self._serving else {}

    def search(self, q: str, k: int = 10, task: str | None = None, mode: str | None = None) -> SearchResponse:
        """The k videos that fit a text best.

        Args:
            q: the text.
            k: how many results.
            task: name or id of the one task to search (known task); all by default.
            mode: ``latest`` or ``pinned``; the configured one where the release offers it.

        Raises:
            InvalidInput: names the field.
            Unavailable: nothing was learned yet.
        """
        start = time.perf_counter()
        text = self._checked(q, k)
        serving = self._current()
        tasks = self._candidates(serving, task)
        chosen = self._mode(serving, mode)

        encoded = serving.encode(text, chosen)
        after_encode = time.perf_counter()
        routing = serving.route(encoded, tasks)
        after_route = time.perf_counter()
        row = {name: position for position, name in enumerate(serving.tasks)}
        hits = {
            name: serving.snapshot.shard(name, fingerprint=serving.fingerprint(name)).search(
                np.asarray(encoded.vectors[row[name]]), k
            )
            for name in tasks
        }
        after_search = time.perf_counter()
        found = merge(hits, k)
        videos = _videos([hit.id for hit in found])
        results = [
            SearchResult(
                rank=rank,
                video_id=videos[hit.id].id,
                task=serving.names[hit.task],
                task_id=hit.task,
                score=hit.score,
                captions=videos[hit.id].captions,
                thumbnail_url=f"/videos/{quote(videos[hit.id].id, safe='')}/thumbnail",
                stream_url=f"/videos/{quote(videos[hit.id].id, safe='')}/stream",
            )
            for rank, hit in enumerate((hit for hit in found if hit.id in videos), start=1)
        ]
        end = time.perf_counter()
        return SearchResponse(
            query=q,
            release=serving.snapshot.release_id,
            generation=serving.snapshot.generation,
            mode="pinned" if chosen == "pinned" else "latest",
            results=results,
            routing=[
                RoutingView(task=serving.names[name], task_id=name, weight=weight) for name, weight in routing
            ],
            timing_ms=TimingView(
                encode=1000 * (after_encode - start),
                route=1000 * (after_route - after_encode),
                search=1000 * (after_search - after_route),
                merge=1000 * (end - after_search),
                total=1000 * (end - start),
            ),
            degraded=self._degraded(serving),
        )

    def _follow(self) -> None:
        while not self._stopped.is_set():
            try:
                self.refresh()
            except Exception:  # the thread must outlive whatever a broken folder brings up
                log.exception("refresh_failed")
            self._stopped.wait(_POLL_SECONDS)

    def _loaded_backbone(self) -> Backbone | None:
        if self._backbone is None:
            try:
                self._backbone = load_backbone(self._settings.backbone, self._settings.frames)
            except ModelError as error:
                if self._last_error != str(error):
                    log.error("backbone_unavailable", error=str(error))
                self._last_error = str(error)
        return self._backbone

    def _stamp(self) -> tuple[int, int, int] | None:
        """Changes whenever the manifest is replaced."""
        try:
            stat = self._store.manifest_path.stat()
        except FileNotFoundError:
            return None
        return stat.st_ino, stat.st_mtime_ns, stat.st_size

    def _current(self) -> Serving:
        serving = self._serving
        if serving is None:
            if self._last_error:
                raise Unavailable(f"Searches cannot be answered: {self._last_error}", 30)
            raise Unavailable("No domain has been learned yet. Send one with POST /tasks, then search.", 10)
        return serving

    def _checked(self, q: str, k: int) -> str:
        errors = []
        limit, most = self._settings.max_query_chars, self._settings.max_results
        text = q.strip()
        if not text:
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
            errors.append(FieldError("k", f"{k} results cannot be given.", f"Ask for 1 to {most}."))
        if errors:
            raise InvalidInput.of(errors)
        return text

    @staticmethod
    def _candidates(serving: Serving, task: str | None) -> list[str]:
        if task is None:
            return serving.tasks
        for name in serving.tasks:
            if task in (name, serving.names[name]):
                return [name]
        known = ", ".join(repr(serving.names[name]) for name in serving.tasks[:20])
        raise InvalidInput.at(
            "task", f"No learned task is called {task[:100]!r}.", f"Learned so far: {known}."
        )

    def _mode(self, serving: Serving, mode: str | None) -> str:
        offered = serving.encoder.modes
        if mode is None:
            return self._settings.query_mode if self._settings.query_mode in offered else offered[0]
        if mode not in offered:
            raise InvalidInput.at(
                "mode", f"Mode {mode[:40]!r} is not offered by this release.", f"Use {' or '.join(offered)}."
            )
        return mode

    @staticmethod
    def _degraded(serving: Serving) -> dict[str, str]:
        return {serving.names.get(task, task): why for task, why in serving.snapshot.degraded.items()}


def _videos(ids: list[int]) -> dict[int, Video]:
    """Catalog rows of vector ids, in one query."""
    if not ids:
        return {}
    with session_scope() as session:
        rows = session.scalars(select(Video).where(Video.vector_id.in_(ids)))
        return {video.vector_id: video for video in rows}
