"""Store tasks."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import insert, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from cinestrata_schemas.domain_names import MAX_NAME_CHARS
from cinestrata_schemas.tasks import AppendSpec, TaskProgress, TaskSpec, VideoCounts, VideoSpec
from index.arrays import batches
from service.access.audit_log import record_change
from service.catalog.database import id_chunks, now, session_scope
from service.catalog.tables import Task, Video
from service.catalog.task_names import assign_slug, require_unused_name
from service.catalog.transcripts import store_transcripts
from service.core.errors import Conflict, NotFound
from service.core.request_ids import current_request_id
from service.tasks.idempotency import CreateOutcome, TaskRequest
from service.tasks.ingestion_checks import normalize_transcript
from service.tasks.lifecycle.state_machine import next_position
from service.tasks.task_details import task_details
from service.tasks.task_events import record

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
    rows = [{"id": new_id("vid"), **video, **shared} for video in videos]
    for batch in batches(rows, _INSERTED_ROWS):
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


def store_task(task_id: str, spec: TaskSpec | AppendSpec, request: TaskRequest) -> CreateOutcome:
    """Store a validated task, its videos and its request's outcome in one transaction.

    Args:
        spec: Validated specification.
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
            if isinstance(spec, TaskSpec):
                name, method, settings = spec.name, spec.method, spec.settings
                require_unused_name(session, name)
            else:
                domain = require_learned(session.get(Task, request.target_id), request.target_id)
                suffix = f" (append {task_id})"
                name = domain.name[: MAX_NAME_CHARS - len(suffix)] + suffix
                method, settings = domain.method, dict(domain.settings)
            refuse_duplicates(session, spec.videos)
            originals = _find_originals(session, spec.videos)
            task = Task(id=task_id, position=position, name=name, method=method, settings=settings)
            task.target_id = request.target_id
            rows = (
                {
                    "id": video.id or new_id("vid"),
                    "uri": video.uri,
                    "captions": video.captions,
                    "split": video.split,
                    "extra": video.metadata or {},
                    "transcript": normalize_transcript(video.transcript),
                    "copy_of": originals.get(video.replaces),
                }
                for video in spec.videos
            )
            insert_queued_task(session, task, rows, len(spec.videos))
            _record_creation(session, task, len(spec.videos))
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


def refuse_duplicates(session: Session, videos: Sequence[VideoSpec]) -> None:
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


def _find_originals(session: Session, videos: Sequence[VideoSpec]) -> dict[str | None, int]:
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
        facts = {"name": task.name, "method": task.method, "videos": videos}
        record_change(session, "task.create", task.id, facts)
    else:
        record_change(session, "task.append", task.target_id, {"append": task.id, "videos": videos})
