"""Commands on tasks: create, list, get, cancel, retry."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from pydantic import ValidationError
from sqlalchemy import exists, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from service.catalog.database import id_chunks, now, session_scope
from service.catalog.tables import ACTIVE_STATES, Task, Video
from service.core.errors import Conflict, InDoubt, InvalidInput, NotFound
from service.core.schemas import RejectedVideo, TaskDetails, TaskProgress, TaskSpec, VideoCounts
from service.storage import index_manifest
from service.tasks import broker, idempotency
from service.tasks.archives import upload_storage
from service.tasks.archives.archive_unpacking import archive_digest, unpack_archive
from service.tasks.ingestion_checks import TaskRecord, validate_task
from service.tasks.lifecycle import send_due
from service.tasks.lifecycle.state_machine import lock_task, next_position, set_state
from service.tasks.task_events import events_after, record

__all__ = [
    "DEFAULT_SECONDS_PER_VIDEO",
    "CreateOutcome",
    "cancel_task",
    "create_task",
    "create_task_from_archive",
    "events_after",
    "get_task",
    "list_tasks",
    "retry_task",
    "seconds_per_video",
]

DEFAULT_SECONDS_PER_VIDEO = 1.0  # until finished tasks give an estimate


@dataclass(frozen=True)
class CreateOutcome:
    """The task of a request. ``replayed``: an earlier request with the same Idempotency-Key created it."""

    task: TaskDetails
    replayed: bool


def create_task(spec: TaskSpec, *, idempotency_key: str | None = None, caller: str = "") -> CreateOutcome:
    """Store a task and send a message to the workers. A returned task is durable.

    Args:
        spec: Specification of the task.
        idempotency_key: The ``Idempotency-Key`` of the request.
        caller: Identity of the caller; keys of different callers are independent.

    Raises:
        InvalidInput: fields are invalid; the error names each of them.
        Conflict: the name or an id belongs to another task.
        IdempotencyMismatch, IdempotencyInFlight: see ``service.tasks.idempotency``.
        Unavailable: nothing was stored; the request can be sent again.
        InDoubt: the task may be stored; a repetition with the same Idempotency-Key stores it once.
    """
    body = json.dumps(spec.model_dump(exclude_unset=True), sort_keys=True, allow_nan=True)
    body_hash = hashlib.sha256(body.encode("utf-8", "surrogatepass")).hexdigest()
    replayed = _replay(caller, idempotency_key, body_hash)
    if replayed:
        return replayed
    try:
        stored = _store(_new_id("tsk"), validate_task(spec), idempotency_key, caller)
    except BaseException:
        _drop_key(caller, idempotency_key)
        raise
    broker.send_probe(stored.task.id)
    return stored


def create_task_from_archive(
    archive: BinaryIO,
    filename: str,
    *,
    name: str,
    method: str | None = None,
    settings: dict[str, Any] | None = None,
    idempotency_key: str | None = None,
    caller: str = "",
) -> CreateOutcome:
    """Create a task from an archive of videos with a manifest (see ``service.tasks.archives.manifest_parser``).

    After an error no file of the archive is left, except if the catalog did not confirm the commit: the task may be
    stored, so its files stay, and ``upload_storage.sweep_uploads`` removes them if the task is not stored.

    Raises:
        InvalidInput, TooLarge: the archive or its manifest is invalid.
        Conflict, IdempotencyMismatch, IdempotencyInFlight, Unavailable, InDoubt: as for ``create_task``.
    """
    head = json.dumps([name, method, settings, filename], sort_keys=True, default=str)
    digest = hashlib.sha256(head.encode("utf-8", "surrogatepass"))
    digest.update(archive_digest(archive))
    replayed = _replay(caller, idempotency_key, digest.hexdigest())
    if replayed:
        return replayed
    task_id = _new_id("tsk")
    try:
        videos = unpack_archive(archive, filename, task_id)
        try:
            spec = TaskSpec.model_validate(
                {
                    "name": name,
                    "method": method,
                    "settings": settings,
                    "videos": [video.model_dump(exclude_unset=True) for video in videos],
                }
            )
        except ValidationError as error:
            raise InvalidInput.from_pydantic(error.errors()) from None
        stored = _store(task_id, validate_task(spec), idempotency_key, caller)
    except BaseException as error:
        if not isinstance(error, InDoubt):
            upload_storage.remove_upload(task_id)
        _drop_key(caller, idempotency_key)
        raise
    broker.send_probe(
        task_id
    )  # outside of the try block: the stored task needs its files even if sending fails
    return stored


def list_tasks() -> list[TaskDetails]:
    """Return all tasks in the order of their positions."""
    with session_scope() as session:
        return _task_details(session, session.scalars(select(Task).order_by(Task.position)).all())


def get_task(task_id: str) -> TaskDetails:
    """Return a task.

    Raises:
        NotFound: the task does not exist.
    """
    with session_scope() as session:
        task = session.get(Task, task_id)
        if task is None:
            raise NotFound(f"There is no task {task_id!r}.")
        return _task_details(session, [task])[0]


def cancel_task(task_id: str) -> TaskDetails:
    """Cancel a task: at once if no worker owns it, otherwise at the next step of the worker. Idempotent.

    Raises:
        NotFound: the task does not exist.
        Conflict: the task is ready or failed, or its shard is already published.
    """
    with session_scope(write=True) as session:
        task = lock_task(session, task_id)
        if task.state in ("ready", "failed"):
            raise Conflict(f"Task {task_id} is {task.state}; only an unfinished task can be cancelled.")
        if task.state in ACTIVE_STATES:
            if index_manifest.is_published(task_id):
                raise Conflict(
                    f"The shard of task {task_id} is already published; the task is about to be ready."
                )
            if task.lease_expires_at is None or task.lease_expires_at < now(session):
                set_state(session, task, "cancelled")
            elif not task.cancel_requested:
                task.cancel_requested = True
                record(session, task_id, "log", {"message": "Cancellation was requested."})
        view = _task_details(session, [task])[0]
    send_due()  # the next task may have been waiting for this one
    return view


def retry_task(task_id: str) -> TaskDetails:
    """Queue a failed or cancelled task again, at the end.

    Raises:
        NotFound: the task does not exist.
        Conflict: the task is neither failed nor cancelled.
    """
    with session_scope(write=True) as session:
        task = lock_task(session, task_id)
        if task.state not in ("failed", "cancelled"):
            raise Conflict(f"Task {task_id} is {task.state}; only a failed or cancelled task can be retried.")
        task.position = next_position(session)
        task.attempts, task.cancel_requested = 0, False
        task.probed_at = task.started_at = task.finished_at = task.held_out = None
        task.progress = TaskProgress(stage="queued").model_dump(exclude_none=True)
        videos = session.scalars(select(Video).where(Video.task_id == task_id)).all()
        for video in videos:  # all of them: the files may have been replaced
            video.status, video.reason, video.content_hash, video.effective_split = (
                "pending",
                None,
                None,
                None,
            )
        task.counts = VideoCounts(videos=len(videos)).model_dump()
        set_state(session, task, "queued")
        view = _task_details(session, [task])[0]
    broker.send_probe(task_id)
    return view


def _replay(caller: str, key: str | None, body_hash: str) -> CreateOutcome | None:
    stored = idempotency.reserve(caller, key, body_hash) if key is not None else None
    return CreateOutcome(TaskDetails.model_validate(stored), replayed=True) if stored else None


def _drop_key(caller: str, key: str | None) -> None:
    if key is not None:
        idempotency.drop(caller, key)


def _store(task_id: str, checked: TaskRecord, key: str | None, caller: str) -> CreateOutcome:
    try:
        with session_scope(write=True) as session:
            # The position is taken first: its lock makes concurrent requests wait, so the following checks stay valid.
            position = next_position(session)
            _refuse_duplicates(session, checked)
            task = Task(
                id=task_id,
                position=position,
                name=checked.name,
                method=checked.method,
                settings=checked.settings,
                state="queued",
                progress=TaskProgress(stage="queued").model_dump(exclude_none=True),
                counts=VideoCounts(videos=len(checked.videos)).model_dump(),
                created_at=now(session),
                attempts=0,
                fencing_token=0,
                cancel_requested=False,
                trained=False,
            )
            session.add(task)
            session.flush()
            session.add_all(
                Video(
                    id=video.id or _new_id("vid"),
                    task_id=task_id,
                    uri=video.uri,
                    captions=video.captions,
                    split=video.split,
                    extra=video.metadata,
                    status="pending",
                )
                for video in checked.videos
            )
            record(session, task_id, "state", {"state": "queued", "from": None}, task.created_at)
            session.flush()
            view = _task_details(session, [task])[0]
            if key is not None:
                idempotency.settle(session, caller, key, task_id, view.model_dump(mode="json"))
    except IntegrityError as error:
        raise Conflict(
            "The name or an id of this task belongs to a task that was created at the same moment; choose another."
        ) from error
    return CreateOutcome(view, replayed=False)


def _refuse_duplicates(session: Session, checked: TaskRecord) -> None:
    if session.scalar(select(exists().where(Task.name == checked.name))):
        raise Conflict(f"name: A task {checked.name!r} already exists. Choose another name.")
    numbers = {video.id: number for number, video in enumerate(checked.videos) if video.id is not None}
    for chunk in id_chunks(list(numbers)):
        taken = session.execute(
            select(Video.id, Task.name).join(Task).where(Video.id.in_(chunk)).limit(1)
        ).first()
        if taken:
            raise Conflict(
                f"videos[{numbers[taken.id]}].id: The id {taken.id!r} belongs to a video of task {taken.name!r}. "
                "Choose another id, or omit it."
            )


def _task_details(session: Session, tasks: Sequence[Task]) -> list[TaskDetails]:
    rejected = _rejected(session, [task.id for task in tasks])
    remaining = _remaining_seconds(session) if any(_is_waiting(task) for task in tasks) else {}
    return [
        TaskDetails(
            id=task.id,
            name=task.name,
            method=task.method,
            settings=task.settings,
            state=task.state,  # type: ignore[arg-type]
            progress=TaskProgress.model_validate(task.progress),
            eta_seconds=remaining.get(task.id) if _is_waiting(task) else task.eta_seconds,
            rejected=rejected.get(task.id, []),
            error=task.error,
            error_hint=task.error_hint,
            counts=VideoCounts.model_validate(task.counts),
            learned_order=task.learned_order,
            release=task.release_id,
            trained=task.trained,
            held_out=task.held_out,  # type: ignore[arg-type]
            position=task.position,
            attempts=task.attempts,
            cancel_requested=task.cancel_requested,
            created_at=task.created_at,
            started_at=task.started_at,
            finished_at=task.finished_at,
        )
        for task in tasks
    ]


def _rejected(session: Session, task_ids: list[str]) -> dict[str, list[RejectedVideo]]:
    found: dict[str, list[RejectedVideo]] = {}
    for chunk in id_chunks(task_ids):
        rows = session.execute(
            select(Video.task_id, Video.uri, Video.reason)
            .where(Video.status == "rejected", Video.task_id.in_(chunk))
            .order_by(Video.vector_id)
        )
        for task_id, uri, reason in rows:
            found.setdefault(task_id, []).append(RejectedVideo(uri=uri, reason=reason or ""))
    return found


def _is_waiting(task: Task) -> bool:
    return task.state in ("queued", "probing") and task.eta_seconds is None


def _remaining_seconds(session: Session) -> dict[str, float]:
    """Estimate the seconds until each unfinished task is ready.

    The estimate uses the tasks ahead of it and the pace of recent tasks.
    """
    pace = seconds_per_video(
        session.scalars(
            select(Task)
            .where(Task.state == "ready", Task.started_at.is_not(None), Task.finished_at.is_not(None))
            .order_by(Task.position.desc())
            .limit(5)
        )
    )
    remaining, ahead = {}, 0.0
    pending = dict(
        session.execute(
            select(Video.task_id, func.count())
            .join(Task)
            .where(Task.state.in_(ACTIVE_STATES), Video.status != "rejected")
            .group_by(Video.task_id)
        ).all()
    )
    for task in session.scalars(select(Task).where(Task.state.in_(ACTIVE_STATES)).order_by(Task.position)):
        own = pending.get(task.id, 0) * pace
        ahead += own if task.eta_seconds is None else min(own, task.eta_seconds)
        remaining[task.id] = round(ahead, 1)
    return remaining


def seconds_per_video(tasks: Iterable[Task]) -> float:
    """Return the mean duration of finished tasks per video; a default if there are none."""
    seconds, videos = 0.0, 0
    for task in tasks:
        left = task.counts.get("videos")  # zero if all were deleted: the duration gives no pace then
        if task.started_at and task.finished_at and left:
            seconds += (task.finished_at - task.started_at).total_seconds()
            videos += left
    return seconds / videos if videos else DEFAULT_SECONDS_PER_VIDEO


def _new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(8)}"
