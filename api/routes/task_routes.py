"""Domains come in, and are watched while they are learned."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import ValidationError
from pydantic_core import from_json
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException

from api.dependencies import CallerDep
from api.openapi import TASK_BODY
from service.catalog.tables import FINAL_STATES
from service.core.errors import FieldError, InvalidInput
from service.core.schemas import TaskDetails, TaskEvent, TaskSpec
from service.tasks import commands
from service.tasks.commands import CreateOutcome

__all__ = ["router"]

router = APIRouter(prefix="/tasks", tags=["tasks"])

_POLL_SECONDS = 0.5
_HEARTBEAT_POLLS = 30


@router.post(
    "", status_code=202, response_model=TaskDetails, openapi_extra=TASK_BODY, operation_id="create_task"
)
async def create_task(
    request: Request,
    response: Response,
    caller: CallerDep,
    idempotency_key: Annotated[str | None, Header(max_length=255)] = None,
) -> TaskDetails:
    """Send a domain: videos and captions. It is learned, embedded once, and laid down as a shard."""
    if request.headers.get("content-type", "").startswith("multipart/form-data"):
        outcome = await _from_archive(request, idempotency_key, caller)
    else:
        body = await request.body()
        outcome = await run_in_threadpool(_from_json, body, idempotency_key, caller)
    response.headers["Location"] = f"/tasks/{outcome.task.id}"
    if outcome.replayed:
        response.headers["Idempotency-Replayed"] = "true"
    return outcome.task


@router.get("", operation_id="list_tasks")
def list_tasks() -> list[TaskDetails]:
    """All tasks, in the order in which they are learned."""
    return commands.list_tasks()


@router.get("/{task_id}", operation_id="get_task")
def get_task(task_id: str) -> TaskDetails:
    """A task with its state, progress, estimated time and rejected videos."""
    return commands.get_task(task_id)


@router.post("/{task_id}/cancel", status_code=202, operation_id="cancel_task")
def cancel_task(task_id: str) -> TaskDetails:
    """Stop a task: at once where no worker is at it, otherwise at the worker's next step."""
    return commands.cancel_task(task_id)


@router.post("/{task_id}/retry", status_code=202, operation_id="retry_task")
def retry_task(task_id: str) -> TaskDetails:
    """Put a failed or cancelled task at the end of the line."""
    return commands.retry_task(task_id)


@router.get(
    "/{task_id}/events",
    operation_id="watch_task",
    response_class=StreamingResponse,
    responses={
        200: {"content": {"text/event-stream": {}}, "description": "Events until the task has ended."},
        204: {"description": "The task has ended, and you have seen all of it. Do not connect again."},
    },
)
async def watch_task(
    task_id: str, request: Request, last_event_id: Annotated[str | None, Header()] = None
) -> Response:
    """Server-sent events: ``state``, ``progress``, ``rejected`` and ``log``; ends when the task has ended."""
    seen = _event_id(last_event_id)
    over, events = await run_in_threadpool(_news, task_id, seen)
    if over and not events and seen:
        return Response(status_code=204)
    return StreamingResponse(
        _stream(task_id, seen, request),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def _stream(task_id: str, seen: int, request: Request) -> AsyncIterator[str]:
    polls = 0
    while not await request.is_disconnected():
        over, events = await run_in_threadpool(_news, task_id, seen)
        for event in events:
            seen = event.id
            yield f"id: {event.id}\nevent: {event.kind}\ndata: {event.model_dump_json()}\n\n"
        if events:
            continue  # there may be more than one answer holds
        if over:
            return
        polls += 1
        if polls % _HEARTBEAT_POLLS == 0:
            yield ": still here\n\n"
        await asyncio.sleep(_POLL_SECONDS)


def _news(task_id: str, seen: int) -> tuple[bool, list[TaskEvent]]:
    """Whether the task has ended, and what happened since. Raises NotFound."""
    # The state is read first: the event that ends the task is then among those read after it.
    over = commands.get_task(task_id).state in FINAL_STATES
    return over, commands.events_after(task_id, seen)


def _event_id(given: str | None) -> int:
    if not given:
        return 0
    if not (given.isascii() and given.isdecimal() and len(given) < 19):
        raise InvalidInput.at(
            "Last-Event-ID",
            "This is no id of an event.",
            "Send the number of the last event you saw, or nothing.",
        )
    return int(given)


def _from_json(body: bytes, idempotency_key: str | None, caller: str) -> CreateOutcome:
    try:
        spec = TaskSpec.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        if first["type"] == "json_invalid":
            reason = str(first["ctx"]["error"])
            raise InvalidInput.at(
                "body", f"The body is not JSON: {reason}.", "Send one JSON object."
            ) from None
        raise InvalidInput.from_pydantic(error.errors(include_url=False)) from None
    return commands.create_task(spec, idempotency_key=idempotency_key, caller=caller)


async def _from_archive(request: Request, idempotency_key: str | None, caller: str) -> CreateOutcome:
    async with _form(request) as form:
        archive, name = form.get("archive"), form.get("name")
        errors = []
        if not isinstance(archive, UploadFile):
            errors.append(
                FieldError("archive", "There is no archive.", "Attach a zip or tar(.gz) file as 'archive'.")
            )
        if not isinstance(name, str) or not name:
            errors.append(
                FieldError("name", "The domain has no name.", "Give it one, for example 'night traffic'.")
            )
        if errors or not isinstance(archive, UploadFile):
            raise InvalidInput.of(errors)
        method = form.get("method")
        return await run_in_threadpool(
            commands.create_task_from_archive,
            archive.file,
            archive.filename or "archive",
            name=str(name),
            method=str(method) if method else None,
            settings=_settings(form.get("settings")),
            idempotency_key=idempotency_key,
            caller=caller,
        )


@asynccontextmanager
async def _form(request: Request) -> AsyncIterator[FormData]:
    try:
        opened = await request.form(max_files=1, max_fields=8)
    except HTTPException as error:
        raise InvalidInput.at(
            "body",
            f"The form cannot be read: {error.detail}",
            "Send multipart/form-data with one file 'archive', and the fields 'name', 'method' and 'settings'.",
        ) from None
    try:
        yield opened
    finally:
        await opened.close()


def _settings(value: Any) -> dict[str, Any] | None:
    if not value:
        return None
    try:
        parsed = from_json(value) if isinstance(value, str) else None
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise InvalidInput.at(
            "settings", "These are no settings.", 'Send a JSON object, for example {"epochs": 5}.'
        )
    return parsed
