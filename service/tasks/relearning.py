"""Relearn appended videos: they become a new domain.

::

    copies of the appended videos ─▶ a task that learns them ─▶ publication: originals replaced by the copies

The originals stay searchable until the new domain is ready. Its publication deletes them from the original domain's
shard in the same generation, and the copies take over their IDs (:mod:`service.tasks.lifecycle.publishing`), so that no
search returns a video twice. A failed or cancelled task changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from cinestrata_schemas.domain_names import MAX_NAME_CHARS
from cinestrata_schemas.problems import Action
from cinestrata_schemas.tasks import RelearnSpec
from service.access.audit_log import record_change
from service.catalog.database import session_scope
from service.catalog.tables import ACTIVE_STATES, Task, Video
from service.catalog.task_names import require_unused_name
from service.catalog.transcripts import copy_transcripts
from service.core.errors import Conflict, NotFound
from service.storage.disk_budget import require_disk_space
from service.tasks import broker
from service.tasks.idempotency import CreateOutcome, TaskRequest
from service.tasks.lifecycle.state_machine import next_position
from service.tasks.task_details import task_details
from service.tasks.task_storage import insert_queued_task, new_id


def relearn_appended_videos(
    task_id: str, spec: RelearnSpec, *, idempotency_key: str | None = None, caller: str = ""
) -> CreateOutcome:
    """Store a task that learns a domain's appended videos as a new domain.

    While the task is unfinished, a repeated request returns it; with the same key, also afterwards.

    Args:
        task_id: ID of the domain's task, or of an append to it.

    Raises:
        NotFound: The task does not exist.
        Conflict: The task is not a learned domain, has no appended videos, or the name belongs to another task.
        InsufficientStorage: The disk has no space for the copies of the videos.
        IdempotencyMismatch, IdempotencyInFlight, Unavailable: As for ``commands.create_task``.
    """
    request = TaskRequest(idempotency_key, caller)
    content = ["relearn", task_id, spec.model_dump()]
    return request.create_once(content, lambda: _create(task_id, spec, request))


def _create(task_id: str, spec: RelearnSpec, request: TaskRequest) -> CreateOutcome:
    with session_scope(write=True) as session:
        # Take the position first: its lock makes concurrent requests wait, so the following checks stay valid.
        position = next_position(session)
        domain = _require_domain(session, task_id)
        unfinished = session.scalars(
            select(Task).where(Task.relearns_id == domain.id, Task.state.in_(ACTIVE_STATES)).limit(1)
        ).one_or_none()
        if unfinished is not None:
            view = task_details(session, [unfinished])[0]
            request.settle(session, view)
            return CreateOutcome(view, replayed=True)
        videos = session.execute(
            select(Video.vector_id, Video.uri, Video.captions, Video.extra)
            .where(
                Video.task_id == domain.id, Video.status == "accepted", Video.effective_split == "appended"
            )
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
        copied: dict[str, Any] = {"method": domain.method, "settings": dict(domain.settings)}
        task = Task(id=new_id("tsk"), position=position, name=name, relearns_id=domain.id, **copied)
        rows = (
            {"uri": video.uri, "captions": video.captions, "extra": video.extra, "copy_of": video.vector_id}
            for video in videos
        )
        insert_queued_task(session, task, rows, len(videos))
        copy_transcripts(session, task.id)
        facts = {"new_task": task.id, "name": task.name, "videos": len(videos)}
        record_change(session, "task.relearn", domain.id, facts)
        view = task_details(session, [task])[0]
        request.settle(session, view)
    broker.send_probe(view.id)
    return CreateOutcome(view, replayed=False)


def _require_domain(session: Session, task_id: str) -> Task:
    """Find the learned domain of a task, or of an append to it; raise NotFound or Conflict."""
    task = session.get(Task, task_id)
    if task is not None and task.target_id is not None:
        task = session.get(Task, task.target_id)
    if task is None:
        raise NotFound(f"There is no task {task_id!r}.")
    if task.deleted_at is not None:
        raise Conflict(f"The domain of task {task.id} was deleted; its videos can't be relearned.")
    if task.state != "ready":
        raise Conflict(
            f"Task {task.id} is {task.state}; its appended videos can be relearned once it is ready."
        )
    return task


def _free_name(session: Session, domain: str, wanted: str | None) -> str:
    """Choose the wanted name, or the domain's name with the first free number; raise Conflict."""
    candidates: Iterable[str] = (wanted,) if wanted else _numbered_names(domain)
    for name in candidates:
        try:
            require_unused_name(session, name, may_append=False)  # which would not relearn the videos
        except Conflict:
            if wanted:
                raise
        else:
            return name
    raise Conflict(f"name: A task {domain!r} already exists. Choose another name.")


def _numbered_names(domain: str) -> Iterable[str]:
    for number in range(2, 10_000):
        suffix = f" {number}"
        yield domain[: MAX_NAME_CHARS - len(suffix)].rstrip() + suffix
