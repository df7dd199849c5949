"""What the catalog knows of the videos of a task, in columns: what filters are held against.

A catalog that parses the metadata of every video for every search would be the slowest part of it. Neither metadata nor
the measures of a file change once a task is laid down, so they are read once and kept until a video is deleted.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime
from threading import Lock
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
from sqlalchemy import select

from index.vector_ids import video_ids_of
from service.catalog.database import id_chunks, session_scope
from service.catalog.tables import Moment, Task, Video

__all__ = ["Column", "MomentSpans", "Value", "VideoMetadata", "VideoMetadataCache"]

Ids = npt.NDArray[np.int64]
Read = TypeVar("Read", "VideoMetadata", "MomentSpans")
Value = str | int | float | bool

_KEPT = 2_000_000  # videos whose facts are kept, and moments


class Column:
    """One field of the videos of a task. Values are compared exactly: 1 is 1.0, and neither is true nor "1".

    Args:
        values: by row; of a list its texts count, each by itself. What is neither is as if it were not there.
    """

    def __init__(self, values: Iterable[tuple[int, Any]]) -> None:
        rows: dict[tuple[bool, Value], list[int]] = {}
        numbers: list[tuple[int | float, int]] = []
        for row, value in values:
            found = (
                dict.fromkeys(v for v in value if isinstance(v, str)) if isinstance(value, list) else (value,)
            )
            for one in found:
                if isinstance(one, str | int | float):
                    rows.setdefault((isinstance(one, bool), one), []).append(row)
                if isinstance(one, int | float) and not isinstance(one, bool):
                    numbers.append((one, row))
        numbers.sort()
        self._rows = {key: np.array(places, np.int64) for key, places in rows.items()}
        self._numbers: Sequence[int | float] = [number for number, _ in numbers]
        self._numbered: Ids = np.array([row for _, row in numbers], np.int64)

    def __bool__(self) -> bool:
        return bool(self._rows)

    @property
    def has_numbers(self) -> bool:
        """Whether a range can be asked for."""
        return bool(self._numbers)

    def equal(self, value: Value) -> Ids:
        """Rows that have this value, or have it among their texts."""
        return self._rows.get((isinstance(value, bool), value), np.empty(0, np.int64))

    def between(self, low: float | None, high: float | None) -> Ids:
        """Rows with a number in a range, its ends included; None: no end."""
        first = 0 if low is None else bisect_left(self._numbers, low)
        last = len(self._numbers) if high is None else bisect_right(self._numbers, high)
        return self._numbered[first:last]


class VideoMetadata:
    """The accepted videos of a task.

    Attributes:
        ids: ``int64 [n]``, ascending; the vector id of each row.
        durations: in seconds.
        fields: metadata by name; only what a filter can be held against.
    """

    def __init__(self, videos: Sequence[tuple[int, float | None, Mapping[str, Any]]]) -> None:
        self.ids: Ids = np.array([vector_id for vector_id, _, _ in videos], np.int64)
        self.durations = Column((row, seconds) for row, (_, seconds, _) in enumerate(videos))
        by_name: dict[str, list[tuple[int, Any]]] = {}
        for row, (_, _, metadata) in enumerate(videos):
            for name, value in metadata.items():
                by_name.setdefault(name, []).append((row, value))
        columns = {name: Column(values) for name, values in by_name.items()}
        self.fields = {name: column for name, column in columns.items() if column}


class MomentSpans:
    """The moments of the videos of a task.

    Attributes:
        ids: ``int64 [n]``, ascending, so those of a video follow each other.
        spans: ``float64 [n, 2]``, start and end in seconds.
    """

    def __init__(self, moments: Sequence[tuple[int, float, float]]) -> None:
        self.ids: Ids = np.array([moment for moment, _, _ in moments], np.int64)
        self.spans = np.array([span for _, *span in moments], np.float64).reshape(-1, 2)
        self._videos = video_ids_of(self.ids)

    def rows(self, videos: Ids) -> Ids:
        """Rows of the moments of these videos."""
        first, end = (np.searchsorted(self._videos, videos, side) for side in ("left", "right"))
        counts = end - first
        # Each video's rows follow each other: a count from zero, moved to where they begin.
        return np.repeat(first - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())

    def added_to(self, videos: Ids) -> Ids:
        """Vector ids of videos, and of their moments."""
        return np.concatenate([videos, self.ids[self.rows(videos)]])


class VideoMetadataCache:
    """VideoMetadata of tasks, read when they are first asked for. Safe to be shared by threads.

    The catalog is read without the lock: who asks for what is kept never waits for it. Who asks for what another one is
    just reading waits for that, and shares its error.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._reading: dict[tuple[object, ...], Future[Any]] = {}
        # By task and its shard.
        self._facts: OrderedDict[tuple[str, str], VideoMetadata] = OrderedDict()
        self._moments: OrderedDict[tuple[str, str], MomentSpans] = OrderedDict()
        self._arrivals: dict[str, datetime] = {}

    def facts(self, task: str, shard: str) -> VideoMetadata:
        """Of a task.

        Args:
            shard: names what its shard holds: another one stands for other videos, and the former ones may be
                deleted.
        """
        return self._held(self._facts, task, shard, _read_facts)

    def moments(self, task: str, shard: str) -> MomentSpans:
        """Of a task, as :meth:`facts`."""
        return self._held(self._moments, task, shard, _read_moments)

    def arrivals(self, tasks: Sequence[str]) -> dict[str, datetime]:
        """When each task was posted; those that the catalog does not know are left out."""
        with self._lock:
            new = [task for task in tasks if task not in self._arrivals]
        if new:
            found = _read_arrivals(new)  # twice, where two ask for the same at once; it never changes
            with self._lock:
                self._arrivals |= found
        with self._lock:
            return {task: self._arrivals[task] for task in tasks if task in self._arrivals}

    def _held(
        self,
        kept: OrderedDict[tuple[str, str], Read],
        task: str,
        shard: str,
        read: Callable[[str], Read],
    ) -> Read:
        """What is kept of a shard, or is read. That of the task's former shards goes, and where all of them take too
        much, what was not used for longest."""
        key = task, shard
        with self._lock:
            if key in kept:
                kept.move_to_end(key)
                return kept[key]
            begun = self._reading.get((read, key))
            if begun is None:
                mine = self._reading[read, key] = Future[Read]()
        if begun is not None:
            return cast("Read", begun.result())
        try:
            found = read(task)
        except BaseException as error:
            with self._lock:
                del self._reading[read, key]
            mine.set_exception(error)
            raise
        with self._lock:
            del self._reading[read, key]
            for former in [known for known in kept if known[0] == task]:
                del kept[former]
            kept[key] = found
            while len(kept) > 1 and sum(len(one.ids) for one in kept.values()) > _KEPT:
                kept.popitem(last=False)
        mine.set_result(found)
        return found


def _read_arrivals(tasks: Sequence[str]) -> dict[str, datetime]:
    with session_scope() as session:
        return {
            task: at
            for chunk in id_chunks(tasks)
            for task, at in session.execute(select(Task.id, Task.created_at).where(Task.id.in_(chunk)))
        }


def _read_facts(task: str) -> VideoMetadata:
    with session_scope() as session:
        rows = session.execute(
            select(Video.vector_id, Video.duration, Video.extra)
            .where(Video.task_id == task, Video.status == "accepted")
            .order_by(Video.vector_id)
        ).all()
    return VideoMetadata([(vector_id, seconds, extra) for vector_id, seconds, extra in rows])


def _read_moments(task: str) -> MomentSpans:
    with session_scope() as session:
        rows = session.execute(
            select(Moment.vector_id, Moment.start_seconds, Moment.end_seconds)
            .join(Video, Video.vector_id == Moment.video_vector_id)
            .where(Video.task_id == task)
            .order_by(Moment.vector_id)
        ).all()
    return MomentSpans([(moment, start, end) for moment, start, end in rows])
