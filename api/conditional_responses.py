"""Responses to conditional and byte range requests (RFC 9110, sections 13 and 14)."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from pathlib import Path

from fastapi import Request, Response
from fastapi.responses import FileResponse
from pydantic import BaseModel, RootModel

from media.sources.media_source import ByteRange
from service.core.errors import CinestrataError, NotFound

_HASH_BYTES = 12
_SINGLE_RANGE = re.compile(r"bytes=(\d{1,18})?-(\d{1,18})?")
_Body = BaseModel | Sequence[BaseModel]


class RangeNotSatisfiable(CinestrataError):
    """The range starts after the end of the file."""

    status = 416
    title = "Range not satisfiable"


def conditional_response(
    request: Request,
    body: _Body | Callable[[], _Body],
    version: str | None = None,
    *,
    entity_tag: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return a body as JSON, or 304 if the client has it.

    Args:
        body: The body, or a function that creates it; not called if the version is given and the client is current.
        version: ID that changes with the body; None: a digest of the body.
        entity_tag: Strong entity tag instead of a version.
    """
    content = b""
    if entity_tag is None:
        if version is None:
            content = _encode(body)
            version = hashlib.blake2b(content, digest_size=_HASH_BYTES).hexdigest()
        entity_tag = f'W/"{version}"'  # weak, because compression changes the bytes
    headers = {**(headers or {}), "ETag": entity_tag, "Cache-Control": "no-cache"}
    if is_current(request, entity_tag):
        return Response(status_code=304, headers=headers)
    return Response(content or _encode(body), media_type="application/json", headers=headers)


def is_current(request: Request, entity_tag: str, last_modified: str | None = None) -> bool:
    """Return whether the client has the current version.

    Args:
        request: The request. ``If-None-Match`` takes precedence over ``If-Modified-Since``.
        entity_tag: ``ETag`` of the current version; tags are compared weakly.
        last_modified: ``Last-Modified`` of the current version; None: only tags decide.
    """
    tags = request.headers.get("if-none-match")
    if tags is not None:
        known = {tag.strip().removeprefix("W/") for tag in tags.split(",")}
        return entity_tag.removeprefix("W/") in known or "*" in known
    since = request.headers.get("if-modified-since")
    if since is None or last_modified is None:
        return False
    try:
        return parsedate_to_datetime(since) >= parsedate_to_datetime(last_modified)
    except (ValueError, TypeError, OverflowError):  # an invalid date, or one without a time zone, is ignored
        return False


def _encode(body: _Body | Callable[[], _Body]) -> bytes:
    value = body() if callable(body) else body
    model = value if isinstance(value, BaseModel) else RootModel[Sequence[BaseModel]].model_construct(value)
    return model.model_dump_json(serialize_as_any=True).encode()


def range_response(request: Request, path: Path, media_type: str, headers: dict[str, str]) -> Response:
    """Return the file, or the requested range; 304 if the client has the current version.

    A malformed ``Range`` header, or one with several ranges, is ignored and the whole file is sent, as RFC 9110
    (section 14.2) allows.

    Raises:
        NotFound: The file does not exist.
        RangeNotSatisfiable: The file has no byte in the range.
    """
    try:
        status = os.stat(path)
    except OSError:
        status = None
    if status is None or not stat.S_ISREG(status.st_mode):
        raise NotFound("The file is no longer on disk.")
    response = FileResponse(path, media_type=media_type, headers=headers, stat_result=status)
    entity_tag, last_modified = response.headers["etag"], response.headers["last-modified"]
    if is_current(request, entity_tag, last_modified):
        validators = {"ETag": entity_tag, "Last-Modified": last_modified}
        return Response(status_code=304, headers={**headers, **validators})
    header = request.headers.get("range")
    if header is not None and not _is_satisfiable_range(header, status.st_size):
        request.scope["headers"] = [pair for pair in request.scope["headers"] if pair[0] != b"range"]
    return response


def parse_range(header: str | None) -> ByteRange | None:
    """Parse a ``Range`` header; None unless it is a valid single range."""
    match = _SINGLE_RANGE.fullmatch((header or "").strip().replace(" ", ""))
    if match is None or not any(match.groups()):
        return None
    first, last = (int(group) if group else None for group in match.groups())
    if first is not None and last is not None and first > last:
        return None
    return ByteRange(first, last)


def _is_satisfiable_range(header: str, size: int) -> bool:
    """Return whether the header is a valid single range; raises RangeNotSatisfiable if it is outside the file."""
    part = parse_range(header)
    if part is None:
        return False
    if (
        (part.first is not None and part.first >= size)
        or (part.first is None and part.last == 0)
        or size == 0
    ):
        raise RangeNotSatisfiable(
            f"The file has {size} bytes; none is in the range {header[:100]}.",
            headers={"Content-Range": f"bytes */{size}"},
        )
    return True
