"""``POST /mcp``: the agent tools over HTTP, with the API's keys and scopes."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

import httpx
from asgi_correlation_id import correlation_id
from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.types import Message, Receive, Scope, Send

from api.security.authentication import client_address
from api.security.route_scopes import ScopedRoute, requires
from service.core import change_sequence, tracing

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

router = APIRouter(include_in_schema=False, route_class=ScopedRoute)

_CREDENTIALS = ("authorization", "x-api-key")


@router.post("/mcp")
@router.post("/mcp/")
@requires("search")
async def answer_agent(request: Request) -> Response:
    """Answer a Model Context Protocol message (streamable HTTP without sessions)."""
    return _AgentResponse(await request.body(), await run_in_threadpool(_agent_server))


class _AgentResponse(Response):
    """The SDK's response to a received message."""

    def __init__(self, message: bytes, server: MCPServer) -> None:
        super().__init__()
        self._received: list[Message] = [{"type": "http.request", "body": message, "more_body": False}]
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        from mcp.server.transport_security import TransportSecuritySettings

        headers = MutableHeaders(scope=(scope := {**scope}))
        accepted = ",".join(headers.getlist("accept")).lower()
        only_events = re.fullmatch(r"(?!.*(application/|\*/\*)).*text/(event-stream|\*).*", accepted)
        headers["accept"] = "application/json, text/event-stream"  # the SDK refuses requests with less

        async def receive_message() -> Message:
            return self._received.pop() if self._received else await receive()

        # A manager keeps sessions. There are none, so each request gets its own manager and nothing outlives it.
        # SecurityMiddleware has checked host and origin.
        self._server.streamable_http_app(
            json_response=not only_events,
            stateless_http=True,
            transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        )
        manager = self._server.session_manager
        async with manager.run():
            await manager.handle_request(scope, receive_message, send)


@lru_cache(maxsize=1)
def _agent_server() -> MCPServer:
    import logging

    from api.agents.library_tools import create_agent_server

    for name in ("mcp", "httpx"):  # they would log each request, with its query
        logging.getLogger(name).setLevel(logging.WARNING)
    return create_agent_server(_open_client)


def _open_client(request: Request | None) -> httpx.AsyncClient:
    """Open a client of this application with a request's key, address and ID."""
    if request is None:
        raise AssertionError("an agent over HTTP sends a request")
    headers = {name: request.headers[name] for name in _CREDENTIALS if name in request.headers}
    headers[tracing.REQUEST_ID_HEADER] = correlation_id.get() or ""
    headers[change_sequence.HEADER] = str(change_sequence.LATEST)  # agents keep no number
    transport = httpx.ASGITransport(
        request.app, raise_app_exceptions=False, client=(client_address(request), 0)
    )
    return httpx.AsyncClient(
        transport=transport, base_url="http://localhost", headers={"Accept-Encoding": "identity", **headers}
    )
