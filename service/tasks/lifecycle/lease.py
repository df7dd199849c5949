"""A worker's hold on a task.

The heartbeat thread renews the lease only while progress is reported. So a worker that hangs is found out like
one that died: its lease runs out, the token grows, and whatever it still tries to write is refused.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal, Self

import structlog
from sqlalchemy import update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from service.catalog.database import now, session_scope
from service.catalog.tables import ACTIVE_STATES, LEARNING_STATES, Task
from service.core.errors import LeaseLost, TaskCancelled, TaskInterruption, Unavailable, WorkerStopping
from service.core.schemas import TaskProgress
from service.core.settings import settings
from service.storage import index_manifest
from service.tasks.lifecycle.publishing import Publication
from service.tasks.lifecycle.shutdown import is_stopping
from service.tasks.lifecycle.state_machine import clear_lease, move, owned
from service.tasks.task_events import record

__all__ = ["Claim", "TaskSnapshot"]

STALL_SECONDS = 900.0  # a worker without progress for this long loses its lease
EVENT_SECONDS = 0.5  # minimum time between two progress events of a task

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class TaskSnapshot:
    """The task as it was when it was claimed."""

    id: str
    name: str
    position: int
    method: str
    settings: dict[str, Any]
    state: str
    counts: dict[str, Any]
    progress: dict[str, Any]
    held_out: str | None
    attempts: int

    @classmethod
    def of(cls, task: Task) -> TaskSnapshot:
        """Copy what a worker needs to know."""
        return cls(
            id=task.id,
            name=task.name,
            position=task.position,
            method=task.method,
            settings=dict(task.settings),
            state=task.state,
            counts=dict(task.counts),
            progress=dict(task.progress),
            held_out=task.held_out,
            attempts=task.attempts,
        )


class Claim:
    """A claimed task. As a context manager it keeps the lease alive and brings the task to a defined end.

    Leaving the block with an exception

    - ``LeaseLost``: nothing is written; another worker owns the task.
    - ``TaskCancelled``: the task is cancelled.
    - ``WorkerStopping`` or a signal: the lease is given back; the attempt does not count.
    - ``Unavailable``: the lease is given back; the attempt counts.
    - any other exception: the task fails, with the exception's sentence as its reason.

    None of them leaves the block, except signals (``BaseException``).
    """

    def __init__(self, task: TaskSnapshot, owner: str, token: int) -> None:
        self.task = task
        self.owner = owner
        self.token = token
        self._moves = 0  # the progress counter
        self._epoch = int(task.progress.get("epoch") or 0)
        self._stage: str | None = None
        self._written = 0.0
        self._lost = threading.Event()
        self._cancelled = threading.Event()
        self._finished = threading.Event()
        self._heart: threading.Thread | None = None

    # --- telling how far it is ---

    def progress(
        self,
        stage: str,
        fraction: float = 0.0,
        *,
        done: int | None = None,
        total: int | None = None,
        epoch: int | None = None,
        epochs: int | None = None,
        loss: float | None = None,
        videos_per_second: float | None = None,
        eta_seconds: float | None = None,
    ) -> None:
        """Say how far the stage is, 0..1. Cheap: call it at every step; the catalog hears of it now and then.

        Raises:
            LeaseLost, TaskCancelled, WorkerStopping: stop working on this task now.
        """
        self.tick()
        farther = epoch is not None and epoch > self._epoch
        due = stage != self._stage or farther or fraction >= 1
        if not due and time.monotonic() - self._written < EVENT_SECONDS:
            return
        view = TaskProgress(
            stage=stage,
            fraction=min(max(fraction, 0.0), 1.0),
            done=done,
            total=total,
            epoch=epoch,
            epochs=epochs,
            loss=loss,
            videos_per_second=videos_per_second,
        ).model_dump(exclude_none=True)
        try:
            with self.transaction() as session:
                task = owned(session, self.task.id, self.token)
                task.progress, task.eta_seconds = view, eta_seconds
                if farther:
                    task.attempts = 1  # it got further than any attempt before
                cancelled = task.cancel_requested
                record(session, task.id, "progress", {**view, "eta_seconds": eta_seconds})
        except Unavailable:
            return  # a progress line is not worth the work; the lease decides whether we may go on
        self._stage, self._written = stage, time.monotonic()
        if farther and epoch is not None:
            self._epoch = epoch
        if cancelled:
            raise TaskCancelled(f"Task {self.task.id} was cancelled.")

    def tick(self) -> None:
        """Say that the work goes on, without figures.

        Raises:
            LeaseLost, TaskCancelled, WorkerStopping: stop working on this task now.
        """
        self._moves += 1
        if self._lost.is_set():
            raise LeaseLost(f"Task {self.task.id} no longer belongs to this worker.")
        if self._cancelled.is_set():
            raise TaskCancelled(f"Task {self.task.id} was cancelled.")
        if is_stopping():
            raise WorkerStopping("This worker is stopping; the task goes on when one is back.")

    def log(self, message: str, **data: Any) -> None:
        """Tell the task's readers something in words."""
        with self.transaction() as session:
            record(session, self.task.id, "log", {"message": message, **data})

    # --- changing the task ---

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """A transaction that holds the task's row and is refused when the task is not ours any more.

        Raises:
            LeaseLost: another worker owns the task, or it has ended.
            Unavailable: the database cannot be reached.
        """
        try:
            with session_scope(write=True) as session:
                owned(session, self.task.id, self.token)
                yield session
        except LeaseLost:
            self._lost.set()
            raise

    def advance(self, state: Literal["training", "indexing", "evaluating"]) -> None:
        """Enter a stage. Entering one for the first time counts as progress (see ``max_attempts``)."""
        self.tick()
        with self.transaction() as session:
            task = owned(session, self.task.id, self.token)
            if task.state == state:
                return
            if task.state not in LEARNING_STATES or LEARNING_STATES.index(state) > LEARNING_STATES.index(
                task.state
            ):
                task.attempts = 1
            task.progress = TaskProgress(stage=state).model_dump(exclude_none=True)
            task.eta_seconds = None
            move(session, task, state)
            cancelled = task.cancel_requested
        if cancelled:
            raise TaskCancelled(f"Task {self.task.id} was cancelled.")

    def finish_probing(self, *, counts: dict[str, int], held_out: str | None) -> None:
        """The videos are examined: give the task back, to wait for its turn to be learned."""
        with self.transaction() as session:
            task = owned(session, self.task.id, self.token)
            task.counts, task.held_out = counts, held_out
            task.progress = TaskProgress(stage="waiting").model_dump(exclude_none=True)
            task.eta_seconds = None
            task.probed_at = now(session)
            task.attempts = 0
            clear_lease(task)
            record(session, task.id, "progress", task.progress)
        self._finished.set()

    @contextmanager
    def publishing(self) -> Iterator[Publication]:
        """Hold the task while the index's manifest is replaced, and commit the catalog's rows with it.

        ::

            with claim.publishing() as publication:
                store.publish(release=release, shards=[shard])
                publication.complete(release=..., shard=..., recalls=[...], trained=True)

        If the process dies between the two, the manifest shows the shard and the catalog does not. The task
        is then claimed again, finds its shard in the manifest, and comes here a second time with the same
        facts: ``complete`` may be repeated.

        Raises:
            LeaseLost: another worker owns the task; nothing may be published.
            TaskCancelled: the user cancelled it before anything was published.
        """
        with self.transaction() as session:
            task = owned(session, self.task.id, self.token)
            if task.cancel_requested and not index_manifest.is_published(task.id):
                raise TaskCancelled(f"Task {task.id} was cancelled.")
            publication = Publication(session, task)
            yield publication
            if not publication.completed:
                raise RuntimeError("publishing() was left without complete()")
        self._finished.set()

    def fail(self, reason: str, hint: str | None = None) -> None:
        """End the task with a reason, and what a person can do about it."""
        with self.transaction() as session:
            move(session, owned(session, self.task.id, self.token), "failed", error=reason, hint=hint)
        self._finished.set()

    def cancel(self) -> None:
        """End the task because the user asked for it."""
        with self.transaction() as session:
            move(session, owned(session, self.task.id, self.token), "cancelled")
        self._finished.set()

    def release(self, *, count_attempt: bool = False) -> None:
        """Give the task back unfinished; it is due again at once."""
        with self.transaction() as session:
            task = owned(session, self.task.id, self.token)
            if not count_attempt:
                task.attempts = max(task.attempts - 1, 0)
            clear_lease(task)
            record(session, task.id, "log", {"message": f"Given back by {self.owner}."})
        self._finished.set()

    # --- the heartbeat ---

    def __enter__(self) -> Self:
        self._heart = threading.Thread(target=self._beat, name=f"lease-{self.task.id}", daemon=True)
        self._heart.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        try:
            if error is not None and not self._finished.is_set():
                self._end_with(error)
        except LeaseLost:
            log.info("lease lost", task=self.task.id, owner=self.owner)
        except Unavailable:
            log.warning("catalog unreachable; the lease will run out", task=self.task.id)
        finally:
            self._finished.set()
            if self._heart is not None:
                self._heart.join()
        return error is None or isinstance(error, Exception)

    def _end_with(self, error: BaseException) -> None:
        if isinstance(error, LeaseLost):
            raise error
        if isinstance(error, TaskCancelled):
            self.cancel()
        elif isinstance(error, TaskInterruption) or not isinstance(error, Exception):
            self.release()
        elif isinstance(error, (Unavailable, SQLAlchemyError)):
            log.warning("given back", task=self.task.id, exc_info=error)
            self.release(count_attempt=True)
        else:
            log.error("task failed", task=self.task.id, exc_info=error)
            self.fail(
                f"{type(error).__name__}: {error}" if not isinstance(error, ValueError) else str(error),
                getattr(error, "hint", None)
                or f"Look at the worker's log, correct the cause, then POST /tasks/{self.task.id}/retry.",
            )

    def _beat(self) -> None:
        seen, moved = self._moves, time.monotonic()
        while not self._finished.wait(settings().lease_seconds / 3):
            if self._moves != seen:
                seen, moved = self._moves, time.monotonic()
            elif time.monotonic() - moved > STALL_SECONDS:
                log.warning("no progress; the lease is left to run out", task=self.task.id)
                continue
            try:
                cancelled = self._renew()
            except Unavailable:
                log.warning("catalog unreachable; the lease was not renewed", task=self.task.id)
                continue
            if cancelled is None:
                if not self._finished.is_set():
                    self._lost.set()
                return
            if cancelled:
                self._cancelled.set()

    def _renew(self) -> bool | None:
        """Returns whether cancelling was requested; None when the lease is lost."""
        with session_scope(write=True) as session:
            return session.execute(
                update(Task)
                .where(
                    Task.id == self.task.id, Task.fencing_token == self.token, Task.state.in_(ACTIVE_STATES)
                )
                .values(lease_expires_at=now(session) + timedelta(seconds=settings().lease_seconds))
                .returning(Task.cancel_requested)
                .execution_options(synchronize_session=False)
            ).scalar_one_or_none()
