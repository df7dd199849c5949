"""Status of a response and route template of its request, for log lines, metrics, spans and errors."""

from __future__ import annotations

from starlette.types import Message, Scope, Send

__all__ = ["StatusRecorder", "route_template"]


class StatusRecorder:
    """The ``send`` function of a request, which keeps the status of the response.

    Attributes:
        status: Status of the response; None until it has begun.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status: int | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        await self._send(message)


def route_template(scope: Scope) -> str:
    """Template of the route that processed a request, such as ``/videos/{video_id}``, or ``unmatched``.

    In contrast to paths, templates contain no identifiers and have few values. The router sets the template, so it is
    known after the request was processed.
    """
    template: str = getattr(scope.get("route"), "path", "unmatched")
    return template
