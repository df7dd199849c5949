"""Size limits for request bodies and form parts."""

from __future__ import annotations

import re

from starlette.requests import Request
from starlette.types import Message, Receive

from api.request_paths import route_path
from service.core import request_limits
from service.core.errors import TooLarge
from service.core.settings import Settings

MAX_FORM_FILES, MAX_FORM_FIELDS = 1, 8  # a form is kept in memory until it is complete

_APPEND_PATH = re.compile(r"/tasks/[^/]+/videos")
_MAX_TASK_BYTES = 128 * 1024**2  # a task of 100,000 videos with 1.3 KB each, as JSON
_MAX_BATCH_BYTES = 4 * 1024**2  # 256 long queries with long filters
_MAX_AGENT_BYTES = 4 * 1024**2  # a domain of 1,000 videos with captions; also the limit of the SDK
_MAX_EDIT_BYTES = 8 * 1024**2  # the longest transcript, captions and metadata of a video
_MAX_OTHER_BYTES = 64 * 1024  # small forms and JSON objects


def body_limit(request: Request, settings: Settings) -> int:
    """Return the maximum body size for a request, in bytes."""
    path = route_path(request.scope)
    if path == "/search":
        return _MAX_BATCH_BYTES
    if path in ("/mcp", "/mcp/"):
        return _MAX_AGENT_BYTES
    if path == "/search/clip":
        return (
            request_limits.MAX_CLIP_BYTES + _MAX_OTHER_BYTES
        )  # the clip and the multipart headers around it
    if request.method == "DELETE":  # a list of video IDs
        return _MAX_TASK_BYTES
    if path.startswith("/uploads"):  # the preview, or bytes of a file
        return _MAX_TASK_BYTES if path == "/uploads/preview" else request_limits.MAX_VIDEO_BYTES
    if request.method == "PATCH":  # captions, metadata and transcript of a video
        return _MAX_EDIT_BYTES
    if path != "/tasks" and not _APPEND_PATH.fullmatch(path):
        return _MAX_OTHER_BYTES
    is_multipart = request.headers.get("content-type", "").startswith("multipart/")
    return settings.max_upload_bytes if is_multipart else _MAX_TASK_BYTES


def check_content_length(value: str, limit: int) -> None:
    """Check the Content-Length header of a request against a limit.

    Raises:
        TooLarge: The declared size exceeds the limit.
    """
    if not (value.isascii() and value.isdecimal()):
        return
    digits = value.lstrip("0") or "0"
    # The length is compared first, because int() refuses numbers with thousands of digits.
    if len(digits) > len(str(limit)) or int(digits) > limit:
        raise _too_large(limit)


def limit_body(receive: Receive, limit: int) -> Receive:
    """Wrap an ASGI receive channel so that a body above the limit raises :class:`TooLarge`.

    This covers chunked requests, which declare no size.
    """
    received = 0

    async def receive_within_limit() -> Message:
        nonlocal received
        message = await receive()
        if message["type"] == "http.request":
            received += len(message.get("body", b""))
            if received > limit:
                raise _too_large(limit)
        return message

    return receive_within_limit


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"The body exceeds {limit} bytes; send less data, or split it into several requests.")
