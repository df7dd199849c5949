"""File responses with byte ranges, which video players request when they seek."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from fastapi import Request
from fastapi.responses import FileResponse

from media.sources.media_source import ByteRange
from service.core.errors import CinestrataError, NotFound

__all__ = ["RangeNotSatisfiable", "parse_range", "range_response"]

_SINGLE_RANGE = re.compile(r"bytes=(\d{1,18})?-(\d{1,18})?")


class RangeNotSatisfiable(CinestrataError):
    """The range starts after the end of the file."""

    status = 416
    title = "Range not satisfiable"


def range_response(request: Request, path: Path, media_type: str, headers: dict[str, str]) -> FileResponse:
    """The file, or the range of it that the request names.

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
    header = request.headers.get("range")
    if header is not None and not _is_satisfiable_range(header, status.st_size):
        request.scope["headers"] = [pair for pair in request.scope["headers"] if pair[0] != b"range"]
    return FileResponse(path, media_type=media_type, headers=headers, stat_result=status)


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
