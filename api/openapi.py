"""The OpenAPI description: FastAPI's, with the errors and the two bodies that it cannot see by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.models import Example
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from api.problem_details import MEDIA_TYPE, Problem
from service.core.schemas import TaskSpec

__all__ = [
    "BATCH_EXAMPLES",
    "CLIP_SEARCH_PROBLEMS",
    "PROBLEM_RESPONSES",
    "SEARCH_PROBLEMS",
    "TASK_BODY",
    "WHERE_EXAMPLES",
    "complete_schema",
]

_TEMPLATE = "#/components/schemas/{model}"
# Read from the body by hand, so FastAPI does not meet them.
_MODELS: tuple[type[BaseModel], ...] = (Problem, TaskSpec)


def _refused(description: str) -> dict[str, Any]:
    return {
        "description": description,
        "content": {MEDIA_TYPE: {"schema": {"$ref": _TEMPLATE.format(model=Problem.__name__)}}},
    }


# Every operation can answer so.
PROBLEM_RESPONSES: dict[int | str, dict[str, Any]] = {
    422: _refused("A field is wrong; `errors` names it and says how to correct it."),
    "4XX": _refused("The request was refused; `detail` says why."),
    "5XX": _refused("It could not be carried out now; try again later."),
}

CLIP_SEARCH_PROBLEMS: dict[int | str, dict[str, Any]] = {
    429: {
        **_refused("More searches are waiting than can be answered in good time."),
        "headers": {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}},
    },
}
SEARCH_PROBLEMS: dict[int | str, dict[str, Any]] = {
    410: _refused("The release of the cursor is no longer kept; search again without it."),
    **CLIP_SEARCH_PROBLEMS,
}

# A task comes as JSON, or as a form with an archive.
TASK_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {"$ref": _TEMPLATE.format(model=TaskSpec.__name__)}},
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["name", "archive"],
                    "properties": {
                        "name": {"type": "string", "minLength": 1, "maxLength": 80},
                        "method": {"type": "string"},
                        "settings": {
                            "type": "string",
                            "description": "Settings of the method, as a JSON object.",
                        },
                        "archive": {
                            "type": "string",
                            "format": "binary",
                            "description": "zip or tar(.gz) of videos, with manifest.jsonl or manifest.csv.",
                        },
                    },
                }
            },
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
        "summary": "Only short videos, with some metadata",
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
    "value": {"summary": "A field is, or has among its texts", "value": '{"place": "kitchen"}'},
    "range": {"summary": "A number in a range", "value": '{"camera": {"min": 1, "max": 4}}'},
    "tags": {"summary": "Any of these texts", "value": '{"tags": {"any": ["rain", "snow"]}}'},
}


def complete_schema(app: FastAPI) -> Callable[[], dict[str, Any]]:
    """What ``app.openapi`` is to be: the description with every schema that it refers to."""
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        document = plain()
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        if Problem.__name__ not in schemas:
            _, found = models_json_schema(
                [(model, "validation") for model in _MODELS], ref_template=_TEMPLATE
            )
            schemas |= found["$defs"]
        return document

    return openapi
