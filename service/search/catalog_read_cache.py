"""Cache the catalog rows that text searches need in memory, which is faster to read and always reachable.

One background thread reads the searched domains' rows, and another reads edits every second. A search waits for the
catalog only if its caller has made an edit that this process has not read (:mod:`service.core.change_sequence`), or for
what is not cached: some rows, matched passages, and previous names of domains. If the catalog does not respond, results
show captions as of the last poll, and lack videos added since. Deleted videos stay hidden, because a deletion is
written to the index before it is acknowledged, and the index manifest is read before the cache is used.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from threading import Event, Lock, Thread
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import numpy as np
import structlog
from sqlalchemy import bindparam, select

from index.arrays import Hit, Ids, batches, find_ids
from index.files.manifest_format import task_of
from service.catalog.database import CatalogReads, id_chunks, read_connection, read_last_edit, session_scope
from service.catalog.domain_videos import in_domain, read_edited_videos
from service.catalog.tables import Task, Video
from service.catalog.task_names import find_task
from service.catalog.video_texts import SourcedCues, read_passages
from service.core.change_sequence import LATEST
from service.core.errors import Unavailable
from service.core.process_setup import lower_thread_priority
from service.core.text_rules import name_key
from service.search.catalog_texts import IDS_PER_QUERY
from service.search.library_words import LibraryWords
from service.search.snapshots.search_snapshot import SearchSnapshot

log = structlog.get_logger(__name__)

MAX_BYTES = 256 * 1024**2  # of all cached rows
_POLL_SECONDS = 1.0
_LATE_SECONDS = 2.5  # since the last poll
_MAX_EDITED = 10_000  # edited videos whose rows are kept apart from their domains'
_MAX_SHARE = 0.1  # of the thread's time: reading a large domain takes seconds
_NOT_CACHED = "the catalog database can't be reached, and the copy of its rows has no room for this domain"
# Table columns instead of mapped objects, compiled once: this halves the time per search.
_VIDEOS = Video.__table__.c
_BY_VECTOR_ID = select(
    _VIDEOS.vector_id, _VIDEOS.id, _VIDEOS.uri, _VIDEOS.captions, _VIDEOS.duration, _VIDEOS["metadata"]
).where(_VIDEOS.vector_id.in_(bindparam("ids", expanding=True)))


@dataclass(frozen=True)
class _CachedRows:
    """The rows as of one time; replaced as a whole."""

    as_of: datetime
    checked: float  # monotonic time of ``as_of``
    edit: int  # the rows show all edits up to this number; some may be newer
    videos: Mapping[str, VideoRows]
    # Versions of shard and task that the rows of each domain are at least as new as.
    versions: Mapping[str, tuple[str, str]]
    not_cached: frozenset[str]
    # Numbers and rows of videos that were edited after the rows of their domains were read; None: deleted.
    edited: Mapping[int, tuple[int, VideoRow | None]] = field(default_factory=dict)

    def has(self, edit: int) -> bool:
        """Check whether the rows show an edit."""
        return edit <= self.edit or any(number == edit for number, _ in self.edited.values())

    def find_all(
        self, ids_by_task: Mapping[str, Sequence[int]], snapshot: SearchSnapshot
    ) -> dict[int, VideoRow] | None:
        """Look up rows by vector ID; None if one is missing, or only the catalog has those of a shard's version."""
        # Until an append is published, changes of its rows are no edits: its shard's version tells that it was.
        if any(
            task not in self.videos or self.versions[task][0] != snapshot.shards[task].state
            for task in ids_by_task
        ):
            return None
        rows = self.find(ids_by_task)
        return rows if len(rows) == sum(map(len, ids_by_task.values())) else None

    def find(self, ids_by_task: Mapping[str, Sequence[int]]) -> dict[int, VideoRow]:
        """Look up rows by vector ID, skipping unknown videos."""
        rows: dict[int, VideoRow] = {}
        for task, ids in ids_by_task.items():
            if task in self.videos:
                rows |= self.videos[task].find(ids)
            for vector_id in self.edited.keys() & ids:
                rows.pop(vector_id, None)
                if (row := self.edited[vector_id][1]) is not None:
                    rows[vector_id] = row
        return rows


class CatalogReadCache:
    """Reads result rows from memory if they are current, or from the catalog. Thread-safe.

    Args:
        changed_ids: Reads the current manifest's IDs of tasks that differ from a snapshot's; see
            :meth:`SnapshotManager.changed_ids`. None: the index does not change.
        max_bytes: Maximum memory of cached rows. Domains that do not fit are not cached.
        words: Words and columns of the videos in the process's snapshots, which follow edits with the rows.
    """

    def __init__(
        self,
        reads: CatalogReads,
        changed_ids: Callable[[SearchSnapshot, Sequence[str]], Mapping[str, Ids]] | None = None,
        max_bytes: int = MAX_BYTES,
        words: LibraryWords | None = None,
    ) -> None:
        self._reads = reads
        self._changed_ids = changed_ids
        self._max_bytes = max_bytes
        self.words = words or LibraryWords(reads)
        self._cached: _CachedRows | None = None
        self._replacement = Lock()  # for the cached rows; not held while rows are read
        self._arrivals: dict[str, datetime] = {}
        self._due = 0.0  # monotonic time
        self._is_stopped = Event()
        self._threads: list[Thread] = []

    def start(self, current: Callable[[], SearchSnapshot | None]) -> None:
        """Read edits and the current snapshot's rows in background threads."""

        def update() -> None:
            if (snapshot := current()) is not None:
                self.update(snapshot)
                self.arrivals(list(snapshot.shards))  # while the catalog is reachable

        self._is_stopped.clear()
        self._threads = [
            Thread(target=self._repeat, args=(action,), name=name, daemon=True)
            for name, action in (("catalog-read-cache", update), ("catalog-edits", self.read_edits))
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop the threads."""
        self._is_stopped.set()
        for thread in self._threads:
            thread.join(timeout=5)
        self._threads = []

    @property
    def is_followed(self) -> bool:
        """Whether background threads read edits, and have read the rows."""
        return bool(self._threads) and self._cached is not None

    @property
    def as_of(self) -> datetime | None:
        """When the cache last matched the catalog; None without cached rows."""
        return self._cached.as_of if self._cached else None

    def follow(self, required: int = 0) -> datetime | None:
        """Read the edits that a search must include, up to a number, unless they were read.

        Without background threads, or for ``LATEST``, these are all that were committed before the call. None waits
        for a change of very many videos.

        Returns:
            When the edits were last read, if that is longer ago than usual; otherwise None.
        """
        try:
            if not self.is_followed or required >= LATEST:
                self.read_edits()
            elif required:
                self.read_edits(required)
        except Unavailable:
            return self.as_of
        cached = self._cached
        is_late = cached is not None and time.monotonic() - cached.checked > _LATE_SECONDS
        return self.as_of if is_late and self._threads else None

    def read_edits(self, required: int | None = None) -> None:
        """Read all edits committed before the call, or those up to a required one; raises Unavailable."""
        as_of, checked, cached = datetime.now(UTC), time.monotonic(), self._cached
        states = (self.words.texts, cached)
        after = [s.edit for s in states if s and s.edit is not None and not (required and s.has(required))]
        if not after:
            return
        last = self._reads.read(read_last_edit) if required is None else required
        # Also in PostgreSQL, where later edits than the last one may be complete, too.
        edits = self._reads.read(lambda: read_edited_videos(min(after), required))
        self.words.follow_edits(required, (last, edits))
        if cached is None or (required is not None and cached.has(required)):
            return
        missing = (video for video, edit in edits.items() if edit > cached.edit)
        new = [video for video in missing if cached.edited.get(video, (None,))[0] != edits[video]]
        if len(new) + len(cached.edited) > _MAX_EDITED:  # the rows of their domains are read again
            self._due = 0.0
            return
        rows = {}
        if new:
            rows = self._reads.read(lambda: read_rows(new))
        with self._replacement:
            latest = cast(_CachedRows, self._cached)
            edited = {**latest.edited, **{video: (edits[video], rows.get(video)) for video in new}}
            self._cached = replace(latest, edited=edited)
            if required is None:
                edit = max(last, latest.edit)
                self._cached = replace(self._cached, as_of=as_of, checked=checked, edit=edit)

    def read_results(
        self, hits: Sequence[Hit], snapshot: SearchSnapshot
    ) -> tuple[Mapping[int, VideoRow], datetime | None, Mapping[str, str]]:
        """Read the rows for a snapshot's hits, from the cache if it has all of them, after :meth:`follow`.

        Returns:
            Rows by vector ID, without deleted videos; the time of the cached rows if some may be missing; and the
            reason by task, for tasks missing from the cache.

        Raises Unavailable if the catalog is unreachable, and no rows are cached or the index's deletions unknown.
        """
        if (cached := self._cached) is not None:
            with suppress(Unavailable):  # the index's deletions are unknown
                if (rows := cached.find_all(self._live_ids(hits, snapshot), snapshot)) is not None:
                    return rows, None, {}
        try:
            return self._reads.read(lambda: read_rows({hit.id for hit in hits})), None, {}
        except Unavailable:
            if cached is None:
                raise
        not_cached = {task: _NOT_CACHED for task in snapshot.shards if task in cached.not_cached}
        return cached.find(self._live_ids(hits, snapshot)), cached.as_of, not_cached

    def read_passages(self, passages: Sequence[int]) -> Mapping[int, SourcedCues]:
        """Read passages of timed texts by ID; empty while the catalog is unreachable."""
        try:
            return self._reads.read(lambda: read_cues(passages))
        except Unavailable:
            return {}

    def find_task(self, name: str, snapshot: SearchSnapshot) -> str | None:
        """Look up a task by ID, name or slug and return its ID; None if there is none.

        Raises Unavailable if the catalog is unreachable, and the snapshot has no task of this name.
        """

        def read() -> str | None:
            with session_scope() as session:
                task = find_task(session, name)
                return task.id if task is not None else None

        try:
            return self._reads.read(read)
        except Unavailable:
            key = name_key(name)
            named = [task for task, task_name in snapshot.task_names.items() if name_key(task_name) == key]
            if not named:
                raise
            return named[-1]

    def arrivals(self, tasks: Sequence[str]) -> dict[str, datetime]:
        """Get each task's creation time; tasks missing from the catalog are left out. Raises Unavailable."""
        missing = [task for task in map(task_of, tasks) if task not in self._arrivals]
        if missing:
            self._reads.require_reachable()
            # Possibly twice, if calls overlap; the times never change.
            with session_scope() as session:
                for chunk in id_chunks(missing):
                    created = session.execute(select(Task.id, Task.created_at).where(Task.id.in_(chunk)))
                    self._arrivals = self._arrivals | {task: created_at for task, created_at in created}
        return {task: self._arrivals[task_of(task)] for task in tasks if task_of(task) in self._arrivals}

    def update(self, snapshot: SearchSnapshot) -> bool:
        """Read the rows that changed; raises Unavailable.

        Returns:
            Whether the cache is current; False if reading changed rows is not due yet.
        """
        started, as_of = time.monotonic(), datetime.now(UTC)
        if self._cached is not None and not self._threads:
            self.read_edits()
        edit = self._reads.read(read_last_edit)
        task_versions = self._reads.read(_read_versions)
        before = self._cached
        versions = {
            task: (shard.state, task_versions[task_of(task)])
            for task, shard in snapshot.shards.items()
            if task_of(task) in task_versions and shard.count
        }
        if before is not None and before.versions == versions:
            self._replace(before, edit)
            return True
        if started < self._due:
            return False
        videos: dict[str, VideoRows] = {}
        not_cached: set[str] = set()
        total = 0
        for task, version in versions.items():
            if before is not None and before.versions.get(task) == version and task in before.videos:
                rows = before.videos[task]
            elif self._is_stopped.is_set():
                return False
            else:
                rows = _read_videos(task)
            if total + rows.nbytes > self._max_bytes:
                not_cached.add(task)
                continue
            videos[task] = rows
            total += rows.nbytes
        if not_cached and (before is None or not_cached != before.not_cached):
            log.warning("catalog_read_cache_full", domains=len(not_cached), max_bytes=self._max_bytes)
        cached = _CachedRows(
            as_of=as_of,
            checked=started,
            edit=edit,
            videos=videos,
            versions=versions,
            not_cached=frozenset(not_cached),
        )
        self._replace(cached, edit)
        finished = time.monotonic()
        self._due = finished + (finished - started) * (1 / _MAX_SHARE - 1)
        return True

    def _replace(self, cached: _CachedRows, edit: int) -> None:
        """Replace the cached rows by such that show all edits up to a number; later ones stay."""
        with self._replacement:
            latest = self._cached or cached
            edited = {video: entry for video, entry in latest.edited.items() if entry[0] > edit}
            if latest.checked > cached.checked:
                cached = replace(cached, as_of=latest.as_of, checked=latest.checked)
            self._cached = replace(cached, edit=edit, edited=edited)

    def _live_ids(self, hits: Sequence[Hit], snapshot: SearchSnapshot) -> dict[str, list[int]]:
        """Group the IDs of hits by task, without those that the current manifest lists as deleted."""
        by_task: dict[str, list[int]] = {}
        for task, vector_id in {(hit.task, hit.id) for hit in hits}:
            by_task.setdefault(task, []).append(vector_id)
        changed = self._changed_ids(snapshot, list(by_task)) if self._changed_ids else {}
        for task, stored in changed.items():
            ids = np.array(by_task[task], np.int64)
            by_task[task] = ids[np.isin(ids, stored)].tolist()
        return by_task

    def _repeat(self, action: Callable[[], None]) -> None:
        lower_thread_priority()
        while not self._is_stopped.wait(_POLL_SECONDS):
            if self._reads.is_interrupted:
                continue
            try:
                action()
            except Exception as error:  # the previous rows stay
                log.warning("catalog_not_cached", error=str(error), kind=type(error).__name__)


def read_rows(vector_ids: Collection[int]) -> dict[int, VideoRow]:
    """Read rows from the catalog by vector ID."""
    rows: dict[int, VideoRow] = {}
    if not vector_ids:
        return rows
    with read_connection() as connection:
        for chunk in batches(list(vector_ids), IDS_PER_QUERY):
            read = connection.execute(_BY_VECTOR_ID, {"ids": chunk})
            rows |= {vector_id: VideoRow(*columns) for vector_id, *columns in read}
    return rows


def read_cues(passages: Sequence[int]) -> dict[int, SourcedCues]:
    """Read passages of timed texts by ID; raises Unavailable."""
    with session_scope() as session:
        return read_passages(session, np.array(passages, np.int64))


def _read_versions() -> dict[str, str]:
    """Read the versions of all domains, which tell whether their videos must be read again."""
    with session_scope() as session:
        # A relearned domain becomes ready when its videos take over the IDs of those that they replace.
        rows = session.execute(
            select(Task.id, Task.state, Task.caption_edits, Task.metadata_edits).where(
                Task.target_id.is_(None)
            )
        )
        return {task: "+".join(map(str, version)) for task, *version in rows}


def _read_videos(task: str) -> VideoRows:
    """Read the rows of a domain's videos and its appends, because the manifest is replaced before the catalog."""
    with session_scope() as session:
        rows = session.execute(
            select(Video.vector_id, Video.id, Video.uri, Video.captions, Video.duration, Video.extra).where(
                in_domain(task), Video.status == "accepted"
            )
        ).all()
    return VideoRows(
        (row.vector_id, VideoRow(row.id, row.uri, row.captions, row.duration, row.extra))
        for row in sorted(rows, key=lambda row: row.vector_id)
    )


class VideoRow(NamedTuple):
    """What searches read about a video: its URI as submitted, its duration in seconds, and the user's metadata."""

    video_id: str
    uri: str
    captions: list[str]
    duration: float | None = None
    metadata: Mapping[str, Any] = MappingProxyType({})


class VideoRows:
    """Video rows packed as JSON into one buffer, which takes a fraction of the memory of Python objects.

    They are given with their vector IDs, in ascending order.
    """

    def __init__(self, rows: Iterable[tuple[int, VideoRow]]) -> None:
        ids: list[int] = []
        ends: list[int] = [0]
        buffer = bytearray()
        for vector_id, row in rows:
            ids.append(vector_id)
            buffer += json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
            ends.append(len(buffer))
        self._ids = np.array(ids, np.int64)
        self._ends = np.array(ends, np.int64)
        self._buffer = bytes(buffer)

    @property
    def nbytes(self) -> int:
        """Size of the buffers in bytes."""
        return len(self._buffer) + self._ids.nbytes + self._ends.nbytes

    def find(self, vector_ids: Iterable[int]) -> dict[int, VideoRow]:
        """Look up rows by vector ID, skipping unknown videos."""
        wanted = np.fromiter(vector_ids, np.int64)
        is_cached, rows = find_ids(self._ids, wanted)
        return {
            int(vector_id): self._row(int(row))
            for vector_id, row in zip(wanted[is_cached], rows, strict=True)
        }

    def _row(self, row: int) -> VideoRow:
        return VideoRow(*json.loads(self._buffer[self._ends[row] : self._ends[row + 1]]))
