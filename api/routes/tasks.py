"""Domains come in, and are watched while they are learned."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile

from api.dependencies import CallerDep
from service import tasks
from service.errors import FieldError, InvalidInput
from service.tasks import CreateOutcome
from service.views import TaskSpec, TaskView

__all__ = ["router"]

router = APIRouter(prefix="/tasks", tags=["tasks"])

_POLL_SECONDS = 0.5
_HEARTBEAT_POLLS = 30
_FINAL = ("ready", "failed", "cancelled")
_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": TaskSpec.model_json_schema(ref_template="#/components/schemas/{model}")
            },
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["name", "archive"],
                    "properties": {
                        "name": {"type": "string"},
                        "method": {"type": "string"},
                        "settings": {"type": "string", "description": "JSON object"},
                        "archive": {
                            "type": "string",
                            "format": "binary",
                            "description": "zip or tar(.gz) of videos with manifest.jsonl or manifest.csv",
                        },
                    },
                }
            },
        },
    }
}


@router.post("", status_code=202, response_model=TaskView, openapi_extra=_BODY, operation_id="create_task")
async def create_task(
    request: Request,
    response: Response,
    caller: CallerDep,
    idempotency_key: Annotated[str | None, Header(max_length=255)] = None,
) -> TaskView:
    """Send a domain: videos and captions. It is learned, embedded once, and laid down as a shard."""
    if request.headers.get("content-type", "").startswith("multipart/form-data"):
        outcome = await _from_archive(request, idempotency_key, caller)
    else:
        spec = _spec(await request.body())
        outcome = await run_in_threadpool(
            tasks.create_task, spec, idempotency_key=idempotency_key, caller=caller
        )
    response.headers["Location"] = f"/tasks/{outcome.task.id}"
    if outcome.replayed:
        response.headers["Idempotency-Replayed"] = "true"
    return outcome.task


@router.get("", operation_id="list_tasks")
def list_tasks() -> list[TaskView]:
    """All tasks, in the order in which they are learned."""
    return tasks.list_tasks()


@router.get("/{task_id}", operation_id="get_task")
def get_task(task_id: str) -> TaskView:
    """A task with its state, progress, estimated time and rejected videos."""
    return tasks.get_task(task_id)


@router.post("/{task_id}/cancel", status_code=202, operation_id="cancel_task")
def cancel_task(task_id: str) -> TaskView:
    """Stop a task: at once where no worker is at it, otherwise at the worker's next step."""
    return tasks.cancel_task(task_id)


@router.post("/{task_id}/retry", status_code=202, operation_id="retry_task")
def retry_task(task_id: str) -> TaskView:
    """Put a failed or cancelled task at the end of the line."""
    return tasks.retry_task(task_id)


@router.get(
    "/{task_id}/events",
    operation_id="watch_task",
    response_class=StreamingResponse,
    responses={
        200: {"content": {"text/event-stream": {}}, "description": "Events until the task is finished."}
    },
)
async def watch_task(
    task_id: str, request: Request, last_event_id: Annotated[str | None, Header()] = None
) -> StreamingResponse:
    """Server-sent events: ``state``, ``progress``, ``rejected`` and ``log``; ends when the task has ended."""
    await run_in_threadpool(tasks.get_task, task_id)
    seen = (
        int(last_event_id) if last_event_id and last_event_id.isdecimal() and len(last_event_id) < 19 else 0
    )
    return StreamingResponse(
        _stream(task_id, seen, request),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def _stream(task_id: str, seen: int, request: Request) -> AsyncIterator[str]:
    polls = 0
    while not await request.is_disconnected():
        # The state is read first: an event that ends the task is then among those read after it.
        task = await run_in_threadpool(tasks.get_task, task_id)
        events = await run_in_threadpool(tasks.events_after, task_id, seen)
        for event in events:
            seen = event.id
            yield f"id: {event.id}\nevent: {event.kind}\ndata: {json.dumps(event.model_dump(mode='json'))}\n\n"
        if task.state in _FINAL and not events:
            return
        polls += 1
        if polls % _HEARTBEAT_POLLS == 0:
            yield ": still here\n\n"
        await asyncio.sleep(_POLL_SECONDS)


def _spec(body: bytes) -> TaskSpec:
    try:
        return TaskSpec.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        if first["type"] == "json_invalid":
            reason = str(first["ctx"]["error"])
            raise InvalidInput.at(
                "body", f"The body is not JSON: {reason}.", "Send one JSON object."
            ) from None
        raise InvalidInput.from_pydantic(error.errors(include_url=False)) from None


async def _from_archive(request: Request, idempotency_key: str | None, caller: str) -> CreateOutcome:
    async with request.form(max_files=1, max_fields=8) as form:
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
            tasks.create_task_from_archive,
            archive.file,
            archive.filename or "archive",
            name=str(name),
            method=str(method) if method else None,
            settings=_settings(form.get("settings")),
            idempotency_key=idempotency_key,
            caller=caller,
        )


def _settings(value: Any) -> dict[str, Any] | None:
    if not value:
        return None
    try:
        parsed = json.loads(value) if isinstance(value, str) else None
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise InvalidInput.at(
            "settings", "These are no settings.", 'Send a JSON object, for example {"epochs": 5}.'
        )
    return parsed
