"""ASGI middleware that records a span for each request. Only an application with tracing has it."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.core.tracing import request_span

__all__ = ["RequestTracingMiddleware"]


class RequestTracingMiddleware:
    """Records requests by route template. Queries and bodies are not recorded: they may hold personal data."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        with request_span(scope["method"], dict(Headers(scope=scope))) as span:

            async def record_status(message: Message) -> None:
                if message["type"] == "http.response.start":
                    span.set_attribute("http.response.status_code", message["status"])
                await send(message)

            try:
                await self.app(scope, receive, record_status)
            finally:
                route = getattr(scope.get("route"), "path", "unmatched")
                span.update_name(f"{scope['method']} {route}")
                span.set_attribute("http.route", route)
