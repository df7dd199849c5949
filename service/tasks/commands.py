"""Commands on tasks: create, list, get, cancel, retry, and the sample domain of drawn videos."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, BinaryIO

from sqlalchemy import func, select, update

from cinestrata_schemas import tasks
from service.access.audit_log import record_change
from service.catalog.database import now, session_scope
from service.catalog.domain_videos import count_task_videos
from service.catalog.tables import ACTIVE_STATES, Event, Task, Video, to_response
from service.catalog.task_names import require_unused_name
from service.core.errors import Conflict, InDoubt, InvalidInput, NotFound, Unavailable
from service.core.settings import settings as configured
from service.storage.disk_budget import require_disk_space
from service.storage.video_files import is_removed_upload
from service.tasks import broker, ingestion_checks, upgrades, uploaded_videos
from service.tasks.archive_unpacking import unpack_archive
from service.tasks.idempotency import CreateOutcome, TaskRequest
from service.tasks.lifecycle import send_due, state_machine
from service.tasks.task_storage import new_id, refuse_duplicates, require_learned, store_task, task_details
from service.tasks.uploaded_videos import adopted_uploads


def create_task(
    spec: tasks.TaskSpec, *, idempotency_key: str | None = None, caller: str = ""
) -> CreateOutcome:
    """Store a task and notify the workers. Once this returns, the task is durable. Each caller has their own keys.

    Raises InvalidInput, Conflict if the name or an ID belongs to another task, and as ``service.tasks.idempotency``.
    After Unavailable, nothing is stored. After InDoubt, a retry with the same key stores the task only once.
    """
    return _create_from_spec(TaskRequest(idempotency_key, caller), spec)


def append_videos(
    task_id: str, spec: tasks.AppendSpec, *, idempotency_key: str | None = None, caller: str = ""
) -> CreateOutcome:
    """Store an append to a learned domain and notify workers; raise NotFound, Conflict, and as :func:`create_task`."""
    return _create_from_spec(TaskRequest(idempotency_key, caller, target_id=task_id), spec)


def check_destination(
    name: str | None, target_id: str | None, videos: Sequence[tasks.VideoSpec]
) -> str | None:
    """Check that a task with these videos could be stored now, in a new domain or that of the task ``target_id``.

    Returns the domain's name. Errors are those of storing it; without a name, that of a new domain is not checked.
    """
    with session_scope() as session:
        if target_id is not None:
            name = require_learned(session.get(Task, target_id), target_id).name
        elif name is not None:
            require_unused_name(session, name)
        refuse_duplicates(session, videos)
        return name


def create_task_from_archive(
    archive: BinaryIO, filename: str, *, idempotency_key: str | None = None, caller: str = "", **fields: Any
) -> CreateOutcome:
    """Create a task from an archive of videos with a manifest (see ``service.tasks.manifests.caption_tables``).

    ``fields`` are those of :class:`TaskSpec` besides the videos.

    An error leaves no files behind. The exception is a commit that the catalog did not confirm: the task may be stored,
    so its files stay until ``uploaded_videos.sweep_uploads`` finds that it is not. Raises TooLarge, and as
    :func:`create_task`.
    """
    return _create_from_archive(
        TaskRequest(idempotency_key, caller), archive, filename, tasks.TaskSpec, fields
    )


def append_archive(
    task_id: str, archive: BinaryIO, filename: str, *, idempotency_key: str | None = None, caller: str = ""
) -> CreateOutcome:
    """Append the videos in an archive to a learned domain; raise as :func:`append_videos` and for a new task."""
    request = TaskRequest(idempotency_key, caller, target_id=task_id)
    return _create_from_archive(request, archive, filename, tasks.AppendSpec, {})


def list_tasks() -> list[tasks.TaskDetails]:
    """List all tasks by position."""
    with session_scope() as session:
        return task_details(session, session.scalars(select(Task).order_by(Task.position)).all())


def get_task(task_id: str) -> tasks.TaskDetails:
    """Look up a task; raise NotFound."""
    with session_scope() as session:
        task = session.get(Task, task_id)
        if task is None:
            raise NotFound(f"There is no task {task_id!r}.")
        return task_details(session, [task])[0]


def events_after(task_id: str, last_id: int = 0, limit: int = 500) -> list[tasks.TaskEvent]:
    """List a task's events, oldest first; raise NotFound."""
    with session_scope() as session:
        if session.get(Task, task_id) is None:
            raise NotFound(f"There is no task {task_id!r}.")
        rows = session.scalars(
            select(Event).where(Event.task_id == task_id, Event.id > last_id).order_by(Event.id).limit(limit)
        )
        return [to_response(tasks.TaskEvent, row) for row in rows]


def cancel_task(task_id: str) -> tasks.TaskDetails:
    """Cancel a task, now or at its worker's next step. Idempotent; raise NotFound, or Conflict once it is published."""
    is_changed = False
    with session_scope(write=True) as session:
        task = state_machine.lock_task(session, task_id)
        if task.state in ("ready", "failed"):
            raise Conflict(f"Task {task_id} is {task.state}; only an unfinished task can be cancelled.")
        if task.state in ACTIVE_STATES:
            if state_machine.is_published(session, task):
                raise Conflict(
                    f"The shard of task {task_id} is already published; the task will be ready in a moment."
                )
            if task.lease_owner is None or (task.lease_expires_at or now(session)) <= now(session):
                state_machine.set_state(session, task, "cancelled")
                is_changed = True
            elif not task.cancel_requested:
                task.cancel_requested = True
                state_machine.record(session, task_id, "log", {"message": "Cancellation was requested."})
                is_changed = True
        if is_changed:
            record_change(session, "task.cancel", task_id, {"name": task.name})
        view = task_details(session, [task])[0]
    send_due()  # the next task may have been waiting for this one
    return view


def retry_task(task_id: str, spec: tasks.RetrySpec | None = None) -> tasks.TaskDetails:
    """Queue a failed or cancelled task again, at the end of the queue, with what ``spec`` changes.

    Raises InvalidInput, NotFound, Conflict for a task in another state, or InsufficientStorage; the task is unchanged.
    """
    spec = spec or tasks.RetrySpec()
    with session_scope(write=True) as session:
        task = state_machine.lock_task(session, task_id)
        if task.state not in ("failed", "cancelled"):
            raise Conflict(f"Task {task_id} is {task.state}; only a failed or cancelled task can be retried.")
        if task.upgrades and spec != tasks.RetrySpec() and state_machine.is_published(session, task):
            raise Conflict(f"The shard of task {task_id} is published; retry it without method and settings.")
        domain = session.get_one(Task, task.learned_id)
        _change_method(task, domain, spec)
        if task.upgrades:
            upgrades.require_upgradable(session, domain, task)
        videos = session.scalar(select(func.count()).where(Video.task_id == task.learned_id)) or 0
        is_append = task.target_id is not None and not task.upgrades
        require_disk_space(videos, is_append=is_append, backbone=task.backbone)
        task.position = state_machine.next_position(session)
        task.attempts, task.cancel_requested = 0, False
        task.probed_at = now(session) if task.upgrades else None
        task.started_at = task.finished_at = task.held_out = None
        state_machine.set_progress(session, task, tasks.TaskProgress(stage="queued"), is_event=False)
        # Their files may have been replaced, and the machine may have been at fault.
        session.execute(
            update(Video)
            .where(Video.task_id == task_id, ~is_removed_upload())
            .values(
                status="pending",
                is_rejection_final=False,
                reason=None,
                content_hash=None,
                effective_split=None,
            )
            .execution_options(synchronize_session=False)
        )
        task.counts = count_task_videos(session, task_id)
        state_machine.set_state(session, task, "queued")
        facts = {"name": task.name, **spec.model_dump(exclude_none=True)}
        record_change(session, "task.retry", task_id, facts)
        view = task_details(session, [task])[0]
    if task.upgrades:
        send_due()
    else:
        broker.send_probe(task_id)
    return view


def _change_method(task: Task, domain: Task, spec: tasks.RetrySpec) -> None:
    if spec == tasks.RetrySpec():
        return
    if task.target_id is not None and not task.upgrades:
        raise InvalidInput.at(
            "method", "An append uses the method of its domain.", "Retry it without method and settings."
        )
    is_changed = spec.method is not None or spec.settings is not None
    chosen = spec.settings if is_changed else task.settings
    method, backbone = spec.method or task.method, spec.backbone or task.backbone
    if task.upgrades:
        wanted = tasks.UpgradeSpec(method=method, settings=chosen, backbone=backbone)
        fields = upgrades.upgrade_fields(domain, wanted)
    else:
        fields = ingestion_checks.task_fields(method, chosen, backbone)
        ingestion_checks.raise_first(ingestion_checks.task_errors(**fields))
    task.method, task.settings, task.backbone = fields["method"], dict(fields["settings"]), fields["backbone"]
    shutil.rmtree(configured().checkpoints_dir / task.id, ignore_errors=True)  # the previous method's


def _create_from_spec(request: TaskRequest, spec: ingestion_checks.Spec) -> CreateOutcome:
    content = spec.model_dump(exclude_unset=True)

    def create() -> CreateOutcome:
        task_id = new_id("tsk")
        backbone = spec.backbone if isinstance(spec, tasks.TaskSpec) else None
        require_disk_space(len(spec.videos), is_append=request.target_id is not None, backbone=backbone)
        with adopted_uploads(spec, task_id) as adopted:
            stored = store_task(task_id, ingestion_checks.validate_spec(adopted), request)
        broker.send_probe(task_id)
        return stored

    return request.create_once([request.target_id, content] if request.target_id else content, create)


def _create_from_archive(
    request: TaskRequest,
    archive: BinaryIO,
    filename: str,
    kind: type[ingestion_checks.Spec],
    fields: dict[str, Any],
) -> CreateOutcome:
    content = [fields, filename, request.target_id]

    def create() -> CreateOutcome:
        task_id = new_id("tsk")
        is_append = request.target_id is not None
        if is_append:  # before the archive is unpacked
            with session_scope() as session:
                require_learned(session.get(Task, request.target_id), request.target_id)
        # Videos are compressed already, so unpacking does not enlarge them much.
        require_disk_space(0, files_bytes=archive.seek(0, os.SEEK_END), is_append=is_append)
        archive.seek(0)
        try:
            videos = unpack_archive(archive, filename, task_id)
            require_disk_space(len(videos), is_append=is_append)
            given = [video.model_dump(exclude_unset=True) for video in videos]
            spec = ingestion_checks.make_spec(kind, **fields, videos=given)
            stored = store_task(task_id, ingestion_checks.validate_spec(spec), request)
        except BaseException as error:
            if not isinstance(error, InDoubt):
                uploaded_videos.remove_upload(task_id)
            raise
        # Outside the try block: the stored task needs its files even if sending fails.
        broker.send_probe(task_id)
        return stored

    return request.create_once(content, create, archive=archive)


SAMPLE_DOMAIN = "street"
_TRAIN, _TEST = 24, 8
SAMPLE_VIDEOS = _TRAIN + _TEST


def create_sample_task(*, caller: str = "") -> CreateOutcome:
    """Draw the sample domain's videos, which takes a few seconds, and create its task.

    The service owns the files: they are stored like an archive's, and deleted with the domain. Raises Conflict if the
    name or an ID belongs to another task, Unavailable, or InDoubt.
    """
    check_destination(SAMPLE_DOMAIN, None, [])  # before the videos are drawn
    with tempfile.TemporaryFile() as archive:
        try:
            _write_archive(archive)
        except OSError as error:
            raise Unavailable(f"The sample videos can't be written: {error.strerror}.", 60) from error
        return create_task_from_archive(archive, "samples.tar", name=SAMPLE_DOMAIN, caller=caller)


def _write_archive(archive: IO[bytes]) -> None:
    # Drawing and encoding needs libraries that search processes do not.
    from media.scenes.scene_domains import make_scenes
    from media.scenes.scene_files import manifest_line, write_scene

    scenes = make_scenes(SAMPLE_DOMAIN, train=_TRAIN, val=0, test=_TEST)
    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=archive, mode="w") as tar:
        for scene in scenes:
            path = write_scene(Path(folder), scene)
            tar.add(path, path.name)
            path.unlink()
        manifest = "".join(map(manifest_line, scenes)).encode()
        entry = tarfile.TarInfo("manifest.jsonl")
        entry.size = len(manifest)
        tar.addfile(entry, io.BytesIO(manifest))
