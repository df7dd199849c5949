"""Refuse requests early while the queue they would join is too long.

A request that is refused here is neither routed nor authenticated nor validated. Without this, a process under twice
its capacity would spend its time on refusals and fall behind in reading its connections, if no limit applies.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from api.problem_details import problem_response
from api.request_observer import HttpMiddleware, mark_as_shed
from api.request_paths import route_path
from api.request_threads import waiting_requests
from api.security.security_middleware import SECURITY_HEADERS
from service.core.errors import TooManyRequests
from service.search.admission import AdmissionControl

_MAX_WAITING = 64  # requests that wait for a thread
_SEARCH_PATHS = {"/search", "/search/clip"}
_NEVER_REFUSED = {"/livez", "/readyz", "/metrics"}  # a refused health check would restart a busy process


class LoadSheddingMiddleware(HttpMiddleware):
    """Refuses searches that admission control would refuse, and other requests while too many wait for a thread."""

    def __init__(self, app: ASGIApp, admission: AdmissionControl) -> None:
        super().__init__(app)
        self._admission = admission

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or pass it on."""
        refusal = self._refusal(route_path(scope))
        if refusal is None:
            await self.app(scope, receive, send)
            return
        mark_as_shed(scope)
        response = problem_response(Request(scope), refusal)
        response.headers.update(SECURITY_HEADERS)
        await response(scope, receive, send)

    def _refusal(self, path: str) -> TooManyRequests | None:
        if path in _SEARCH_PATHS:
            try:
                self._admission.check()
            except TooManyRequests as error:
                return error
        elif path not in _NEVER_REFUSED:
            waiting = waiting_requests()
            if waiting >= _MAX_WAITING:
                return TooManyRequests(
                    f"The server is busy: {waiting} requests are waiting for a thread. Try again in a second."
                )
        return None
