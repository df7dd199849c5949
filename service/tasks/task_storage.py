"""Store tasks, relearn appended videos, and describe tasks as clients see them.

A relearning becomes a new domain: a task learns copies of the appended videos. The originals stay searchable until its
publication replaces them by the copies (:mod:`service.tasks.lifecycle.publishing`), so that no search returns a video
twice. A failed or cancelled task changes nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from asgi_correlation_id import correlation_id
from sqlalchemy import func, insert, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from cinestrata_schemas.domain_names import MAX_NAME_CHARS
from cinestrata_schemas.problems import Action
from cinestrata_schemas.tasks import (
    AppendSpec,
    RejectedVideo,
    RelearnSpec,
    TaskDetails,
    TaskProgress,
    TaskSpec,
    VideoCounts,
    VideoSpec,
)
from index.arrays import batches
from service.access.audit_log import record_change
from service.catalog.database import id_chunks, now, session_scope
from service.catalog.domain_videos import read_counts
from service.catalog.readings import read_unfinished
from service.catalog.tables import ACTIVE_STATES, Task, Video, to_response
from service.catalog.task_names import assign_slug, require_unused_name
from service.catalog.video_texts import copy_texts, group_texts, store_texts
from service.core.errors import Conflict, NotFound
from service.storage.disk_budget import require_disk_space
from service.tasks import broker
from service.tasks.idempotency import CreateOutcome, TaskRequest
from service.tasks.ingestion_checks import normalize_transcript
from service.tasks.lifecycle.state_machine import next_position, record

_INSERTED_ROWS = 1000  # videos per statement


def insert_queued_task(session: Session, task: Task, videos: Iterable[dict[str, Any]], count: int) -> None:
    """Insert a task in state ``queued`` with its videos, and record its first event. The session holds the queue lock.

    The task has its ID, position, name, method and settings, and the domain that it appends to or relearns. Videos are
    columns: ``uri``, ``captions``, ``extra`` and others. An ``id`` is generated if missing, and a ``transcript`` goes
    to the passages table.
    """
    task.state, task.created_at, task.request_id = "queued", now(session), correlation_id.get()
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
            store_texts(session, {vector_id: group_texts(transcripts[video]) for vector_id, video in stored})
    record(session, task.id, "state", {"state": "queued", "from": None}, task.created_at)


def new_id(prefix: str) -> str:
    """Generate a random ID for a task (``tsk``), video (``vid``) or sync (``syn``)."""
    return f"{prefix}_{secrets.token_hex(8)}"


def store_task(task_id: str, spec: TaskSpec | AppendSpec, request: TaskRequest) -> CreateOutcome:
    """Store a validated task, its videos and its request's outcome in one transaction; raise NotFound."""
    try:
        with session_scope(write=True) as session:
            # Take the position first: its lock makes concurrent requests wait, so the following checks stay valid.
            position = next_position(session)
            if isinstance(spec, TaskSpec):
                name, method, settings, backbone = spec.name, spec.method, spec.settings, spec.backbone
                read = spec.read
                require_unused_name(session, name)
            else:
                domain = require_learned(session.get(Task, request.target_id), request.target_id)
                suffix = f" (append {task_id})"
                name = domain.name[: MAX_NAME_CHARS - len(suffix)] + suffix
                method, settings, backbone = domain.method, dict(domain.settings), domain.backbone
                read = domain.read
            refuse_duplicates(session, spec.videos)
            originals = _find_originals(session, spec.videos)
            task = Task(id=task_id, position=position, name=name, method=method, settings=settings)
            task.target_id, task.backbone, task.read = request.target_id, backbone, read
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
            videos = len(spec.videos)
            if task.target_id is None:
                facts = {"name": name, "method": method, "backbone": backbone, "videos": videos}
                record_change(session, "task.create", task_id, facts)
            else:
                record_change(session, "task.append", task.target_id, {"append": task_id, "videos": videos})
            session.flush()
            view = task_details(session, [task])[0]
            request.settle(session, view)
    except IntegrityError as error:
        raise Conflict(
            "This task's name, or one of its IDs, belongs to a task created at the same moment; choose another."
        ) from error
    return CreateOutcome(view, replayed=False)


def require_learned(task: Task | None, task_id: str | None) -> Task:
    """Check that videos can be appended to a task's domain, and return the task; raise NotFound or Conflict."""
    if task is None:
        raise NotFound(f"There is no task {task_id!r}.")
    if task.target_id is not None:
        raise Conflict(f"{task_id} is an append; append to the domain {task.target_id}.")
    if task.deleted_at is not None:
        raise Conflict(f"The domain {task_id} was deleted; send its videos as a new domain.")
    if task.state != "ready":
        raise Conflict(f"The domain {task_id} is {task.state}; videos can be appended once it is ready.")
    return task


def refuse_duplicates(session: Session, videos: Sequence[VideoSpec]) -> None:
    """Refuse IDs that belong to existing videos; raise Conflict."""
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
        raise Conflict("videos: Two of the videos replace the same video. Keep one of them.")
    originals: dict[str | None, int] = {}
    searchable = (
        select(Video.id, Video.vector_id).join(Task).where(Video.status == "accepted", Task.state == "ready")
    )
    for chunk in id_chunks(list(numbers)):
        originals |= {
            video: vector_id for video, vector_id in session.execute(searchable.where(Video.id.in_(chunk)))
        }
    if missing := next((video for video in numbers if video not in originals), None):
        raise Conflict(f"videos[{numbers[missing]}].replaces: No search can find the video {missing!r}.")
    return originals


def relearn_appended_videos(
    task_id: str, spec: RelearnSpec, *, idempotency_key: str | None = None, caller: str = ""
) -> CreateOutcome:
    """Store a task that learns the appended videos of a domain, or of an append's domain, as a new domain.

    While the task is unfinished, a repeated request returns it; with the same key, also afterwards. Raises NotFound,
    Conflict if there is nothing to relearn or the name is taken, InsufficientStorage, and as ``commands.create_task``.
    """
    request = TaskRequest(idempotency_key, caller)
    content = ["relearn", task_id, spec.model_dump()]
    return request.create_once(content, lambda: _create(task_id, spec, request))


def _create(task_id: str, spec: RelearnSpec, request: TaskRequest) -> CreateOutcome:
    with session_scope(write=True) as session:
        # Take the position first: its lock makes concurrent requests wait, so the following checks stay valid.
        position = next_position(session)
        domain = require_domain(session, task_id, "its appended videos can be relearned")
        unfinished = session.scalars(
            select(Task).where(Task.relearns_id == domain.id, Task.state.in_(ACTIVE_STATES)).limit(1)
        ).one_or_none()
        if unfinished is not None:
            view = task_details(session, [unfinished])[0]
            request.settle(session, view)
            return CreateOutcome(view, replayed=True)
        appended = (Video.status == "accepted", Video.effective_split == "appended")
        videos = session.execute(
            select(Video.vector_id, Video.uri, Video.captions, Video.extra)
            .where(Video.task_id == domain.id, *appended)
            .order_by(Video.vector_id)
        ).all()
        if not videos:
            raise Conflict(
                f"The domain {domain.name!r} has no appended videos; there is nothing to relearn. "
                "Append videos first.",
                remedy=Action(name="append_videos", id=domain.id),
            )
        require_disk_space(len(videos))
        name = _free_name(session, domain.name, spec.name)
        task = Task(id=new_id("tsk"), position=position, name=name, relearns_id=domain.id)
        task.method, task.settings, task.backbone = domain.method, dict(domain.settings), domain.backbone
        task.read = domain.read
        rows = (
            {"uri": video.uri, "captions": video.captions, "extra": video.extra, "copy_of": video.vector_id}
            for video in videos
        )
        insert_queued_task(session, task, rows, len(videos))
        copy_texts(session, task.id)
        facts = {"new_task": task.id, "name": task.name, "videos": len(videos)}
        record_change(session, "task.relearn", domain.id, facts)
        view = task_details(session, [task])[0]
        request.settle(session, view)
    broker.send_probe(view.id)
    return CreateOutcome(view, replayed=False)


def require_domain(session: Session, task_id: str, purpose: str) -> Task:
    """Find the learned domain of a task or append for a purpose, which errors name; raise NotFound or Conflict."""
    task = session.get(Task, task_id)
    if task is not None and task.target_id is not None:
        task = session.get(Task, task.target_id)
    if task is None:
        raise NotFound(f"There is no task {task_id!r}.")
    if task.deleted_at is not None:
        raise Conflict(f"The domain {task.id} was deleted.")
    if task.state != "ready":
        raise Conflict(f"The domain {task.id} is {task.state}; {purpose} once it is ready.")
    return task


def _free_name(session: Session, domain: str, wanted: str | None) -> str:
    """Choose the wanted name, or the domain's name with the first free number; raise Conflict."""
    if wanted:
        require_unused_name(session, wanted, may_append=False)  # which would not relearn the videos
        return wanted
    for number in range(2, 10_000):
        suffix = f" {number}"
        name = domain[: MAX_NAME_CHARS - len(suffix)].rstrip() + suffix
        with suppress(Conflict):
            require_unused_name(session, name, may_append=False)
            return name
    raise Conflict(f"name: A task {domain!r} already exists. Choose another name.")


MAX_REJECTED = 100  # listed in a task's details


def task_details(session: Session, tasks: Sequence[Task]) -> list[TaskDetails]:
    """Describe tasks, in order."""
    rejected = _rejected(session, [task.id for task in tasks])
    reading = read_unfinished(session)
    return [
        to_response(
            TaskDetails,
            task,
            into=task.target_id,
            relearns=task.relearns_id,
            release=task.release_id,
            reading=reading.get(task.id),
            progress=TaskProgress.model_validate(task.progress),
            rejected=rejected.get(task.id, []),
            remedy=Action.model_validate(task.remedy) if task.remedy else None,
            counts=VideoCounts.model_validate(read_counts(session, task.id, task.counts)),
        )
        for task in tasks
    ]


def _rejected(session: Session, task_ids: list[str]) -> dict[str, list[RejectedVideo]]:
    """Read the first rejected videos of each task."""
    number = func.row_number().over(partition_by=Video.task_id, order_by=Video.vector_id).label("number")
    rejected: dict[str, list[RejectedVideo]] = {}
    for chunk in id_chunks(task_ids):
        numbered = (
            select(Video.id, Video.task_id, Video.uri, Video.reason, number)
            .where(Video.status == "rejected", Video.task_id.in_(chunk))
            .subquery()
        )
        rows = session.execute(
            select(numbered).where(numbered.c.number <= MAX_REJECTED).order_by(numbered.c.number)
        )
        for video_id, task_id, uri, reason, _ in rows:
            video = RejectedVideo(id=video_id, task_id=task_id, uri=uri, reason=reason or "")
            rejected.setdefault(task_id, []).append(video)
    return rejected
