"""Headers of answers: their descriptions, and the operations and statuses that have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.core import request_ids

__all__ = ["RESPONSE_HEADERS", "headers_of", "headers_of_problem"]


def _header(description: str, example: str | int) -> dict[str, Any]:
    kind = "integer" if isinstance(example, int) else "string"
    return {"description": description, "schema": {"type": kind}, "example": example}


RESPONSE_HEADERS: Mapping[str, dict[str, Any]] = {
    request_ids.HEADER: _header("Identifier of the request, which log lines carry.", "7cebaf9dec42e87a9bad"),
    "Accept-Ranges": _header("Unit of ranges that the file can be requested in.", "bytes"),
    "Cache-Control": _header("How long, and by whom, the answer may be kept.", "no-cache"),
    "Content-Disposition": _header("Name of the file that browsers store.", 'attachment; filename="a.jsonl"'),
    "Content-Range": _header("Range of the file in the answer, and its size.", "bytes 0-1023/4096"),
    "ETag": _header(
        "Version of the answer, for `If-None-Match` and `If-Match`.", 'W/"3b89a3e1465fba8c1d5238e7"'
    ),
    "Idempotency-Replayed": _header(
        "`true`: an earlier request with the same `Idempotency-Key` created the task.", "true"
    ),
    "Last-Modified": _header("Time of the last change of the file.", "Thu, 26 Nov 2026 00:30:12 GMT"),
    "Link": _header(
        'The next page (`rel="next"`); missing on the last page.', '<?limit=1&cursor=WyJ>; rel="next"'
    ),
    "Location": _header(
        "Path of the created resource, with the prefix of the request.", "/v1/tasks/tsk_5e1f"
    ),
    "Retry-After": _header("Seconds until the request may be repeated.", 1),
    "Tus-Checksum-Algorithm": _header("Algorithms of `Upload-Checksum`.", "sha256,sha1"),
    "Tus-Extension": _header("Extensions of the tus protocol.", "creation,termination"),
    "Tus-Max-Size": _header("Maximum size of a file in bytes.", 4294967296),
    "Tus-Resumable": _header("Version of the tus protocol.", "1.0.0"),
    "Tus-Version": _header("Supported versions of the tus protocol.", "1.0.0"),
    "Upload-Expires": _header(
        "Time after which the unfinished upload is deleted.", "Thu, 26 Nov 2026 00:30:12 GMT"
    ),
    "Upload-Length": _header("Size of the file in bytes.", 3),
    "Upload-Metadata": _header("Metadata of the file, as they were sent.", "filename Y2xpcC5tcDQ="),
    "Upload-Offset": _header("Number of bytes that are stored.", 3),
    "WWW-Authenticate": _header("Scheme of the missing credentials.", 'Bearer realm="Cinestrata"'),
    "X-Accel-Buffering": _header("`no`: a proxy passes events on at once.", "no"),
}

_VALIDATORS = ("ETag", "Cache-Control")
_UPLOAD_STATE = ("Tus-Resumable", "Upload-Offset", "Upload-Expires", "Cache-Control")
_CREATION = ("Location", "Idempotency-Replayed")
_FILE = (*_VALIDATORS, "Last-Modified", "Accept-Ranges")
_OF_OPERATIONS: Mapping[str, tuple[str, ...]] = {
    "create_task": _CREATION,
    "append_videos": _CREATION,
    "relearn_task": _CREATION,
    "edit_video": ("ETag",),
    "get_video": _VALIDATORS,
    "get_task": _VALIDATORS,
    "get_forgetting": _VALIDATORS,
    "get_forgetting_map": _VALIDATORS,
    "get_library": _VALIDATORS,
    "get_overview": _VALIDATORS,
    "list_tasks": (*_VALIDATORS, "Link"),
    "list_videos": (*_VALIDATORS, "Link"),
    "list_videos_of_task": (*_VALIDATORS, "Link"),
    "list_rejected_videos": ("Link",),
    "list_shards": (*_VALIDATORS, "Link"),
    "list_releases": (*_VALIDATORS, "Link"),
    "list_audit_entries": ("Link",),
    "export_audit_entries": ("Cache-Control", "Content-Disposition"),
    "watch_task": ("Cache-Control", "X-Accel-Buffering"),
    "get_thumbnail": _FILE,
    "stream_video": _FILE,
    "upload_capabilities": (
        "Tus-Resumable",
        "Tus-Version",
        "Tus-Extension",
        "Tus-Checksum-Algorithm",
        "Tus-Max-Size",
    ),
    "create_upload": (*_UPLOAD_STATE, "Location"),
    "get_upload_offset": (*_UPLOAD_STATE, "Upload-Length", "Upload-Metadata"),
    "append_to_upload": _UPLOAD_STATE,
    "delete_upload": ("Tus-Resumable",),
}
_OF_PROBLEMS: Mapping[int, tuple[str, ...]] = {
    401: ("WWW-Authenticate",),
    409: ("Retry-After",),
    412: ("Tus-Version",),
    416: ("Content-Range",),
    429: ("Retry-After",),
    503: ("Retry-After",),
}


def headers_of(operation: str, status: str) -> list[str]:
    """Return the names of the headers of a successful answer.

    Args:
        operation: Operation id.
        status: Status of the answer; 304 has the validators alone.
    """
    headers = _OF_OPERATIONS.get(operation, ())
    if status == "304":
        headers = tuple(name for name in headers if name not in ("Accept-Ranges",))
    if status == "206":
        headers = (*headers, "Content-Range")
    return [request_ids.HEADER, *headers]


def headers_of_problem(status: int) -> list[str]:
    """Return the names of the headers of errors with a status."""
    return [request_ids.HEADER, *_OF_PROBLEMS.get(status, ())]
