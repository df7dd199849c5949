"""Parts of the OpenAPI description that routes name: error responses, examples, and request bodies that they parse."""

from __future__ import annotations

from typing import Any

from fastapi.openapi.models import Example
from pydantic import BaseModel

from api.problem_details import MEDIA_TYPE, Problem
from service.core.schemas import EVENT_FACTS, AppendSpec, PreviewRequest, TaskEvent, TaskSpec

__all__ = [
    "ADDITIONAL_MODELS",
    "APPEND_BODY",
    "BATCH_EXAMPLES",
    "CLIP_SEARCH_PROBLEMS",
    "EDIT_EXAMPLES",
    "EDIT_PROBLEMS",
    "PREVIEW_BODY",
    "PROBLEM_RESPONSES",
    "SCHEMA_REF",
    "SEARCH_PROBLEMS",
    "TASK_BODY",
    "UNCHANGED",
    "WHERE_EXAMPLES",
]

SCHEMA_REF = "#/components/schemas/{model}"
# Models that no route signature names, so FastAPI does not add their schemas.
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


# Responses of every operation.
PROBLEM_RESPONSES: dict[int | str, dict[str, Any]] = {
    422: _problem("A field is invalid; `errors` names it and gives a hint."),
    "4XX": _problem("The request was refused; `detail` gives the reason."),
    "5XX": _problem("The service is temporarily unavailable; try again later."),
}

CLIP_SEARCH_PROBLEMS: dict[int | str, dict[str, Any]] = {
    429: {
        **_problem("The queue of searches is full; try again after `Retry-After`."),
        "headers": {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}}},
    },
}
SEARCH_PROBLEMS: dict[int | str, dict[str, Any]] = {
    410: _problem("The release of the cursor is no longer available; search again without the cursor."),
    **CLIP_SEARCH_PROBLEMS,
}

UNCHANGED: dict[int | str, dict[str, Any]] = {
    304: {"description": "The client has this version: `If-None-Match` contains its `ETag`."}
}
EDIT_PROBLEMS: dict[int | str, dict[str, Any]] = {
    409: _problem("The video is a copy that is being learned again; edit the original that `detail` names."),
    412: _problem("The video has changed since it was read; read it again."),
}
EDIT_EXAMPLES: dict[str, Example] = {
    "captions": {
        "summary": "Replace all captions",
        "value": {"captions": ["eggs are whisked in a bowl", "a hand beats eggs"]},
    },
    "metadata": {
        "summary": "Set one metadata field, and remove another",
        "value": {"metadata": {"place": "kitchen", "camera": None}},
    },
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
                            "description": "Settings of the method as a JSON object.",
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
    "tags": {"summary": "Any of several texts", "value": '{"tags": {"any": ["rain", "snow"]}}'},
}
