"""File responses with byte ranges, which video players request when they seek."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from fastapi import Request, Response
from fastapi.responses import FileResponse

from api.conditional_responses import is_current
from media.sources.media_source import ByteRange
from service.core.errors import CinestrataError, NotFound

__all__ = ["RangeNotSatisfiable", "parse_range", "range_response"]

_SINGLE_RANGE = re.compile(r"bytes=(\d{1,18})?-(\d{1,18})?")


class RangeNotSatisfiable(CinestrataError):
    """The range starts after the end of the file."""

    status = 416
    title = "Range not satisfiable"


def range_response(request: Request, path: Path, media_type: str, headers: dict[str, str]) -> Response:
    """The file, or the range of it that the request names; 304 if the client has the current version.

    A malformed ``Range`` header, or one with several ranges, is ignored and the whole file is sent, as RFC 9110
    (section 14.2) allows.

    Raises:
        NotFound: The file does not exist.
        RangeNotSatisfiable: The file has no byte of the range.
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
    """The range of a ``Range`` header; None if there is no header, or not a valid one with a single range."""
    match = _SINGLE_RANGE.fullmatch((header or "").strip().replace(" ", ""))
    if match is None or not any(match.groups()):
        return None
    first, last = (int(group) if group else None for group in match.groups())
    if first is not None and last is not None and first > last:
        return None
    return ByteRange(first, last)


def _is_satisfiable_range(header: str, size: int) -> bool:
    """Whether the header is a valid single range; raises RangeNotSatisfiable for one outside the file."""
    part = parse_range(header)
    if part is None:
        return False
    if (
        (part.first is not None and part.first >= size)
        or (part.first is None and part.last == 0)
        or size == 0
    ):
        raise RangeNotSatisfiable(
            f"The file has {size} bytes; none of them is in the range {header[:100]}.",
            headers={"Content-Range": f"bytes */{size}"},
        )
    return True
