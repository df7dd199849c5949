"""Cross-origin resource sharing (CORS) for the origins of the setting ``CINESTRATA_CORS_ORIGINS``.

Pages from other origins send an API key. Their scripts cannot read responses to requests with the session cookie.
Browsers add this cookie to requests from other subdomains and ports of the same host, so changes ignore it there.
"""

from __future__ import annotations

from collections.abc import Collection

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from service.core import tracing

_METHODS = ("GET", "HEAD", "POST", "PATCH", "DELETE", "OPTIONS")
_AGENT_HEADERS = ("MCP-Protocol-Version", "Mcp-Method", "Mcp-Name", "Mcp-Session-Id")  # of their protocol
_TRACE_HEADERS = ("Traceparent", "Tracestate", "Baggage")
_REQUEST_HEADERS = (
    *_AGENT_HEADERS,
    *_TRACE_HEADERS,
    "Authorization",
    "Idempotency-Key",
    "If-Match",
    "If-Modified-Since",
    "If-None-Match",
    "If-Range",
    "Last-Event-ID",
    "Range",
    "Tus-Resumable",
    "Upload-Length",
    "Upload-Metadata",
    "Upload-Offset",
    "X-API-Key",
    tracing.REQUEST_ID_HEADER,
)
# Scripts of other origins can read these headers in addition to the few that browsers always expose.
EXPOSED_HEADERS = (
    "Accept-Ranges",
    "Content-Range",
    "ETag",
    "Idempotency-Replayed",
    "Link",
    "Location",
    "Mcp-Session-Id",
    "Retry-After",
    "Tus-Extension",
    "Tus-Max-Size",
    "Tus-Resumable",
    "Tus-Version",
    "Upload-Expires",
    "Upload-Length",
    "Upload-Metadata",
    "Upload-Offset",
    "WWW-Authenticate",
    tracing.REQUEST_ID_HEADER,
)


def share_with_origins(app: FastAPI, origins: Collection[str]) -> None:
    """Answer preflight requests from these origins, and let their scripts read the responses."""
    app.add_middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=_METHODS,
        allow_headers=_REQUEST_HEADERS,
        expose_headers=EXPOSED_HEADERS,
        allow_credentials=False,
        allow_private_network=True,  # pages of the Internet may be listed by a service in a home network
    )
