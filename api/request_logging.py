"""ASGI middleware that logs each answer with an error, so that the log explains the request id of the answer."""

from __future__ import annotations

import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from api.response_status import StatusRecorder, route_template

__all__ = ["RequestLoggingMiddleware", "explain_failure", "omit_from_log"]

_REASON = "cinestrata.failure"
_OMITTED = "cinestrata.omitted_from_log"
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
        recorder = StatusRecorder(send)
        try:
            await self.app(scope, receive, recorder)
        finally:
            if recorder.status is not None and recorder.status >= 400:
                _log_error(scope, recorder.status)


def _log_error(scope: Scope, status: int) -> None:
    route = route_template(scope)
    if route in _UNLOGGED or _OMITTED in scope:
        return
    fields = {"status": status, "method": scope["method"], "route": route}
    if _REASON in scope:
        fields["error"] = scope[_REASON]
    if status >= 500:
        log.warning("request_failed", **fields)
    else:
        log.info("request_refused", **fields)


def explain_failure(scope: Scope, reason: str) -> None:
    """Add a reason to the log line of a request that fails with a status of 500 or above."""
    scope[_REASON] = reason


def omit_from_log(scope: Scope) -> None:
    """Write no log line for a request, because another line counts its refusal."""
    scope[_OMITTED] = True
