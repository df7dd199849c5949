"""Server-sent events of a task."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Request, Response
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from api.dependencies import CallerDep
from api.security.authentication import Authenticator
from api.security.route_scopes import ScopedRoute, requires
from api.stream_limits import StreamLimit
from cinestrata_schemas.tasks import TaskEvent
from service.catalog.tables import FINAL_STATES
from service.core.errors import InvalidInput
from service.tasks import commands, task_events

router = APIRouter(prefix="/tasks", tags=["tasks"], route_class=ScopedRoute)

POLL_SECONDS = 0.5
HEARTBEAT_POLLS = 30
# Each stream reads the catalog twice a second, in the threads shared by all requests.
STREAMS = StreamLimit(
    "event streams",
    "close one, or read the task repeatedly instead",
    most=128,
    most_of_caller=32,
)


@router.get(
    "/{task_id}/events",
    operation_id="watch_task",
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

    Args:
        last_id: ID of the event after which the stream begins.
        request: The client's request.
        caller: Identity of the caller, whose open streams are counted.
    """
    authenticator: Authenticator = request.app.state.authenticator
    polls = 0
    with STREAMS.opened(caller):
        # The authenticator remembers credentials for seconds, so most polls need no catalog read for them.
        while not await request.is_disconnected() and await authenticator.identify_again(request, "search"):
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


def _events_after(task_id: str, last_id: int) -> tuple[bool, list[TaskEvent]]:
    """Return whether the task has ended, and its events after an ID. Raises NotFound."""
    # The state is read first, so that the events of an ended task include its final event.
    has_ended = commands.get_task(task_id).state in FINAL_STATES
    return has_ended, task_events.events_after(task_id, last_id)


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
