"""Cross-origin resource sharing (CORS) for the origins of the setting ``CINESTRATA_CORS_ORIGINS``.

Credentials are never shared: pages of other origins send an API key, and the session cookie of a browser is not sent
with their requests.
"""

from __future__ import annotations

from collections.abc import Collection

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from service.core import request_ids

__all__ = ["EXPOSED_HEADERS", "share_with_origins"]

_METHODS = ("GET", "HEAD", "POST", "PATCH", "DELETE", "OPTIONS")
_REQUEST_HEADERS = (
    "Authorization",
    "Idempotency-Key",
    "If-Match",
    "If-Modified-Since",
    "If-None-Match",
    "If-Range",
    "Last-Event-ID",
    "Range",
    "Tus-Resumable",
    "Upload-Checksum",
    "Upload-Length",
    "Upload-Metadata",
    "Upload-Offset",
    "X-API-Key",
    request_ids.HEADER,
)
# Scripts of other origins can read these headers in addition to the few that browsers always expose.
EXPOSED_HEADERS = (
    "Accept-Ranges",
    "Content-Range",
    "ETag",
    "Idempotency-Replayed",
    "Link",
    "Location",
    "Retry-After",
    "Tus-Checksum-Algorithm",
    "Tus-Extension",
    "Tus-Max-Size",
    "Tus-Resumable",
    "Tus-Version",
    "Upload-Expires",
    "Upload-Length",
    "Upload-Metadata",
    "Upload-Offset",
    "WWW-Authenticate",
    request_ids.HEADER,
)


def share_with_origins(app: FastAPI, origins: Collection[str]) -> None:
    """Answer preflight requests of these origins, and let their scripts read the answers."""
    app.add_middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=_METHODS,
        allow_headers=_REQUEST_HEADERS,
        expose_headers=EXPOSED_HEADERS,
        allow_credentials=False,
    )
