"""Claim tasks: one conditional UPDATE decides, so lost or duplicate messages do no harm."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import timedelta
from time import monotonic
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import structlog
from sqlalchemy import ColumnElement, delete, exists, or_, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session, aliased

from cinestrata_schemas.problems import Action
from cinestrata_schemas.tasks import TaskProgress
from service.catalog.database import now, session_scope
from service.catalog.leases import Lease, record_worker_error
from service.catalog.tables import ACTIVE_STATES, Chunk, Task
from service.core import errors
from service.core.settings import settings
from service.core.tracing import TaskTrace, use_request_id
from service.tasks.lifecycle import state_machine
from service.tasks.lifecycle.publishing import AppendPublication, Publication, reject_duplicates
from service.tasks.lifecycle.state_machine import (
    clear_lease,
    is_published,
    learns,
    lock_owned_task,
    postpone,
    record,
    record_lost_worker,
    set_progress,
    set_state,
)

_Publication = TypeVar("_Publication", Publication, AppendPublication)

EVENT_SECONDS = 0.5  # minimum time between progress events of a task

log = structlog.get_logger(__name__)


class Claim:
    """A claimed task. As a context manager, it renews the lease and leaves the task in a defined state.

    An exception in the block ends it as follows:

    - ``LeaseLost``: nothing is written; another worker owns the task.
    - ``TaskCancelled``: the task is cancelled.
    - Other ``TaskInterruption`` or a signal: the task is given back; the attempt does not count.
    - ``SourceUnavailable``: the task is given back and due again after a pause, or fails after several outages.
    - ``Unavailable`` or ``SQLAlchemyError``: the task is given back; the attempt counts.
    - Any other exception: the task fails with the exception's text as its error.

    No exception leaves the block, except signals (``BaseException``).
    """

    def __init__(self, task: Task, owner: str, token: int) -> None:
        self.task = task  # when it was claimed, outside any session
        self.owner = owner
        self.token = token
        self._epoch = int(task.progress.get("epoch") or 0)
        self._reported_stage: str | None = None
        self._last_event = 0.0
        self._peak_memory: Callable[[], int] | None = None
        self._cancelled = threading.Event()
        self._lease = Lease(
            f"Task {task.id}",
            token,
            Task.lease_expires_at,
            (Task.id == task.id) & (Task.fencing_token == token) & Task.state.in_(ACTIVE_STATES),
            on_renewal=self._notice_cancellation,
        )
        self._context = ExitStack()
        facts = {"task_id": task.id, "method": task.method, "attempt": task.attempts}
        self._trace = TaskTrace({f"cinestrata.{name}": value for name, value in facts.items()})

    def report_memory(self, peak: Callable[[], int]) -> None:
        """Include the peak memory in bytes, as returned by ``peak``, in all later reports."""
        self._peak_memory = peak

    def progress(
        self, stage: str, fraction: float = 0.0, *, epoch: int | None = None, **figures: Any
    ) -> None:
        """Report how far a stage is (0..1); raise LeaseLost, TaskCancelled, WorkerStopping if the job must stop.

        Cheap enough for every step: the catalog is written at most every ``EVENT_SECONDS``. Epochs count from 1; other
        fields of :class:`TaskProgress` are ``figures``.
        """
        self.tick()
        self._trace.enter_stage(stage)
        is_new_epoch = epoch is not None and epoch > self._epoch
        due = stage != self._reported_stage or is_new_epoch or fraction >= 1
        if not due and monotonic() - self._last_event < EVENT_SECONDS:
            return
        progress = TaskProgress(
            stage=stage,
            fraction=min(max(fraction, 0.0), 1.0),
            epoch=epoch,
            peak_memory=self._peak_memory() if self._peak_memory else None,
            **figures,
        )
        try:
            with self._locked() as (session, task):
                set_progress(session, task, progress)
                if is_new_epoch:
                    task.attempts = 1  # farther than any previous attempt
                cancelled = task.cancel_requested
        except errors.Unavailable:
            return  # losing a progress event must not stop the job; losing the lease does
        self._reported_stage, self._last_event = stage, monotonic()
        if is_new_epoch and epoch is not None:
            self._epoch = epoch
        if cancelled:
            raise self._cancellation()

    def tick(self) -> None:
        """Report that the job advances, without figures; raise LeaseLost, TaskCancelled, WorkerStopping."""
        if self._cancelled.is_set():
            raise self._cancellation()
        self._lease.tick()

    def is_published(self) -> bool:
        """Check whether the index has what the task publishes; raise Unavailable."""
        with session_scope() as session:
            return is_published(session, self.task)

    def log(self, message: str, **data: Any) -> None:
        """Append a log event to the task."""
        with self.transaction() as session:
            record(session, self.task.id, "log", {"message": message, **data})

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """Open a transaction that locks the task's row; raise LeaseLost, Unavailable."""
        with self._locked() as (session, _):
            yield session

    @contextmanager
    def _locked(self) -> Iterator[tuple[Session, Task]]:
        try:
            with session_scope(write=True) as session:
                yield session, lock_owned_task(session, self.task.id, self.token)
        except errors.LeaseLost:
            self._lease.loss()
            raise

    def advance(self, state: Literal["training", "indexing", "evaluating"]) -> None:
        """Enter a stage. Entering it for the first time counts as progress (see ``MAX_ATTEMPTS``)."""
        self.tick()
        with self._locked() as (session, task):
            if task.state == state:
                return
            if ACTIVE_STATES.index(state) > ACTIVE_STATES.index(task.state):
                task.attempts = 1
            self._trace.enter_stage(state)
            set_progress(session, task, TaskProgress(stage=state), is_event=False)
            set_state(session, task, state)
            cancelled = task.cancel_requested
        if cancelled:
            raise self._cancellation()

    def finish_probing(self, *, counts: dict[str, int], held_out: str | None) -> None:
        """End probing and give the task back until its training is due."""
        with self._locked() as (session, task):
            task.counts, task.held_out = counts, held_out
            set_progress(session, task, TaskProgress(stage="waiting"))
            task.probed_at = now(session)
            task.attempts = 0
            session.execute(delete(Chunk).where(Chunk.task_id == task.id, Chunk.stage == "probing"))
            clear_lease(task)
        log.info("task_probed", task=self.task.id, **counts)
        self._lease.end()

    def publishing(self) -> AbstractContextManager[Publication]:
        """Lock the task while the index manifest is replaced, then commit its catalog rows.

        ::

            with index_lock(claim.tick), claim.publishing() as publication:
                store.publish(release=release, shards=[shard], before_replace=publication.require_lock)
                publication.complete(release=..., shard=..., recalls=[...], trained=True)

        If the process dies between the two, the shard is in the manifest but not in the catalog. The next claim finds
        it there and completes the publication with the same records: ``complete`` may be repeated. After LeaseLost and
        TaskCancelled, nothing may be published.
        """
        return self._publication(Publication)

    @contextmanager
    def appending(self) -> Iterator[AppendPublication]:
        """Lock the append and its domain while segments are appended, then commit the catalog rows.

        Used and resumed like :meth:`publishing`; raises Conflict if the domain was deleted. Duplicates are rejected
        beforehand, in a separate transaction: if the process dies after the manifest is replaced, the accepted videos
        are still the ones in it.
        """
        with self._locked() as (session, task):
            reject_duplicates(session, task)
        with self._publication(AppendPublication) as publication:
            yield publication

    @contextmanager
    def _publication(self, kind: type[_Publication]) -> Iterator[_Publication]:
        with self._locked() as (session, task):
            if task.cancel_requested and not is_published(session, task):
                raise self._cancellation()
            publication = kind(session, task)
            yield publication
            if not publication.completed:
                raise RuntimeError("a publication was left without complete()")
        self._lease.end()

    def fail(self, reason: str, hint: str | None = None, remedy: Action | None = None) -> None:
        """Fail the task with a reason and a hint."""
        with self._locked() as (session, task):
            set_state(session, task, "failed", error=reason, hint=hint, remedy=remedy)
            record_worker_error(session, self.owner, f"Task {self.task.name!r}: {reason}")
        self._lease.end()

    def cancel(self) -> None:
        """Cancel the task."""
        with self._locked() as (session, task):
            set_state(session, task, "cancelled")
        self._lease.end()

    def release(self, *, count_attempt: bool = False) -> None:
        """Give the task back unfinished, to be claimed again at once; ``count_attempt`` counts this attempt."""
        with self._locked() as (session, task):
            if not count_attempt:
                task.attempts = max(task.attempts - 1, 0)
            clear_lease(task)
            record(session, task.id, "log", {"message": f"Given back by {self.owner}."})
        self._lease.end()

    def __enter__(self) -> Self:
        # Log lines in the block carry the ID of the request that created the task.
        self._context.enter_context(use_request_id(self.task.request_id))
        log.info("task_claimed", task=self.task.id, state=self.task.state, attempt=self.task.attempts)
        self._trace.enter_stage("start")
        self._context.enter_context(self._lease)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        try:
            if error is not None and not self._lease.is_ended:
                self._end_with(error)
        except errors.LeaseLost:
            log.info("lease_lost", task=self.task.id, owner=self.owner)
        except errors.Unavailable:
            log.warning("task_not_released", reason="The catalog is unreachable.", task=self.task.id)
        finally:
            self._lease.end()
            self._trace.end(error)
            self._context.close()
        return error is None or isinstance(error, Exception)

    def _end_with(self, error: BaseException) -> None:
        if isinstance(error, errors.LeaseLost):
            raise error
        if isinstance(error, errors.TaskCancelled):
            self.cancel()
        elif isinstance(error, errors.TaskInterruption) or not isinstance(error, Exception):
            self.release()
        elif isinstance(error, errors.SourceUnavailable):
            with self._locked() as (session, task):
                postpone(session, task, self.task.progress, error)
        elif isinstance(error, (errors.Unavailable, SQLAlchemyError)):
            log.warning("task_released", task=self.task.id, exc_info=error)
            self.release(count_attempt=True)
        else:
            log.error("task_exception", task=self.task.id, exc_info=error)
            is_explained = isinstance(error, (ValueError, errors.CinestrataError))
            reason = str(error) if is_explained else f"{type(error).__name__}: {error}"
            hint = "Check the worker's log and fix the cause, then retry the task."
            remedy = Action(name="retry_task", id=self.task.id)
            self.fail(reason, getattr(error, "hint", None) or hint, remedy)

    def _cancellation(self) -> errors.TaskCancelled:
        return errors.TaskCancelled(f"Task {self.task.id} was cancelled.")

    def _notice_cancellation(self, session: Session) -> None:
        if session.scalar(select(Task.cancel_requested).where(Task.id == self.task.id)):
            self._cancelled.set()


def claim_training(task_id: str, owner: str) -> Claim | None:
    """Claim a task for training, or for resuming an interrupted training.

    None if the task is not the first unfinished one, not probed, finished, about to be cancelled, out of attempts, or
    leased by another worker.
    """
    earlier = aliased(Task)
    is_first = ~exists().where(
        earlier.state.in_(ACTIVE_STATES), learns(earlier), earlier.position < Task.position
    ).correlate(Task)
    return _claim(task_id, owner, learns(), Task.probed_at.is_not(None), is_first)


def claim_append(task_id: str, owner: str) -> Claim | None:
    """Claim an append for embedding; None if it is not due. Several appends and a training may run at the same time."""
    return _claim(task_id, owner, ~learns(), Task.probed_at.is_not(None))


def claim_probing(task_id: str, owner: str) -> Claim | None:
    """Claim a task for probing; None if it is not due. Several tasks may be probed at the same time."""
    return _claim(task_id, owner, Task.probed_at.is_(None))


def _claim(task_id: str, owner: str, *due: ColumnElement[bool]) -> Claim | None:
    with session_scope(write=True) as session:
        at = now(session)
        # An expired training that killed its worker too often is not tried again.
        is_lost = (Task.state == "training") & (Task.attempts >= state_machine.MAX_LOST_TRAININGS)
        # The row stays locked, so this is the owner that the UPDATE replaces.
        previous_owner = session.scalar(select(Task.lease_owner).where(Task.id == task_id).with_for_update())
        token = session.execute(
            update(Task)
            .where(
                Task.id == task_id,
                Task.state.in_(ACTIVE_STATES),
                Task.cancel_requested.is_(False),
                Task.attempts < state_machine.MAX_ATTEMPTS,
                or_(Task.lease_expires_at.is_(None), (Task.lease_expires_at < at) & ~is_lost),
                *due,
            )
            .values(
                lease_owner=owner[:255],
                lease_expires_at=at + timedelta(seconds=settings().lease_seconds),
                fencing_token=Task.fencing_token + 1,
                attempts=Task.attempts + 1,
            )
            .returning(Task.fencing_token)
            .execution_options(synchronize_session=False)
        ).scalar_one_or_none()
        if token is None:
            return None
        if previous_owner is not None:
            published = is_published(session, session.get_one(Task, task_id))
            record_lost_worker(session, task_id, previous_owner, published=published)
        task = session.scalars(select(Task).where(Task.id == task_id)).one()
        task.started_at = task.started_at or at
        if task.state == "queued":
            record(session, task_id, "state", {"state": "probing", "from": "queued"})
            task.state = "probing"
        record(session, task_id, "log", {"message": f"Taken by {owner}.", "attempt": task.attempts})
    return Claim(task, owner, token)
