"""Cross-origin resource sharing (CORS) for the origins of the setting ``CINESTRATA_CORS_ORIGINS``.

Pages from other origins send an API key. Their scripts cannot read responses to requests with the session cookie.
Browsers add this cookie to requests from other subdomains and ports of the same host, so changes ignore it there.
"""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import urlsplit

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request

from service.core import tracing

_SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}
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


def is_cross_site_change(request: Request) -> bool:
    """Return whether a browser sends a state-changing request on behalf of another site's page."""
    return request.method not in _SAFE_METHODS and _is_cross_site(request.headers)


def _is_cross_site(headers: Headers) -> bool:
    """Return whether a browser's headers name another site as origin. Programs send neither header.

    If both headers are present, ``Sec-Fetch-Site`` decides: pages cannot forge it, and it stays correct behind a proxy
    that changes the host name.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = headers.get("origin")
    if origin is None:
        return False
    try:
        return urlsplit(origin).netloc != headers.get("host")
    except ValueError:
        return True


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
