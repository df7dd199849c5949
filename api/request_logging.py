"""ASGI middleware that logs each answer with an error, so that the log explains the request id of the answer."""

from __future__ import annotations

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["RequestLoggingMiddleware", "explain_failure"]

_REASON = "cinestrata.failure"
_UNLOGGED = {"/readyz"}  # polled every few seconds while a service starts

log = structlog.get_logger(__name__)


class RequestLoggingMiddleware:
    """Logs status, method and route template. Paths, queries and bodies are not logged: they may hold personal data."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def log_error(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] >= 400:
                log_answer(message["status"])
            await send(message)

        def log_answer(status: int) -> None:
            route, is_failure = getattr(scope.get("route"), "path", "unmatched"), status >= 500
            if route not in _UNLOGGED:
                (log.warning if is_failure else log.info)(
                    "request_failed" if is_failure else "request_refused",
                    status=status,
                    method=scope["method"],
                    route=route,
                    **({"error": scope[_REASON]} if _REASON in scope else {}),
                )

        await self.app(scope, receive, log_error)


def explain_failure(scope: Scope, reason: str) -> None:
    """Let the line of a request with a status from 500 on contain a reason."""
    scope[_REASON] = reason
