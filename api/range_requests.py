"""Files of which a part may be asked for, as players do when they seek."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from fastapi import Request
from fastapi.responses import FileResponse

from service.core.errors import CinestrataError, NotFound

__all__ = ["range_response"]

_SINGLE = re.compile(r"bytes=(\d{1,18})?-(\d{1,18})?")


class RangeNotSatisfiable(CinestrataError):
    """The range lies behind the end of the file."""

    status = 416
    title = "Range not satisfiable"


def range_response(request: Request, path: Path, media_type: str, headers: dict[str, str]) -> FileResponse:
    """The file, or the one range of it that is asked for.

    A ``Range`` that is malformed, or that holds several ranges, is ignored and the whole file sent, as RFC 9110
    (14.2) allows.

    Raises:
        NotFound: the file is gone.
        RangeNotSatisfiable: nothing of the range is in the file.
    """
    try:
        info = os.stat(path)
    except OSError:
        info = None
    if info is None or not stat.S_ISREG(info.st_mode):
        raise NotFound("The file is not on disk any more.")
    asked = request.headers.get("range")
    if asked is not None and not _has_part(asked, info.st_size):
        request.scope["headers"] = [header for header in request.scope["headers"] if header[0] != b"range"]
    return FileResponse(path, media_type=media_type, headers=headers, stat_result=info)


def _has_part(asked: str, size: int) -> bool:
    match = _SINGLE.fullmatch(asked.strip().replace(" ", ""))
    if match is None or not any(match.groups()):
        return False
    first, last = (int(group) if group else None for group in match.groups())
    if first is not None and last is not None and first > last:
        return False
    if (first is not None and first >= size) or (first is None and last == 0) or size == 0:
        raise RangeNotSatisfiable(
            f"The file has {size} bytes; the range {asked[:100]} holds none of them.",
            headers={"Content-Range": f"bytes */{size}"},
        )
    return True
