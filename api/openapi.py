"""The OpenAPI document: that of FastAPI, with paths below ``/v1``, security schemes and error types.

Routes describe their own responses, headers and bodies; descriptions that several routes share are here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Lock
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.models import Example
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from api.problem_details import MEDIA_TYPE
from api.request_middleware import PREFIX
from api.security.route_scopes import SECURITY_SCHEMES
from cinestrata_schemas.problems import Problem
from cinestrata_schemas.tasks import AppendSpec, PreviewRequest, TaskEvent, TaskSpec
from service.core.errors import CinestrataError, TaskInterruption, problem_type

_SCHEMA_REF = "#/components/schemas/{model}"
# Models that appear in no route signature, so FastAPI does not add their schemas.
_ADDITIONAL_MODELS: tuple[type[BaseModel], ...] = (AppendSpec, PreviewRequest, Problem, TaskEvent, TaskSpec)

DESCRIPTION = """\
Text-to-video search that keeps learning and never re-indexes.

Every path also exists without the prefix `/v1`. Errors are `application/problem+json`, and `type` tells them apart:
each is `urn:cinestrata:problem:` and one of the names below. Every response has an `X-Request-ID` header."""
TAGS = [
    {"name": name, "description": text}
    for name, text in {
        "search": "Search by text, clip or image, and feedback on results.",
        "tasks": "Tasks that learn a domain of videos, or append videos to a learned domain.",
        "videos": "Videos, their captions and metadata, and their files.",
        "uploads": "Resumable uploads with the tus protocol 1.0.0.",
        "syncs": "Domains that follow a folder of videos.",
        "measures": "Recall, forgetting, shards and releases.",
        "access": "API keys, users, browser sessions and the audit log.",
        "webhooks": "Signed messages about events.",
        "operation": "Maintenance, snapshots, and the state of processes and queues.",
        "health": "Health checks and metrics.",
    }.items()
]


def problem(description: str) -> dict[str, Any]:
    """Describe an error response for the ``responses`` of a route."""
    return {"description": description, "content": {MEDIA_TYPE: {"schema": _reference(Problem)}}}


def file_response(media_type: str) -> dict[int | str, dict[str, Any]]:
    """Describe the responses of a route that returns a file or a byte range of it."""
    content = {media_type: {"schema": {"type": "string", "contentMediaType": "application/octet-stream"}}}
    return {
        200: {"description": "The file.", "content": content},
        206: {"description": "The requested byte range.", "content": content},
        **UNCHANGED,
    }


def _reference(model: type[BaseModel]) -> dict[str, Any]:
    return {"$ref": _SCHEMA_REF.format(model=model.__name__)}


# Error responses of every operation.
PROBLEM_RESPONSES: dict[int | str, dict[str, Any]] = {
    422: problem("A field is invalid; see `errors` for the field and a hint."),
    "4XX": problem("The request was refused; see `detail` for the reason."),
    "5XX": problem("The service is temporarily unavailable; try again later."),
}
SEARCH_PROBLEMS: dict[int | str, dict[str, Any]] = {
    410: problem("The cursor's release is gone; search again without the cursor."),
    429: problem("The search queue is full; try again after `Retry-After`."),
}
UNCHANGED: dict[int | str, dict[str, Any]] = {
    304: {"description": "The client has this version: `If-None-Match` contains its `ETag`."}
}
EDIT_PROBLEMS: dict[int | str, dict[str, Any]] = {
    409: problem("The video is a copy that is being relearned; edit the original named in `detail`."),
    412: problem("The video has changed since you read it; read it again."),
}
WHERE_EXAMPLES: dict[str, Example] = {
    "value": {
        "summary": "A field with this value, or a list that contains it",
        "value": '{"place": "kitchen"}',
    },
    "range": {"summary": "A number in a range", "value": '{"camera": {"min": 1, "max": 4}}'},
    "tags": {"summary": "Any of several strings", "value": '{"tags": {"any": ["rain", "snow"]}}'},
}


def _request_body(model: type[BaseModel], **form: Any) -> dict[str, Any]:
    """Describe a JSON body, and a form with an archive as an alternative to it if the form has fields."""
    content: dict[str, Any] = {"application/json": {"schema": _reference(model)}}
    if form:
        archive = {
            "type": "string",
            "format": "binary",
            "description": "zip or tar(.gz) archive of videos with a manifest.jsonl or manifest.csv, or sidecar files.",
        }
        required = [name for name, field in form.items() if "minLength" in field]
        content["multipart/form-data"] = {
            "schema": {
                "type": "object",
                "required": [*required, "archive"],
                "properties": {**form, "archive": archive},
            }
        }
    return {"requestBody": {"required": True, "content": content}}


APPEND_BODY = _request_body(AppendSpec, archive={})
TASK_BODY = _request_body(
    TaskSpec,
    name={"type": "string", "minLength": 1, "maxLength": 80},
    method={"type": "string"},
    settings={"type": "string", "description": "Method settings as a JSON object."},
    backbone={"type": "string"},
    read={"type": "string"},
)
PREVIEW_BODY = _request_body(PreviewRequest)


def describe(app: FastAPI) -> Callable[[], dict[str, Any]]:
    """Return a replacement for an application's ``openapi``."""
    generate = app.openapi
    root = app.state.settings.root_path
    app.servers = [{"url": root or "/", "description": "The service that serves this document."}]
    document: dict[str, Any] = {}
    lock = Lock()  # the pages request it in several threads, and FastAPI returns one dictionary to all

    def openapi() -> dict[str, Any]:
        with lock:
            if not document:
                generated = generate()
                components = generated["components"]
                _, additional = models_json_schema(
                    [(model, "validation") for model in _ADDITIONAL_MODELS], ref_template=_SCHEMA_REF
                )
                components["schemas"] |= additional["$defs"]
                components["securitySchemes"] = SECURITY_SCHEMES
                generated["info"]["description"] = "\n\n".join([DESCRIPTION, *_problem_types()])
                generated["paths"] = {PREFIX + path: methods for path, methods in generated["paths"].items()}
                document.update(generated)
        return document

    return openapi


def _problem_types() -> Iterator[str]:
    """Yield a line for each type of an error response, in the order of their statuses."""
    by_type = {problem_type(cls.title): cls for cls in reversed(list(_subclasses(CinestrataError)))}
    for name, cls in sorted(by_type.items(), key=lambda item: (item[1].status, item[0])):
        yield f"{cls.status} `{name.rpartition(':')[2]}`: {(cls.__doc__ or cls.title).partition(chr(10))[0]}"


def _subclasses(cls: type[CinestrataError]) -> Iterator[type[CinestrataError]]:
    for subclass in cls.__subclasses__():
        if not issubclass(subclass, TaskInterruption):
            yield subclass
            yield from _subclasses(subclass)
