"""Parts of the OpenAPI description shared by routes: error responses, examples, and request bodies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi.openapi.models import Example
from pydantic import BaseModel

from api.problem_details import MEDIA_TYPE
from cinestrata_schemas.problems import Problem
from cinestrata_schemas.tasks import AppendSpec, TaskEvent, TaskSpec
from cinestrata_schemas.uploads import PreviewRequest
from cinestrata_schemas.webhooks import EVENT_FACTS
from service.core import request_ids

SCHEMA_REF = "#/components/schemas/{model}"
# Models that appear in no route signature, so FastAPI does not add their schemas.
ADDITIONAL_MODELS: tuple[type[BaseModel], ...] = (
    AppendSpec,
    PreviewRequest,
    Problem,
    TaskEvent,
    TaskSpec,
    *dict.fromkeys(EVENT_FACTS.values()),
)


def _problem(description: str) -> dict[str, Any]:
    return {
        "description": description,
        "content": {MEDIA_TYPE: {"schema": {"$ref": SCHEMA_REF.format(model=Problem.__name__)}}},
    }


# Error responses of every operation.
PROBLEM_RESPONSES: dict[int | str, dict[str, Any]] = {
    422: _problem("A field is invalid; see `errors` for the field and a hint."),
    "4XX": _problem("The request was refused; see `detail` for the reason."),
    "5XX": _problem("The service is temporarily unavailable; try again later."),
}

CLIP_SEARCH_PROBLEMS: dict[int | str, dict[str, Any]] = {
    429: {
        **_problem("The search queue is full; try again after `Retry-After`."),
        "headers": {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}}},
    },
}
SEARCH_PROBLEMS: dict[int | str, dict[str, Any]] = {
    410: _problem("The cursor's release is gone; search again without the cursor."),
    **CLIP_SEARCH_PROBLEMS,
}

UNCHANGED: dict[int | str, dict[str, Any]] = {
    304: {"description": "The client has this version: `If-None-Match` contains its `ETag`."}
}
EDIT_PROBLEMS: dict[int | str, dict[str, Any]] = {
    409: _problem("The video is a copy that is being relearned; edit the original named in `detail`."),
    412: _problem("The video has changed since you read it; read it again."),
}
EDIT_EXAMPLES: dict[str, Example] = {
    "captions": {
        "summary": "Replace all captions",
        "value": {"captions": ["eggs are whisked in a bowl", "a hand beats eggs"]},
    },
    "metadata": {
        "summary": "Set one metadata field and remove another",
        "value": {"metadata": {"place": "kitchen", "camera": None}},
    },
}

SYNCED_FILES_EXAMPLES: dict[str, Example] = {
    "rename": {
        "summary": "A file has another name",
        "value": {
            "task_id": "tsk_1",
            "source": "/videos/harbor",
            "files": [{"path": "new-name.mp4", "bytes": 1048576, "sha256": "ab12", "video_id": "vid_1"}],
            "renamed": {"vid_1": "new-name.mp4"},
        },
    }
}

_ARCHIVE = {
    "type": "string",
    "format": "binary",
    "description": "zip or tar(.gz) archive of videos with a manifest.jsonl or manifest.csv, or sidecar files.",
}

# POST /tasks/{task_id}/videos and POST /tasks accept JSON, or a form with an archive.
APPEND_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {"$ref": SCHEMA_REF.format(model=AppendSpec.__name__)}},
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "title": "AppendArchive",
                    "required": ["archive"],
                    "properties": {"archive": _ARCHIVE},
                }
            },
        },
    }
}
TASK_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {"$ref": SCHEMA_REF.format(model=TaskSpec.__name__)}},
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "title": "TaskArchive",
                    "required": ["name", "archive"],
                    "properties": {
                        "name": {"type": "string", "minLength": 1, "maxLength": 80},
                        "method": {"type": "string"},
                        "settings": {
                            "type": "string",
                            "description": "Method settings as a JSON object.",
                        },
                        "archive": _ARCHIVE,
                    },
                }
            },
        },
    }
}

PREVIEW_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {"$ref": SCHEMA_REF.format(model=PreviewRequest.__name__)}}
        },
    }
}

BATCH_EXAMPLES: dict[str, Example] = {
    "two": {
        "summary": "Two searches, one of them in two domains",
        "value": {
            "queries": [
                {"q": "eggs are whisked", "k": 5},
                {"q": "a taxi turns left", "task": ["night traffic", "kitchen"]},
            ]
        },
    },
    "filtered": {
        "summary": "Short videos with conditions on metadata",
        "value": {
            "queries": [
                {
                    "q": "a taxi turns left",
                    "max_duration": 30,
                    "arrived_after": "2026-01-01",
                    "where": {
                        "place": "station",
                        "camera": {"min": 1, "max": 4},
                        "tags": {"any": ["rain", "snow"]},
                    },
                }
            ]
        },
    },
}
WHERE_EXAMPLES: dict[str, Example] = {
    "value": {
        "summary": "A field with this value, or a list that contains it",
        "value": '{"place": "kitchen"}',
    },
    "range": {"summary": "A number in a range", "value": '{"camera": {"min": 1, "max": 4}}'},
    "tags": {"summary": "Any of several strings", "value": '{"tags": {"any": ["rain", "snow"]}}'},
}


def _header(description: str, example: str | int) -> dict[str, Any]:
    kind = "integer" if isinstance(example, int) else "string"
    return {"description": description, "schema": {"type": kind}, "example": example}


RESPONSE_HEADERS: Mapping[str, dict[str, Any]] = {
    request_ids.HEADER: _header("ID of the request, as in log lines.", "7cebaf9dec42e87a9bad"),
    "Accept-Ranges": _header("Unit for range requests.", "bytes"),
    "Cache-Control": _header("Who may cache the response, and for how long.", "no-cache"),
    "Content-Disposition": _header("File name for downloads in browsers.", 'attachment; filename="a.jsonl"'),
    "Content-Range": _header("Returned range, and the file's size.", "bytes 0-1023/4096"),
    "ETag": _header(
        "Version of the response, for `If-None-Match` and `If-Match`.", 'W/"3b89a3e1465fba8c1d5238e7"'
    ),
    "Idempotency-Replayed": _header(
        "`true`: a previous request with the same `Idempotency-Key` created the task.", "true"
    ),
    "Last-Modified": _header("Time when the file last changed.", "Thu, 26 Nov 2026 00:30:12 GMT"),
    "Link": _header(
        'The next page (`rel="next"`); missing on the last page.', '<?limit=1&cursor=WyJ>; rel="next"'
    ),
    "Location": _header("Path of the created resource, with the request's prefix.", "/v1/tasks/tsk_5e1f"),
    "Retry-After": _header("Seconds to wait before repeating the request.", 1),
    "Tus-Extension": _header("Extensions of the tus protocol.", "creation,termination"),
    "Tus-Max-Size": _header("Maximum size of a file in bytes.", 4294967296),
    "Tus-Resumable": _header("Version of the tus protocol.", "1.0.0"),
    "Tus-Version": _header("Supported versions of the tus protocol.", "1.0.0"),
    "Upload-Expires": _header(
        "Time after which the unfinished upload is deleted.", "Thu, 26 Nov 2026 00:30:12 GMT"
    ),
    "Upload-Length": _header("Size of the file in bytes.", 3),
    "Upload-Metadata": _header("File metadata as sent.", "filename Y2xpcC5tcDQ="),
    "Upload-Offset": _header("Number of stored bytes.", 3),
    "WWW-Authenticate": _header("Authentication scheme that the request needs.", 'Bearer realm="Cinestrata"'),
    "X-Accel-Buffering": _header("`no`: a proxy passes events on at once.", "no"),
}

_VALIDATORS = ("ETag", "Cache-Control")
_UPLOAD_STATE = ("Tus-Resumable", "Upload-Offset", "Upload-Expires", "Cache-Control")
_CREATION = ("Location", "Idempotency-Replayed")
_FILE = (*_VALIDATORS, "Last-Modified", "Accept-Ranges")
_OPERATION_HEADERS: Mapping[str, tuple[str, ...]] = {
    "create_task": _CREATION,
    "append_videos": _CREATION,
    "relearn_task": _CREATION,
    "create_sample_task": ("Location",),
    "edit_video": ("ETag",),
    "get_video": _VALIDATORS,
    "get_task": _VALIDATORS,
    "get_forgetting": _VALIDATORS,
    "get_library": _VALIDATORS,
    "list_tasks": (*_VALIDATORS, "Link"),
    "list_videos": (*_VALIDATORS, "Link"),
    "list_shards": (*_VALIDATORS, "Link"),
    "list_releases": (*_VALIDATORS, "Link"),
    "list_audit_entries": ("Link",),
    "watch_task": ("Cache-Control", "X-Accel-Buffering"),
    "get_thumbnail": _FILE,
    "stream_video": _FILE,
    "upload_capabilities": (
        "Tus-Resumable",
        "Tus-Version",
        "Tus-Extension",
        "Tus-Max-Size",
    ),
    "create_upload": (*_UPLOAD_STATE, "Location"),
    "get_upload_offset": (*_UPLOAD_STATE, "Upload-Length", "Upload-Metadata"),
    "append_to_upload": _UPLOAD_STATE,
    "delete_upload": ("Tus-Resumable",),
}
_PROBLEM_HEADERS: Mapping[int, tuple[str, ...]] = {
    401: ("WWW-Authenticate",),
    409: ("Retry-After",),
    412: ("Tus-Version",),
    416: ("Content-Range",),
    429: ("Retry-After",),
    503: ("Retry-After",),
}


def response_headers(operation: str, status: str) -> list[str]:
    """List the header names of an operation's successful response."""
    headers = _OPERATION_HEADERS.get(operation, ())
    if status == "304":
        headers = tuple(name for name in headers if name != "Accept-Ranges")
    if status == "206":
        headers = (*headers, "Content-Range")
    return [request_ids.HEADER, *headers]


def problem_headers(status: int) -> list[str]:
    """List the header names of errors with a status."""
    return [request_ids.HEADER, *_PROBLEM_HEADERS.get(status, ())]
