"""Create, list, cancel, retry and delete tasks, and create the sample domain for a new library."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic_core import from_json
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException

from api.conditional_responses import conditional_response
from api.dependencies import CallerDep, IdempotencyKey, NoParameters, page_links, parse_json
from api.openapi import APPEND_BODY, TASK_BODY, UNCHANGED
from api.request_middleware import MAX_FORM_FIELDS, MAX_FORM_FILES, api_link
from api.request_threads import StreamLimit, run_long
from api.security.authentication import Authenticator
from api.security.route_scopes import ScopedRoute, requires
from cinestrata_schemas import tasks
from cinestrata_schemas.videos import DeletionRequest, DeletionResult
from service.catalog.tables import FINAL_STATES
from service.core.errors import FieldError, InvalidInput
from service.core.list_parameters import TaskFilters
from service.library import deletion, library_listing
from service.reading import reading_commands
from service.tasks import commands, task_storage, upgrades
from service.tasks.idempotency import CreateOutcome

router = APIRouter(prefix="/tasks", tags=["tasks"], route_class=ScopedRoute)
samples_router = APIRouter(prefix="/samples", tags=["tasks"], route_class=ScopedRoute)


@router.post("", status_code=202, response_model=tasks.TaskDetails, openapi_extra=TASK_BODY)
@requires("ingest")
async def create_task(
    request: Request, response: Response, caller: CallerDep, idempotency_key: IdempotencyKey = None
) -> tasks.TaskDetails:
    """Create a task that learns a domain of videos. Training and indexing run in the background."""
    if request.headers.get("content-type", "").startswith("multipart/form-data"):
        outcome = await _create_from_archive(request, idempotency_key, caller)
    else:
        body = await request.body()
        outcome = await run_long(
            lambda: commands.create_task(
                parse_json(tasks.TaskSpec, body), idempotency_key=idempotency_key, caller=caller
            )
        )
    return _answer(request, response, outcome)


@router.post(
    "/{task_id}/videos", status_code=202, response_model=tasks.TaskDetails, openapi_extra=APPEND_BODY
)
@requires("ingest")
async def append_videos(
    task_id: str,
    request: Request,
    response: Response,
    caller: CallerDep,
    idempotency_key: IdempotencyKey = None,
) -> tasks.TaskDetails:
    """Append videos to a learned domain. The response is a separate task; its `into` is the ID of the domain.

    Workers embed the videos with the release pinned by the domain's shard, and add them to the shard as a new segment.
    Nothing is trained, and no stored vector changes. Unusable videos, and files that the domain already has, are listed
    in `rejected`.
    """
    if request.headers.get("content-type", "").startswith("multipart/form-data"):
        async with _parsed_form(request) as form:
            archive = _require_archive(form)
            outcome = await run_long(
                commands.append_archive,
                task_id,
                archive.file,
                archive.filename or "archive",
                idempotency_key=idempotency_key,
                caller=caller,
            )
    else:
        body = await request.body()
        outcome = await run_long(
            lambda: commands.append_videos(
                task_id, parse_json(tasks.AppendSpec, body), idempotency_key=idempotency_key, caller=caller
            )
        )
    return _answer(request, response, outcome)


@router.get("", response_model=list[tasks.TaskDetails], responses=UNCHANGED)
@requires("search")
def list_tasks(request: Request, parameters: Annotated[TaskFilters, Query()]) -> Response:
    """List tasks, by default in queue order. `into` is null for domains, and set for appends and upgrades.

    With `limit`, the `Link` header points to the next page as `rel="next"`.
    """
    page = library_listing.list_tasks(parameters)
    return conditional_response(request, page.tasks, headers=page_links(request, page.next_cursor))


@router.get("/{task_id}", response_model=tasks.TaskDetails, responses=UNCHANGED)
@requires("search")
def get_task(task_id: str, request: Request) -> Response:
    """Return a task with its state, progress and first rejected videos."""
    return conditional_response(request, commands.get_task(task_id))


@router.post("/{task_id}/cancel", status_code=202)
@requires("ingest")
def cancel_task(task_id: str) -> tasks.TaskDetails:
    """Cancel a task: immediately if it is queued, otherwise at the worker's next step."""
    return commands.cancel_task(task_id)


@router.post("/{task_id}/retry", status_code=202)
@requires("ingest")
def retry_task(task_id: str, spec: tasks.RetrySpec | None = None) -> tasks.TaskDetails:
    """Queue a failed or cancelled task again, after all waiting tasks.

    If the method or settings don't fit the library, the task has a `remedy` with a `body`: send that.
    """
    return commands.retry_task(task_id, spec)


@router.post("/{task_id}/relearn", status_code=202)
@requires("ingest")
def relearn_task(
    task_id: str,
    request: Request,
    response: Response,
    caller: CallerDep,
    spec: tasks.RelearnSpec | None = None,
    idempotency_key: IdempotencyKey = None,
) -> tasks.TaskDetails:
    """Learn a domain's appended videos as a new domain.

    The response is the new domain's task; its `relearns` is the ID of the original domain. Its videos have temporary
    IDs until it is ready. It then receives the appended videos with their IDs, captions and metadata, and the original
    domain keeps the videos that it was learned from. While that task is unfinished, a repeated request returns it.
    """
    outcome = task_storage.relearn_appended_videos(
        task_id, spec or tasks.RelearnSpec(), idempotency_key=idempotency_key, caller=caller
    )
    return _answer(request, response, outcome)


@router.post("/{task_id}/upgrade", status_code=202)
@requires("ingest")
def upgrade_task(task_id: str, spec: tasks.UpgradeSpec | None = None) -> tasks.TaskDetails:
    """Learn a domain again with another backbone or method, from the files that its videos were added from.

    The response is a separate task; its `into` is the ID of the domain, and its `upgrades` is true. Until it is ready,
    the domain stays searchable as it is. IDs, captions, metadata, feedback and moments stay; appended videos are
    learned, too. If files are gone, the task fails and names some of them. `progress.upgrade` of the ready task has the
    recall before and after.
    """
    return upgrades.upgrade_domain(task_id, spec or tasks.UpgradeSpec())


@router.post("/{task_id}/upgrade/undo")
@requires("ingest")
def undo_upgrade(task_id: str) -> tasks.TaskDetails:
    """Undo a domain's upgrade, until it is accepted or 14 days old. Videos deleted since then stay deleted.

    Once videos were appended, it can't be undone; upgrade the domain to its previous backbone instead.
    """
    return upgrades.undo_upgrade(task_id)


@router.post("/{task_id}/upgrade/accept")
@requires("ingest")
def accept_upgrade(task_id: str) -> tasks.TaskDetails:
    """Keep a domain's upgrade for good, so that the space of its previous vectors becomes free."""
    return upgrades.accept_upgrade(task_id)


@router.get("/{task_id}/reading")
@requires("search")
def get_reading(task_id: str) -> tasks.ReadingDetails:
    """Return what is read from a domain's videos besides their pictures, and how far that is."""
    return reading_commands.get_reading(task_id)


@router.post("/{task_id}/reading", status_code=202)
@requires("ingest")
def start_reading(task_id: str, spec: tasks.ReadingSpec | None = None) -> tasks.ReadingDetails:
    """Read the videos of a domain that were not read yet: files, speech, and text in the picture. Idempotent.

    New domains are read by themselves once they are ready, as their `read` says. The texts of a video are searchable
    as soon as it is read.
    """
    return reading_commands.start_reading(task_id, spec or tasks.ReadingSpec())


@router.delete("/{task_id}/reading")
@requires("ingest")
def cancel_reading(task_id: str) -> tasks.ReadingDetails:
    """Stop reading the videos of a domain. What was read stays. Idempotent."""
    return reading_commands.cancel_reading(task_id)


@router.delete("/{task_id}/videos")
@requires("ingest")
def delete_videos(task_id: str, body: DeletionRequest) -> DeletionResult:
    """Delete videos of a task. Videos of other tasks are kept, and reported as not found."""
    return deletion.delete_videos(body.videos, task_id=task_id)


@router.delete("/{task_id}")
@requires("ingest")
def delete_task(task_id: str) -> DeletionResult:
    """Delete a task with all of its videos and its evaluation. A waiting or running task gives 409: cancel it first.

    A task that was never published is removed. A learned task stays in the sequence without videos, because later
    releases build on it; its name becomes available. The next `cinestrata compact` removes its vectors.
    """
    return deletion.delete_task(task_id)


@samples_router.post("", status_code=202)
@requires("ingest")
def create_sample_task(
    request: Request, response: Response, caller: CallerDep, _parameters: NoParameters
) -> tasks.TaskDetails:
    """Add the sample domain `street`, whose videos the service draws, for a first search.

    The request takes a few seconds. The videos belong to the service and are deleted with the domain.
    """
    return _answer(request, response, commands.create_sample_task(caller=caller))


def _answer(request: Request, response: Response, outcome: CreateOutcome) -> tasks.TaskDetails:
    response.headers["Location"] = api_link(request, f"/tasks/{outcome.task.id}")
    if outcome.replayed:
        response.headers["Idempotency-Replayed"] = "true"
    return outcome.task


async def _create_from_archive(request: Request, idempotency_key: str | None, caller: str) -> CreateOutcome:
    async with _parsed_form(request) as form:
        name = form.get("name")
        missing_name = FieldError("name", "The name is missing.", "Choose one, for example 'night traffic'.")
        archive = _require_archive(form, () if isinstance(name, str) and name else (missing_name,))
        texts = {
            field: str(form[field]) for field in ("name", "method", "backbone", "read") if form.get(field)
        }
        return await run_long(
            commands.create_task_from_archive,
            archive.file,
            archive.filename or "archive",
            settings=_parse_settings(form.get("settings")),
            idempotency_key=idempotency_key,
            caller=caller,
            **texts,
        )


def _require_archive(form: FormData, errors: Sequence[FieldError] = ()) -> UploadFile:
    """Return a form's archive; raises InvalidInput if it is missing or the form has errors."""
    archive = form.get("archive")
    if isinstance(archive, UploadFile) and not errors:
        return archive
    missing = FieldError("archive", "The archive is missing.", "Attach a zip or tar(.gz) file as 'archive'.")
    raise InvalidInput.of([*([] if isinstance(archive, UploadFile) else [missing]), *errors])


@asynccontextmanager
async def _parsed_form(request: Request) -> AsyncIterator[FormData]:
    try:
        form = await request.form(max_files=MAX_FORM_FILES, max_fields=MAX_FORM_FIELDS)
    except HTTPException as error:
        raise InvalidInput.at(
            "body",
            f"The form is not valid: {error.detail}",
            "Send multipart/form-data with a file 'archive' and the fields 'name', 'method' and 'settings'.",
        ) from None
    try:
        yield form
    finally:
        await form.close()


def _parse_settings(value: Any) -> dict[str, Any] | None:
    if not value:
        return None
    try:
        parsed = from_json(value) if isinstance(value, str) else None
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise InvalidInput.at("settings", "The value is not a JSON object.", 'Example: {"epochs": 5}.')
    return parsed


POLL_SECONDS = 0.5
HEARTBEAT_POLLS = 30
# Each stream reads the catalog twice a second, in the threads shared by all requests.
STREAMS = StreamLimit("event streams", "close one, or poll the task instead", most=128, most_of_caller=32)


@router.get(
    "/{task_id}/events",
    response_class=StreamingResponse,
    responses={
        200: {"content": {"text/event-stream": {}}, "description": "Events until the task ends."},
        204: {"description": "The task has ended and has no more events. Do not reconnect."},
    },
)
@requires("search")
async def watch_task(
    task_id: str,
    request: Request,
    caller: CallerDep,
    last_event_id: Annotated[
        str | None, Header(alias="Last-Event-ID", description="ID of the last received event.")
    ] = None,
) -> Response:
    """Stream a task's server-sent events: `state`, `progress`, `rejected` and `log`.

    The stream ends with the task, and seconds after the request's key or session ends.
    """
    last_id = _parse_event_id(last_event_id)
    has_ended, events = await run_in_threadpool(_events_after, task_id, last_id)
    if has_ended and not events and last_id:
        return Response(status_code=204)
    STREAMS.require(caller)
    return StreamingResponse(
        event_stream(task_id, last_id, request, caller),
        media_type="text/event-stream",
        headers={"X-Accel-Buffering": "no"},
    )


async def event_stream(task_id: str, last_id: int, request: Request, caller: str) -> AsyncIterator[str]:
    """Yield a task's server-sent events after an ID, with heartbeats.

    The stream ends with the task, when the client disconnects, or when the credentials become invalid.
    """
    authenticator: Authenticator = request.app.state.authenticator
    polls = 0
    with STREAMS.opened(caller):
        # The authenticator remembers credentials for seconds, so most polls need no catalog read for them.
        while not await request.is_disconnected() and await authenticator.identify_again(request):
            has_ended, events = await run_in_threadpool(_events_after, task_id, last_id)
            for event in events:
                last_id = event.id
                yield f"id: {event.id}\nevent: {event.kind}\ndata: {event.model_dump_json()}\n\n"
            if events:
                continue  # a poll returns a limited number of events
            if has_ended:
                return
            polls += 1
            if polls % HEARTBEAT_POLLS == 0:
                yield ": heartbeat\n\n"
            await asyncio.sleep(POLL_SECONDS)


def _events_after(task_id: str, last_id: int) -> tuple[bool, list[tasks.TaskEvent]]:
    """Return whether the task has ended, and its events after an ID. Raises NotFound."""
    # The state is read first, so that the events of an ended task include its final event.
    has_ended = commands.get_task(task_id).state in FINAL_STATES
    return has_ended, commands.events_after(task_id, last_id)


def _parse_event_id(value: str | None) -> int:
    if not value:
        return 0
    if not (value.isascii() and value.isdecimal() and len(value) < 19):
        raise InvalidInput.at(
            "Last-Event-ID",
            "The value is not an event ID.",
            "Send the ID of the last received event, or omit the header.",
        )
    return int(value)
