"""Store tasks, and replay requests with a known Idempotency-Key."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, BinaryIO

from sqlalchemy import insert, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from cinestrata_schemas.domain_names import MAX_NAME_CHARS
from cinestrata_schemas.tasks import TaskDetails, TaskProgress, VideoCounts, VideoSpec
from service.access.audit_log import record_change
from service.catalog.database import id_chunks, now, session_scope
from service.catalog.leases import Lease
from service.catalog.tables import Task, Video
from service.catalog.task_names import assign_slug, require_unused_name
from service.catalog.transcripts import store_transcripts
from service.core.errors import Conflict, NotFound
from service.core.request_ids import current_request_id
from service.tasks import idempotency
from service.tasks.ingestion_checks import AppendRecord, TaskRecord, VideoRecord
from service.tasks.lifecycle.state_machine import next_position
from service.tasks.task_details import task_details
from service.tasks.task_events import record
from service.tasks.uploads.archive_unpacking import archive_digest

_INSERTED_ROWS = 1000  # videos per statement


def insert_queued_task(session: Session, task: Task, videos: Iterable[dict[str, Any]], count: int) -> None:
    """Insert a task in state ``queued`` with its videos, and record its first event.

    Args:
        session: Session that holds the queue lock, see ``service.tasks.lifecycle.state_machine.next_position``.
        task: Task with its ID, position, name, method and settings, and the domain that it appends to or relearns.
        videos: Columns of each video: ``uri``, ``captions``, ``extra`` and others; an ``id`` is generated if missing. A
            ``transcript`` goes to the passages table.
        count: Number of videos.
    """
    task.state, task.created_at, task.request_id = "queued", now(session), current_request_id()
    task.progress = TaskProgress(stage="queued").model_dump(exclude_none=True)
    task.counts = VideoCounts(videos=count).model_dump()
    if task.target_id is None:
        assign_slug(session, task)
    session.add(task)
    session.flush()
    shared = {"task_id": task.id, "added_at": task.created_at, "status": "pending"}
    rows = ({"id": new_id("vid"), **video, **shared} for video in videos)
    while batch := list(islice(rows, _INSERTED_ROWS)):
        transcripts = {row["id"]: row.pop("transcript", None) for row in batch}
        session.execute(insert(Video), batch)
        transcribed = [video for video, cues in transcripts.items() if cues]
        for chunk in id_chunks(transcribed):
            stored = session.execute(select(Video.vector_id, Video.id).where(Video.id.in_(chunk)))
            store_transcripts(session, {vector_id: transcripts[video] for vector_id, video in stored})
    record(session, task.id, "state", {"state": "queued", "from": None}, task.created_at)


def new_id(prefix: str) -> str:
    """Generate a random ID for a task (``tsk``), video (``vid``) or sync (``syn``)."""
    return f"{prefix}_{secrets.token_hex(8)}"


def store_task(task_id: str, checked: TaskRecord | AppendRecord, request: TaskRequest) -> CreateOutcome:
    """Store a validated task, its videos and its request's outcome in one transaction.

    Args:
        checked: Specification of a task or an append.
        request: The request, which names the domain of an append.

    Raises:
        NotFound: The domain of the append does not exist.
        Conflict: The name or an ID belongs to another task, or the domain accepts no videos.
        Unavailable, InDoubt: See ``service.catalog.database.session_scope``.
    """
    try:
        with session_scope(write=True) as session:
            # Take the position first: its lock makes concurrent requests wait, so the following checks stay valid.
            position = next_position(session)
            if isinstance(checked, TaskRecord):
                name, method, settings = checked.name, checked.method, checked.settings
                require_unused_name(session, name)
            else:
                domain = require_learned(session.get(Task, request.target_id), request.target_id)
                suffix = f" (append {task_id})"
                name = domain.name[: MAX_NAME_CHARS - len(suffix)] + suffix
                method, settings = domain.method, dict(domain.settings)
            refuse_duplicates(session, checked.videos)
            originals = _find_originals(session, checked.videos)
            task = Task(
                id=task_id,
                position=position,
                name=name,
                method=method,
                settings=settings,
                target_id=request.target_id,
            )
            rows = (
                {
                    "id": video.id or new_id("vid"),
                    "uri": video.uri,
                    "captions": video.captions,
                    "split": video.split,
                    "extra": video.metadata,
                    "transcript": video.transcript,
                    "copy_of": originals.get(video.replaces),
                }
                for video in checked.videos
            )
            insert_queued_task(session, task, rows, len(checked.videos))
            _record_creation(session, task, len(checked.videos))
            session.flush()
            view = task_details(session, [task])[0]
            request.settle(session, view)
    except IntegrityError as error:
        raise Conflict(
            "This task's name, or one of its IDs, belongs to a task created at the same moment; choose another."
        ) from error
    return CreateOutcome(view, replayed=False)


def require_learned(task: Task | None, task_id: str | None) -> Task:
    """Check that videos can be appended to a task's domain, and return the task.

    Args:
        task: The task; None if it does not exist.

    Raises:
        NotFound: The task does not exist.
        Conflict: The task is not a learned domain.
    """
    if task is None:
        raise NotFound(f"There is no task {task_id!r}.")
    if task.target_id is not None:
        raise Conflict(f"Task {task_id} is itself an append; append to task {task.target_id}.")
    if task.deleted_at is not None:
        raise Conflict(f"The domain of task {task_id} was deleted; post its videos as a new task.")
    if task.state != "ready":
        raise Conflict(f"Task {task_id} is {task.state}; videos can be appended once it is ready.")
    return task


def refuse_duplicates(session: Session, videos: Sequence[VideoRecord | VideoSpec]) -> None:
    """Refuse IDs that belong to existing videos.

    Raises:
        Conflict: An ID belongs to another video; the error names the first one.
    """
    numbers = {video.id: number for number, video in enumerate(videos) if video.id is not None}
    for chunk in id_chunks(list(numbers)):
        taken = session.execute(
            select(Video.id, Task.name).join(Task).where(Video.id.in_(chunk)).limit(1)
        ).first()
        if taken:
            raise Conflict(
                f"videos[{numbers[taken.id]}].id: The ID {taken.id!r} belongs to a video of task {taken.name!r}. "
                "Choose another ID, or omit it."
            )


def _find_originals(session: Session, videos: Sequence[VideoRecord]) -> dict[str | None, int]:
    """Look up the vector IDs of the videos that others replace; raise Conflict if one cannot be replaced."""
    numbers = {video.replaces: number for number, video in enumerate(videos) if video.replaces}
    if len(numbers) < sum(video.replaces is not None for video in videos):
        raise Conflict("videos: Two of the videos replace the same one.")
    found: dict[str | None, int] = {}
    for chunk in id_chunks(list(numbers)):
        rows = session.execute(
            select(Video.id, Video.vector_id)
            .join(Task)
            .where(Video.id.in_(chunk), Video.status == "accepted", Task.state == "ready")
        )
        found.update({video: vector_id for video, vector_id in rows})
    if missing := next((video for video in numbers if video not in found), None):
        raise Conflict(f"videos[{numbers[missing]}].replaces: No search can find the video {missing!r}.")
    return found


def _record_creation(session: Session, task: Task, videos: int) -> None:
    if task.target_id is None:
        record_change(
            session, "task.create", task.id, {"name": task.name, "method": task.method, "videos": videos}
        )
    else:
        record_change(session, "task.append", task.target_id, {"append": task.id, "videos": videos})


@dataclass(frozen=True)
class CreateOutcome:
    """A request's task. ``replayed``: a previous request with the same Idempotency-Key created it."""

    task: TaskDetails
    replayed: bool


@dataclass(frozen=True)
class TaskRequest:
    """A request for a new task.

    Attributes:
        key: Its ``Idempotency-Key``.
        caller: Identity of the caller, who has their own keys.
        target_id: For an append, the ID of the domain's task.
    """

    key: str | None
    caller: str
    target_id: str | None = None

    def create_once(
        self, content: Any, create: Callable[[], CreateOutcome], *, archive: BinaryIO | None = None
    ) -> CreateOutcome:
        """Create the task, or return the outcome of a previous request with the same key.

        Args:
            content: JSON value that identifies the request; the same key with another value is refused.
            create: Stores the task and calls :meth:`settle` in the same transaction. If it fails and no task is stored,
                the key can be used again.
            archive: Archive with the videos, which is part of the content. It is rewound.

        Raises:
            IdempotencyMismatch, IdempotencyInFlight: See ``service.tasks.idempotency``.
        """
        if self.key is None:
            return create()
        reserved = idempotency.reserve(self.caller, self.key, _content_hash(content, archive))
        if not isinstance(reserved, Lease):
            return CreateOutcome(TaskDetails.model_validate(reserved), replayed=True)
        with reserved:
            try:
                outcome = create()
            except BaseException:
                idempotency.drop(self.caller, self.key)
                raise
            reserved.end()  # with the task
            return outcome

    def settle(self, session: Session, task: TaskDetails) -> None:
        """Store the response under the key, in the transaction that stores the task."""
        if self.key is not None:
            idempotency.settle(session, self.caller, self.key, task.id, task.model_dump(mode="json"))


def _content_hash(content: Any, archive: BinaryIO | None) -> str:
    body = json.dumps(content, sort_keys=True, default=str)
    digest = hashlib.sha256(body.encode("utf-8", "surrogatepass"))  # strings may contain lone surrogates
    if archive is not None:
        digest.update(archive_digest(archive))
    return digest.hexdigest()
