"""Base class for this service's middleware."""

from __future__ import annotations

from abc import ABC, abstractmethod

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class HttpMiddleware(ABC):
    """ASGI middleware that handles HTTP requests and passes lifespan events on."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (self.handle if scope["type"] == "http" else self.app)(scope, receive, send)

    @abstractmethod
    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, or pass it to ``self.app``."""


class StatusRecorder:
    """A request's ``send`` function, which records the response status.

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
