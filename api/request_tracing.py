"""ASGI middleware that records a span for each request. Only an application with tracing has it."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from api.response_status import StatusRecorder, route_template
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
        recorder = StatusRecorder(send)
        with request_span(scope["method"], dict(Headers(scope=scope))) as span:
            try:
                await self.app(scope, receive, recorder)
            finally:
                route = route_template(scope)
                span.update_name(f"{scope['method']} {route}")
                span.set_attribute("http.route", route)
                if recorder.status is not None:
                    span.set_attribute("http.response.status_code", recorder.status)
