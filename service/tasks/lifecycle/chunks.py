"""Split a task into chunks, so that several workers process its videos at once, each under its own lease.

The worker that claimed the task plans the chunks, helps process them, and completes the stage. Other workers claim
chunks while the stage runs. A dead worker's chunk is due again when its lease expires.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

import structlog
from sqlalchemy import and_, exists, func, insert, select
from sqlalchemy.orm import Session

from index.arrays import batches
from service.catalog.database import now, session_scope
from service.catalog.leases import Lease
from service.catalog.tables import ACTIVE_STATES, Chunk, Task
from service.core.errors import CinestrataError, LeaseLost, SourceUnavailable, TaskCancelled, TaskInterruption
from service.core.settings import settings
from service.core.tracing import use_request_id
from service.tasks.lifecycle.state_machine import Stage, free_chunk, is_unleased, lock_task_if

_TOKENS = 2**20  # per chunk and claim of its task
_SOURCE_PAUSE = 20.0  # seconds; shorter than the first pause of a task without a source


@dataclass(frozen=True)
class ChunkTotals:
    """What is left of a stage: chunks, chunks that are being processed, and videos without a stored result."""

    unfinished: int
    claimed: int
    remaining: int


def plan_chunks(
    session: Session,
    task_id: str,
    stage: Stage,
    vector_ids: Sequence[int],
    size: int,
    *,
    run: str | None = None,
) -> None:
    """Split videos (ascending vector IDs) into chunks of a :attr:`ChunkClaim.run`, numbered after existing ones."""
    of_stage = (Chunk.task_id == task_id, Chunk.stage == stage)
    last = session.scalar(select(func.max(Chunk.number)).where(*of_stage))
    first_number = 0 if last is None else last + 1
    # IDs and numbers of deleted chunks are reused, so tokens must differ from those of previous plans.
    task_token = session.scalars(select(Task.fencing_token).where(Task.id == task_id)).one()
    same: dict[str, Any] = {"task_id": task_id, "stage": stage, "run": run, "finished": 0, "attempts": 0}
    same["fencing_token"] = task_token * _TOKENS
    rows = [
        {**same, "number": number, "first_id": ids[0], "last_id": ids[-1], "videos": len(ids)}
        for number, ids in enumerate(batches(vector_ids, size), first_number)
    ]
    if rows:
        session.execute(insert(Chunk), rows)


def read_totals(task_id: str, stage: Stage) -> ChunkTotals:
    """Count a stage's unfinished and claimed chunks and its remaining videos."""
    with session_scope() as session:
        unfinished, claimed, remaining = session.execute(
            select(
                func.count(), func.count(Chunk.lease_owner), func.sum(Chunk.videos - Chunk.finished)
            ).where(Chunk.task_id == task_id, Chunk.stage == stage, Chunk.done_at.is_(None))
        ).one()
    return ChunkTotals(unfinished, claimed, max(int(remaining or 0), 0))


def claim_chunk(task_id: str, stage: Stage, owner: str, *, owns_task: bool = False) -> ChunkClaim | None:
    """Claim the first free chunk of a task; None without one, or if the task has no owner or is ending.

    Other workers give up on a chunk after ``MAX_ATTEMPTS``, because they may be broken, or the chunk may crash them.
    The task's owner claims any chunk: its own errors and crashes count as attempts of the task.
    """
    with session_scope(write=True) as session:
        at = now(session)
        is_active = exists().where(
            Task.id == task_id,
            Task.state.in_(ACTIVE_STATES),
            Task.cancel_requested.is_(False),
            Task.lease_owner.is_not(None),
        )
        is_free, order = free_chunk(stage, at), [Chunk.number]
        if owns_task:
            order = [Chunk.attempts, Chunk.number]  # a video that may kill this worker comes last
            is_free = and_(Chunk.stage == stage, Chunk.done_at.is_(None), is_unleased(at))
        # Other workers skip a row that is being claimed, rather than wait for it.
        chunk = session.scalars(
            select(Chunk)
            .where(Chunk.task_id == task_id, is_free, is_active)
            .order_by(*order)
            .limit(1)
            .with_for_update(skip_locked=True)
        ).one_or_none()
        if chunk is None:
            return None
        chunk.lease_owner = owner[:255]
        chunk.lease_expires_at = at + timedelta(seconds=settings().lease_seconds)
        chunk.fencing_token += 1
        chunk.attempts += 1
        if stage == "indexing":  # vectors are stored per chunk; the previous owner's are lost
            chunk.finished = 0
        request_id = session.scalar(select(Task.request_id).where(Task.id == task_id))
        return ChunkClaim(chunk, request_id)


class ChunkClaim:
    """A claimed chunk. As a context manager, it renews the lease, and gives the chunk back if it is unfinished.

    A chunk given back after an error counts an attempt. If a video's source is unavailable, the chunk is due again
    after a pause instead. Exceptions propagate.
    """

    def __init__(self, chunk: Chunk, request_id: str | None) -> None:
        self.id, self.task_id, self.number = chunk.id, chunk.task_id, chunk.number
        self.first_id, self.last_id = chunk.first_id, chunk.last_id  # range of vector IDs
        self.run = chunk.run  # identifies the work of stages whose results depend on more than the video
        self.token = chunk.fencing_token
        self.request_id = request_id
        self._is_own = and_(
            Chunk.id == self.id,
            Chunk.task_id == self.task_id,
            Chunk.fencing_token == self.token,
            Chunk.done_at.is_(None),
        )
        name = f"Chunk {self.number} of task {self.task_id}"
        self._lease = Lease(name, self.token, Chunk.lease_expires_at, self._is_own)

    def tick(self) -> None:
        """Report that the job advances; raise LeaseLost or WorkerStopping."""
        self._lease.tick()

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """Open a transaction that locks the task's and the chunk's rows; raise LeaseLost, TaskCancelled."""
        with session_scope(write=True) as session:
            task = lock_task_if(session, self.task_id, Task.state.in_(ACTIVE_STATES))
            if task is None or self._lock(session) is None:
                raise self._lease.loss()
            if task.cancel_requested:
                raise TaskCancelled(f"Task {self.task_id} was cancelled.")
            yield session

    def count_finished(self, session: Session, videos: int) -> None:
        """Count stored results, in the transaction that stores them."""
        session.get_one(Chunk, self.id).finished += videos

    def complete(self, session: Session, *, checksum: str | None = None) -> None:
        """Mark the chunk as done, in the transaction that stores its part file. Counts as progress of the task."""
        chunk, task = session.get_one(Chunk, self.id), session.get_one(Task, self.task_id)
        chunk.finished, chunk.done_at, chunk.checksum = chunk.videos, now(session), checksum
        chunk.lease_owner = chunk.lease_expires_at = None
        task.attempts = min(task.attempts, 1)
        self._lease.end()

    def __enter__(self) -> Self:
        self._lease.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        is_done = self._lease.is_ended and error is None
        self._lease.end()
        self._lease.__exit__(kind, error, trace)
        if is_done or isinstance(error, LeaseLost):
            return
        pause = _SOURCE_PAUSE if isinstance(error, SourceUnavailable) else None
        is_failure = isinstance(error, Exception) and not isinstance(
            error, (TaskInterruption, SourceUnavailable)
        )
        with suppress(CinestrataError):  # the lease expires anyway
            self._release(str(error) or type(error).__name__ if is_failure else None, pause)

    def _release(self, failure: str | None, pause: float | None) -> None:
        """Give the chunk back, for others after a pause in seconds. Without a failure, the attempt does not count."""
        with session_scope(write=True) as session:
            chunk = self._lock(session)
            if chunk is None:
                return
            chunk.lease_owner = None
            chunk.lease_expires_at = None if pause is None else now(session) + timedelta(seconds=pause)
            chunk.fencing_token += 1
            if failure is None:
                chunk.attempts -= 1
            else:
                chunk.error = failure

    def _lock(self, session: Session) -> Chunk | None:
        """Lock the row until commit; None if the chunk is another worker's, done or deleted."""
        return session.scalars(
            select(Chunk).where(self._is_own).with_for_update().execution_options(populate_existing=True)
        ).one_or_none()


log = structlog.get_logger(__name__)


def process_free_chunks(
    task_id: str, stage: Stage, owner: str, seconds: float, process: Callable[[Iterator[ChunkClaim]], None]
) -> None:
    """Process free chunks of a task until none is left or time is up, so that the next message gets its turn.

    Errors are logged and stored with the chunk; the task's owner decides on the task's state. ``process`` gets an
    iterator that claims each chunk when it is taken, and is not called if no chunk is free. It must call
    ``send_due`` first, so that another worker may take the next chunk.
    """
    deadline = time.monotonic() + seconds
    first = claim_chunk(task_id, stage, owner)
    if first is None:
        return

    def claim_until_deadline(release: ExitStack) -> Iterator[ChunkClaim]:
        release.pop_all()  # from here on, the block that the function enters releases the chunk
        chunk: ChunkClaim | None = first
        while chunk is not None:
            yield chunk
            chunk = claim_chunk(task_id, stage, owner) if time.monotonic() < deadline else None

    with use_request_id(first.request_id):
        log.info("task_joined", task=task_id, stage=stage)
        try:
            with ExitStack() as release:
                release.push(first)  # if processing fails before taking the chunk, give it back
                process(claim_until_deadline(release))
        except (TaskInterruption, SourceUnavailable) as error:
            log.info("chunk_released", task=task_id, reason=str(error))
        except Exception:
            log.exception("chunk_failed", task=task_id)
