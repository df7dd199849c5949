"""Manage the snapshots of a process: follow the index, and keep earlier releases for later pages."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Lock, Thread

import structlog
from cachetools import LRUCache

from cinestrata_schemas.operations import Readiness
from cinestrata_schemas.problems import Action
from index.arrays import Ids
from index.errors import ShardStoreError
from index.files.manifest_format import task_of
from models.errors import ModelError
from service.catalog.database import CatalogReads, session_scope
from service.catalog.domain_videos import read_caption_edits
from service.catalog.task_names import find_task
from service.core.errors import Conflict, FieldError, Gone, Unavailable
from service.core.process_setup import lower_thread_priority
from service.core.settings import Settings
from service.library import prometheus_metrics
from service.search.library_words import LibraryWords
from service.search.snapshots.generation_loader import GenerationLoader
from service.search.snapshots.search_snapshot import SearchSnapshot
from service.search.snapshots.snapshot_loading import (
    load_snapshot,
    with_current_captions,
    with_current_confidence,
)

log = structlog.get_logger(__name__)


POLL_SECONDS = 0.5
RETRY_SECONDS = 30.0  # between attempts to load what was refused or degraded, which may be repaired meanwhile
CATCH_UP_SECONDS = 10.0  # maximum wait of a search for a new generation
_CATCH_UP_RETRY_SECONDS = 2  # Retry-After if that was too short
_MAX_EARLIER = 2  # snapshots of earlier releases
_RELEASE_RETRY_SECONDS = 5  # Retry-After if memory did not suffice for such a snapshot

MAX_EDIT_SHARE = 0.1  # of the thread's time: reading a large domain's captions takes seconds
NOTHING_LEARNED = "no domain has been learned yet"


class TaskNotServed(Conflict):
    """A request names a task learned after the served release."""

    def __init__(self, task: str) -> None:
        super().__init__(
            f"Task {task[:100]!r} was learned after the served release, so it isn't searched: serve a "
            "later release.",
            remedy=Action(name="serve_release", id="newest"),
        )


class SnapshotManager:
    """Loads the newest index generation and swaps the current snapshot in one reference assignment.

    No request waits for a new generation or sees two of them. A generation that cannot be served is refused: the
    current snapshot stays, and a process without one falls back to an earlier release.

    Attributes:
        last_error: Why the newest generation or the backbone cannot be loaded; None if it is loaded.
        retry_at: Monotonic time of the next attempt to load a refused release or degraded shards; None if none is due.
    """

    def __init__(self, settings: Settings, reads: CatalogReads, words: LibraryWords | None = None) -> None:
        self._reads = reads
        self._words = words or LibraryWords(reads)
        self.last_error: str | None = None
        self._loader = GenerationLoader(settings)
        self._current: SearchSnapshot | None = None
        self._earlier: LRUCache[str, SearchSnapshot] = LRUCache(_MAX_EARLIER)  # by release ID
        self._earlier_lock = Lock()
        self._has_looked = False  # at the index, at least once
        self._seen_stamp: tuple[int, int, int] | None = None
        self._loaded_stamp: tuple[int, int, int] | None = None
        self.retry_at: float | None = None
        self._seen_edits: tuple[SearchSnapshot, dict[str, int]] | None = None
        self._edits_due = 0.0  # monotonic time
        self._captions_lock = Lock()
        self._refresh_lock = Lock()
        self._catch_up_thread = ThreadPoolExecutor(1, "catch-up")
        self._is_stopped = Event()
        self._threads: list[Thread] = []

    def start(self) -> None:
        """Start the threads that follow the index and verify shards."""
        self._is_stopped.clear()
        self._threads = [
            Thread(target=self._follow_index, name="follow-index", daemon=True),
            Thread(target=self._verify_shards, name="verify-shards", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop the threads."""
        self._is_stopped.set()
        for thread in self._threads:
            thread.join(timeout=5)

    # -- access -------------------------------------------------------------------------------------------------

    def current(self) -> SearchSnapshot:
        """Get the snapshot that answers new searches; raises Unavailable if none is loaded."""
        if self._current is None and self._has_looked and self._loader.stamp() != self._seen_stamp:
            self._refresh_in_time()  # the first task was just published; another thread may be loading it
        if self._current is not None:
            return self._current
        if self.last_error:
            raise Unavailable(f"Searches can't be answered: {self.last_error}", self._seconds_to_retry())
        if not self._has_looked:
            raise Unavailable("The model is still being loaded; try again in a few seconds.", 2)
        raise Unavailable(f"The library is empty: {NOTHING_LEARNED}.", 10, Action(name="add_domain"))

    def loaded(self) -> SearchSnapshot | None:
        """Get the current snapshot; None if none is loaded."""
        return self._current

    def changed_ids(self, snapshot: SearchSnapshot, tasks: Sequence[str]) -> dict[str, Ids]:
        """Read the stored, undeleted IDs of tasks whose shards differ from a snapshot's, by task ID.

        They come from the manifest on disk, without a release or the catalog. Raises Unavailable.
        """
        current = self._current
        is_current = current is not None and current.index_snapshot is snapshot.index_snapshot
        if is_current and self._loader.stamp() == self._loaded_stamp:
            return {}
        try:
            return self._loader.read_changed_ids(snapshot, tasks)
        except (ShardStoreError, OSError) as error:
            raise Unavailable(
                f"The catalog can't be reached, and the deletions in the index can't be read: {error}",
                _CATCH_UP_RETRY_SECONDS,
            ) from error

    def of_release(self, release_id: str) -> SearchSnapshot:
        """Get the snapshot for later pages of a list; raises Unavailable, or Gone if the release is no longer kept."""
        current = self.current()
        if release_id == current.release_id:
            return current
        with self._earlier_lock:
            snapshot = self._earlier.get(release_id)
            if snapshot is None:
                snapshot = self._earlier[release_id] = self._load_release(release_id, self.current())
            return snapshot

    def catch_up(self, task: str, used: SearchSnapshot) -> SearchSnapshot | None:
        """Load the generation with a task that the catalog already reports as ready, but the used snapshot lacks.

        The catalog marks a task ready right after its shard is published, so a snapshot may lag until the next poll.
        None if the catalog has no such ready task.

        Raises:
            TaskNotServed: The task was learned after the served release.
            Unavailable: The generation did not load within :data:`CATCH_UP_SECONDS`, or is refused.
        """
        if self._current is not None and self._current is not used:
            return self._current
        if not self._reads.read(lambda: _is_ready(task)):
            return None
        self._refresh_in_time()  # it sees the manifest, which is published before the task becomes ready
        if self._current is not None and self._current is not used:
            return self._current
        if used.is_pinned and self.last_error is None:
            raise TaskNotServed(task)
        reason = f": {self.last_error}" if self.last_error else "; try again in a few seconds."
        raise Unavailable(
            f"Domain {task[:100]!r} is ready, but this process hasn't loaded its shard{reason}",
            self._seconds_to_retry(),
        )

    def readiness(self) -> Readiness:
        """Report whether this process can answer requests, and if not, why.

        A process with an empty library is ready: a client that awaits readiness before posting the first task would
        otherwise wait forever.
        """
        snapshot, error, is_loaded = self._current, self.last_error, bool(self._loader.backbones)
        words = {"words": problem} if (problem := self._words.problem) else {}
        if snapshot is not None or error is not None:
            index_state = error or "ok"
        else:
            index_state = NOTHING_LEARNED if self._has_looked else "still loading"
        return Readiness(
            ready=is_loaded and (snapshot is not None or (self._has_looked and error is None)),
            release=snapshot.release_id if snapshot else None,
            pinned=snapshot is not None and snapshot.is_pinned,
            generation=snapshot.generation if snapshot else 0,
            tasks=len(set(map(task_of, snapshot.shards))) if snapshot else 0,
            degraded={**(snapshot.degraded_by_name if snapshot else {}), **words},
            checks={
                "model": "ok" if is_loaded else error or "still loading",
                "index": index_state if is_loaded else "ok",
                **(_describe_snapshot(snapshot) if snapshot else {}),
                **words,
            },
        )

    def degraded(self) -> dict[str, str]:
        """List why tasks cannot be searched, by task ID."""
        degraded = dict(self._current.degraded) if self._current else {}
        return {task_of(key): reason for key, reason in degraded.items()}

    # -- loading ------------------------------------------------------------------------------------------------

    def refresh(self) -> bool:
        """Load the newest generation if the manifest has changed, and return whether the current snapshot was replaced.

        A generation that cannot be served is refused and recorded in :attr:`last_error`. The current snapshot then
        stays; a process without one loads an earlier release. While the catalog cannot be read, nothing is loaded: the
        new snapshot would lack appended and edited captions that the current one may have.
        """
        with self._refresh_lock:
            stamp = self._loader.stamp()
            is_due = self.retry_at is not None and time.monotonic() >= self.retry_at
            # A shard that broke since the last refresh is checked at once, then at each retry interval.
            is_due = is_due or (self.retry_at is None and bool(self.degraded()))
            if self._has_looked and stamp == self._seen_stamp and not is_due:
                return False
            fresh: SearchSnapshot | None = None
            try:
                loaded = self._load_newest_or_earlier()
                if loaded is not None:
                    is_first = self._current is None and bool(self._threads)
                    self._words.prepare(loaded.video_tasks.videos, in_background=is_first)
                    self._words.captions_of(loaded.video_tasks)
                fresh = loaded
            except Unavailable as error:
                self._refuse(error, 0.0)
            except Exception as error:  # the search for an earlier release may also raise anything
                self._refuse(error, RETRY_SECONDS)
            if fresh is not None:
                self._replace_current(fresh)
            self._has_looked, self._seen_stamp = True, stamp
            if self.last_error is None:
                self._loaded_stamp = stamp
            return fresh is not None

    def _load_newest_or_earlier(self) -> SearchSnapshot | None:
        """Load the snapshot that replaces the current one; None if that one stays. Raises Unavailable."""
        try:
            fresh = self._loader.load_newest(self._current)
        except Unavailable:
            raise
        except Exception as error:  # a broken release may raise anything
            reason = self._refuse(error, RETRY_SECONDS)
            return None if self._current else self._loader.load_earlier(reason)
        served = fresh or self._current
        is_degraded = served is not None and bool(served.degraded)
        self.retry_at = time.monotonic() + RETRY_SECONDS if is_degraded else None
        self.last_error = None
        return fresh

    def _load_release(self, release_id: str, current: SearchSnapshot) -> SearchSnapshot:
        """Load the snapshot of an earlier release for the pages of a list; raises Gone or Unavailable."""
        reason = "The release of this list is no longer kept"
        manifest = current.index_snapshot.manifest
        if release_id not in manifest.releases:
            raise _gone(f"{reason}.")
        # A list from a withdrawn release would show videos that are no longer searchable, and one from before an
        # upgrade would lose those of the upgraded domain.
        later = set(manifest.releases_after(release_id))
        learned = {
            task.task_id
            for release, contribution in current.contributions.items()
            if release not in later
            for task in contribution.tasks
        }
        is_upgraded = any(
            task in learned and shard.release in later for task, shard in manifest.shards.items()
        )
        is_withdrawn = manifest.pinned and release_id in manifest.releases_after(manifest.pinned)
        if is_withdrawn or is_upgraded:
            raise _gone("The release of this list is no longer served.")
        try:
            snapshot = load_snapshot(
                current.index_snapshot,
                self._loader.backbone_of,
                release_id,
                other=current,
                memory=self._loader.memory,
            )
        except (ModelError, ShardStoreError, OSError) as error:
            raise _gone(f"{reason} intact: {error}.") from error
        except (MemoryError, RuntimeError) as error:  # PyTorch and FAISS raise either if a GPU is full
            log.warning("earlier_release_not_loaded", release=release_id, error=str(error))
            raise Unavailable(
                "The release of this list can't be loaded now; search again without the cursor, or "
                f"try again in {_RELEASE_RETRY_SECONDS} seconds.",
                _RELEASE_RETRY_SECONDS,
            ) from error
        # The current snapshot has not prepared the words of shards that it cannot search.
        self._words.prepare(snapshot.video_tasks.videos)
        self._words.captions_of(snapshot.video_tasks)
        return snapshot

    def _refuse(self, error: Exception, seconds: float) -> str:
        """Record why a generation is refused and when to try again, and return the reason."""
        reason = str(error) or type(error).__name__
        if reason != self.last_error:
            log.error("release_refused", error=reason, kind=type(error).__name__)
        self.last_error, self.retry_at = reason, time.monotonic() + seconds
        return reason

    def refresh_captions(self) -> bool:
        """Update routing profiles to edited captions, and the calibration to appends; return whether anything changed.

        Raises Unavailable if the catalog cannot be read.
        """
        with self._captions_lock:
            snapshot = self._current
            if snapshot is None:
                return False
            fresh = self._apply_edited_captions(snapshot)
            fresh = with_current_confidence(fresh or snapshot) or fresh
            if fresh is None:
                return False
            with self._refresh_lock:  # not held while captions are read: that may take seconds
                if self._current is not snapshot:
                    return False
                self._replace_current(fresh)
                return True

    def _apply_edited_captions(self, snapshot: SearchSnapshot) -> SearchSnapshot | None:
        """Update routing profiles to edited captions; None if nothing changed or no check is due."""
        started = time.monotonic()
        if started < self._edits_due:
            return None
        edits = read_caption_edits()
        if self._seen_edits is not None and self._seen_edits[0] is snapshot and self._seen_edits[1] == edits:
            return None
        fresh = with_current_captions(snapshot)
        if fresh is not None:
            finished = time.monotonic()
            self._edits_due = finished + (finished - started) * (1 / MAX_EDIT_SHARE - 1)
        self._seen_edits = fresh or snapshot, edits
        return fresh

    def verify_next_shard(self) -> bool:
        """Verify one served shard's checksums, and set a damaged shard aside; return whether there was one to verify.

        Readiness does not wait for this: reading a large library takes minutes.
        """
        snapshot = self._current
        unread = snapshot.index_snapshot.unverified_segments if snapshot else []
        prometheus_metrics.UNVERIFIED_BYTES.set(sum(entry.bytes for entry in unread))
        if snapshot is None or not unread:
            return False
        try:
            snapshot.index_snapshot.verify_segment(unread[0])
        except ShardStoreError as error:
            log.error("shard_set_aside", task=unread[0].task, error=str(error))
            # Mark it in whichever snapshot is current by now; one being loaded will verify the shard again.
            current = self._current or snapshot
            for key, shard in list(current.shards.items()):
                if unread[0] in shard.segments:
                    current.mark_degraded(key, error)
        return True

    def _replace_current(self, fresh: SearchSnapshot) -> None:
        with self._earlier_lock:
            # Earlier releases load again on demand: they share memory with this snapshot, and use no dropped folder.
            self._earlier.clear()
            self._current = fresh
            self._words.retain(fresh.video_tasks.videos)
        prometheus_metrics.GENERATION.set(fresh.generation)
        prometheus_metrics.RELEASE_PINNED.set(fresh.is_pinned)
        log.info(
            "release_serving",
            generation=fresh.generation,
            release=fresh.release_id,
            tasks=len(fresh.shards),
            degraded=dict(fresh.degraded),
        )

    def _refresh_in_time(self) -> None:
        """Refresh in a thread, and wait for it for at most :data:`CATCH_UP_SECONDS`."""
        refresh = self._catch_up_thread.submit(self.refresh)
        try:
            refresh.result(CATCH_UP_SECONDS)
        except TimeoutError:
            refresh.cancel()

    def _seconds_to_retry(self) -> int:
        """Compute the Retry-After for requests that wait for the next load attempt."""
        if self.last_error is None or self.retry_at is None:
            return _CATCH_UP_RETRY_SECONDS
        return max(_CATCH_UP_RETRY_SECONDS, round(self.retry_at - time.monotonic()))

    def _follow_index(self) -> None:
        while not self._is_stopped.is_set():
            try:
                self.refresh()
                if not self._reads.is_interrupted:
                    self.refresh_captions()
            except Exception as error:  # if this thread ended, no later generation would be loaded
                log.warning("index_not_followed", error=str(error), kind=type(error).__name__)
            self._is_stopped.wait(POLL_SECONDS)

    def _verify_shards(self) -> None:
        lower_thread_priority()
        while not self._is_stopped.is_set():
            if not self.verify_next_shard():
                self._words.verify()
                self._is_stopped.wait(POLL_SECONDS)


def _gone(reason: str) -> Gone:
    hint = "Search again without the cursor."
    return Gone(f"cursor: {reason} {hint}", [FieldError("cursor", reason, hint)])


def _is_ready(task: str) -> bool:
    """Check whether the catalog has a ready task of this name or ID."""
    with session_scope() as session:
        row = find_task(session, task)
        return row is not None and row.state == "ready" and row.target_id is None


def _describe_snapshot(snapshot: SearchSnapshot) -> dict[str, str]:
    """Name the encoders, and the release that an operator pinned; report the progress of shard verification."""
    manifest, unread = snapshot.index_snapshot.manifest, snapshot.index_snapshot.unverified_segments
    names = [lineage.backbone_name for lineage in snapshot.lineages.values()]
    counts = {name: f"{name} ({names.count(name)} domains)" for name in names}
    checks = {"encoders": ", ".join(counts.values())}
    if snapshot.is_pinned:
        later = len(manifest.releases_after(snapshot.release_id))
        checks["release"] = f"{snapshot.release_id[:12]} is pinned; later releases not searched: {later}"
    if unread:
        gigabytes = sum(entry.bytes for entry in unread) / 1e9
        total = len(manifest.all_segments())
        checks["checksums"] = f"{len(unread)} of {total} shards ({gigabytes:.1f} GB) are not verified yet"
    if failures := snapshot.index_snapshot.gpu_failures:
        reasons = [f"{snapshot.task_names.get(task, task)!r} ({reason})" for task, reason in failures.items()]
        checks["index_device"] = f"the CPU searches, not the GPU: {', '.join(sorted(reasons))}"
    return checks
