"""The complete OpenAPI document: paths below ``/v1``, servers, security schemes, headers, error types and examples.

FastAPI describes parameters and bodies from route signatures. The rest follows from rules that hold for every route, so
a new route needs no declarations of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from pydantic.json_schema import models_json_schema

from api import tus_protocol
from api.openapi import ADDITIONAL_MODELS, RESPONSE_HEADERS, SCHEMA_REF, problem_headers, response_headers
from api.problem_details import MEDIA_TYPE
from api.request_paths import PREFIX
from api.schema_examples import complete_example
from api.security.authentication import SESSION_COOKIE
from api.security.route_scopes import RouteScope, declared_scope
from cinestrata_schemas.problems import Problem
from cinestrata_schemas.webhooks import EVENT_FACTS
from service.core import request_ids
from service.core.errors import CinestrataError, InvalidInput, TaskInterruption

_Json = dict[str, Any]

_DESCRIPTION = """\
Text-to-video search that keeps learning and never re-indexes.

Every path also exists without the prefix `/v1`. Errors are `application/problem+json`, and `type` tells them apart.
Every response has an `X-Request-ID` header, and the security headers of web pages."""
_SECURITY_SCHEMES: dict[str, dict[str, str]] = {
    "api_key": {
        "type": "apiKey",
        "in": "header",
        "name": "X-API-Key",
        "description": "Scopes: `search` reads, `ingest` also changes videos and domains, `admin` permits all.",
    },
    "bearer": {"type": "http", "scheme": "bearer", "description": "The same API key as a bearer token."},
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": SESSION_COOKIE,
        "description": "Session of a browser signed in at `/login`; on HTTPS, the name starts with `__Host-`.",
    },
}
_TAGS = {
    "search": "Search by text, clip or image, and feedback on results.",
    "tasks": "Tasks that learn a domain of videos, or append videos to a learned domain.",
    "videos": "Videos, their captions and metadata, and their files.",
    "uploads": "Resumable uploads with the tus protocol 1.0.0.",
    "syncs": "Domains that follow a folder of videos.",
    "measures": "Recall, forgetting, shards and releases.",
    "access": "API keys, users, browser sessions and the audit log.",
    "alerts": "Measures that have crossed a threshold.",
    "webhooks": "Signed messages about events.",
    "operation": "Maintenance, snapshots, and the state of processes and queues.",
    "health": "Health checks and metrics.",
}
_REQUEST_ID = {
    "name": request_ids.HEADER,
    "in": "header",
    "description": "ID of the request, 1 to 64 letters, digits and `._:-`; default: a random one.",
    "schema": {"type": "string"},
    "example": "7cebaf9dec42e87a9bad",
}
_TUS_VERSION = {
    "name": "Tus-Resumable",
    "in": "header",
    "description": "Version of the tus protocol.",
    "required": True,
    "schema": {"type": "string", "const": tus_protocol.VERSION},
}
# Error statuses of operations, in addition to those that _problem_statuses derives.
_STATUSES: Mapping[str, tuple[int, ...]] = {
    "search": (410, 429),
    "search_many": (410, 429),
    "search_by_clip": (429,),
    "describe_video": (409, 429),
    "find_similar": (409,),
    "explain_result": (429,),
    "get_query_report": (429,),
    "create_task": (409,),
    "append_videos": (409,),
    "cancel_task": (409,),
    "retry_task": (409,),
    "relearn_task": (409,),
    "delete_task": (409,),
    "serve_release": (409,),
    "edit_video": (409, 412),
    "get_thumbnail": (416,),
    "stream_video": (416,),
    "download_snapshot": (416,),
    "upload_capabilities": (),
    "create_upload": (400, 408, 412, 415),
    "append_to_upload": (400, 408, 409, 412, 415, 423),
    "get_upload_offset": (412,),
    "delete_upload": (412, 423),
}
# Media types of responses that no model describes; None: the response has no body.
_MEDIA_TYPES: Mapping[str, str | None] = {
    "get_thumbnail": "image/jpeg",
    "stream_video": "video/mp4",
    "download_snapshot": "application/x-tar",
    "metrics": "text/plain",
    "create_upload": None,
    "get_upload_offset": None,
}
# Descriptions of path and header parameters that no signature describes.
_PARAMETERS: Mapping[str, str] = {
    "alert_id": "ID of the alert.",
    "content-type": "`application/offset+octet-stream`.",
    "delivery_id": "ID of the message.",
    "feedback_id": "ID of the feedback.",
    "idempotency-key": "Key of 1 to 255 characters. Repeating a request with its key returns the task that it created.",
    "key_id": "Name or ID of the key, not the key itself.",
    "last-event-id": "ID of the last event received; the stream continues after it.",
    "name": "Name of the snapshot.",
    "release_id": "ID of the release, or `newest`.",
    "session_id": "ID of the session.",
    "task_id": "ID of the task.",
    "upload-length": "Size of the file in bytes.",
    "upload-metadata": "Comma-separated pairs of a key and a Base64 value; `filename` is the file's name.",
    "upload-offset": "Number of bytes that the service has received.",
    "upload_id": "ID of the upload: the last part of its `Location`.",
    "user_id": "Name or ID of the user.",
    "video_id": "ID of the video.",
    "webhook_id": "ID of the webhook.",
}
# Descriptions of responses that no model describes.
_OUTCOMES: Mapping[str, str] = {
    "200": "Success.",
    "201": "The resource was created.",
    "202": "The request was accepted.",
    "204": "Done; the response has no body.",
}
_BINARY = {"type": "string", "contentMediaType": "application/octet-stream"}


def complete_schema(app: FastAPI) -> Callable[[], _Json]:
    """Return a replacement for ``app.openapi`` that returns the complete document."""
    generate = app.openapi
    document: _Json = {}

    def openapi() -> _Json:
        if not document:
            document.update(_complete(generate(), _scopes(app), app.state.settings.root_path))
        return document

    return openapi


def problem_classes() -> dict[int, list[type[CinestrataError]]]:
    """Return the error classes of responses by status; one class for each problem type."""
    by_type = {cls.problem_type(): cls for cls in reversed(list(_subclasses(CinestrataError)))}
    found: dict[int, list[type[CinestrataError]]] = {}
    for cls in sorted(by_type.values(), key=lambda cls: (cls.status, cls.title)):
        found.setdefault(cls.status, []).append(cls)
    return found


def _subclasses(cls: type[CinestrataError]) -> Iterator[type[CinestrataError]]:
    for subclass in cls.__subclasses__():
        if not issubclass(subclass, TaskInterruption):
            yield subclass
            yield from _subclasses(subclass)


def _scopes(app: FastAPI) -> dict[str, RouteScope]:
    """Return the required scopes by operation ID."""
    return {
        str(context.operation_id): scope
        for context in iter_route_contexts(app.routes)
        if (scope := declared_scope(context.endpoint)) is not None
    }


def _complete(generated: _Json, scopes: Mapping[str, RouteScope], root: str) -> _Json:
    document = {**generated, "paths": {}}
    document["info"] = {**generated["info"], "description": _DESCRIPTION}
    document["servers"] = [{"url": root or "/", "description": "The service that serves this document."}]
    components = document.setdefault("components", {})
    _, additional = models_json_schema(
        [(model, "validation") for model in ADDITIONAL_MODELS], ref_template=SCHEMA_REF
    )
    components["schemas"] = {**components.get("schemas", {}), **additional["$defs"]}
    components["securitySchemes"] = _SECURITY_SCHEMES
    components["headers"] = RESPONSE_HEADERS
    components["responses"] = {f"Problem{status}": _problem(status) for status in problem_classes()}
    used: set[str] = set()
    for path, operations in generated["paths"].items():
        document["paths"][f"{PREFIX}{path}"] = operations
        for method, operation in operations.items():
            _complete_operation(path, method, operation, scopes[operation["operationId"]])
            _describe_responses(operation, components["schemas"])
            _complete_examples(operation, components["schemas"])
            used.update(operation["tags"])
    document["webhooks"] = {event: {"post": _message(event)} for event in EVENT_FACTS}
    ordered = [*(tag for tag in _TAGS if tag in used), *sorted(used - _TAGS.keys())]
    document["tags"] = [{"name": tag, "description": _TAGS.get(tag, "")} for tag in ordered]
    return document


def _complete_operation(path: str, method: str, operation: _Json, scope: RouteScope) -> None:
    name = operation["operationId"]
    paragraphs = [" ".join(text.split()) for text in operation["description"].split("\n\n")]
    operation["description"] = "\n\n".join(paragraphs)
    operation["summary"] = paragraphs[0].partition(". ")[0].removesuffix(".")
    is_public = scope == "public"
    # Since OpenAPI 3.1, the requirement for any scheme can list scopes.
    operation["security"] = [] if is_public else [{scheme: [scope]} for scheme in _SECURITY_SCHEMES]
    operation["x-required-scope"] = scope
    operation.setdefault("parameters", []).append(_REQUEST_ID)
    for parameter in operation["parameters"]:
        if "description" not in parameter:
            parameter["description"] = _PARAMETERS[parameter["name"].lower()]
        if parameter["in"] == "header" and parameter is not _REQUEST_ID:  # FastAPI writes them in lower case
            parameter["name"] = parameter["name"].title().replace("-Id", "-ID")
    if _is_tus(name) and method != "options":
        operation["parameters"].insert(0, _TUS_VERSION)
    described = operation["responses"]
    responses = {status: response for status, response in described.items() if status[0] in "23"}
    for status, response in responses.items():
        _complete_response(name, status, response)
    for number in _problem_statuses(path, method, operation, is_public):
        responses[str(number)] = _problem_response(name, number, described.get(str(number), {}))
    for status, response in described.items():
        responses.setdefault(status, response)
    operation["responses"] = responses


def _is_tus(name: str) -> bool:
    return "Tus-Resumable" in response_headers(name, "200")


def _problem_response(name: str, status: int, described: _Json) -> _Json:
    """Describe an error response of an operation; the operation's own description takes precedence."""
    is_tus = _is_tus(name)
    if not described and not is_tus:
        return {"$ref": f"#/components/responses/Problem{status}"}
    response = {**_problem(status), **described}
    if MEDIA_TYPE in response["content"]:
        response["content"] = _problem(status)["content"]
    names = [*problem_headers(status), *(["Tus-Resumable"] if is_tus else [])]
    response["headers"] = {header: {"$ref": f"#/components/headers/{header}"} for header in names}
    return response


def _problem_statuses(path: str, method: str, operation: _Json, is_public: bool) -> list[int]:
    statuses = {403, 422, 500, *_STATUSES.get(operation["operationId"], ())}
    if not is_public:
        statuses.add(401)
    if "{" in path:
        statuses.add(404)
    if "requestBody" in operation or method in ("post", "patch"):
        statuses.update((400, 413, 415))
    if path != "/livez":
        statuses.add(503)
    return sorted(statuses)


def _complete_response(name: str, status: str, response: _Json) -> None:
    headers = response_headers(name, status)
    response["headers"] = {header: {"$ref": f"#/components/headers/{header}"} for header in headers}
    if status in ("204", "304"):
        response.pop("content", None)
        return
    if name in _MEDIA_TYPES:
        media_type = _MEDIA_TYPES[name]
        response.pop("content", None)
        if media_type is not None:
            schema = {"type": "string"} if media_type.startswith("text/") else _BINARY
            response["content"] = {media_type: {"schema": schema}}


def _describe_responses(operation: _Json, schemas: _Json) -> None:
    """Describe successful responses with their models' first lines."""
    for status, response in operation["responses"].items():
        if response.get("description") != "Successful Response":
            continue
        schema = response.get("content", {}).get("application/json", {}).get("schema", {})
        summary = schemas.get(_model(schema), {}).get("description", "").partition("\n")[0]
        media_type = _MEDIA_TYPES.get(operation["operationId"])
        if status == "200" and media_type and not media_type.startswith("text/"):
            summary = "The file."
        if summary and "items" in schema:
            summary = f"A list. Each entry is {summary[0].lower()}{summary[1:]}"
        response["description"] = summary or _OUTCOMES[status]


def _model(schema: _Json) -> str:
    """Return a schema's model name, or that of a list's items; empty if there is none."""
    name: str = schema.get("items", schema).get("$ref", "").rpartition("/")[2]
    return name


def _message(event: str) -> _Json:
    """Describe the request that the service sends to an endpoint for an event."""
    headers = {
        "webhook-id": "ID of the message, the same in all attempts.",
        "webhook-timestamp": "Time of the attempt in seconds since 1970.",
        "webhook-signature": "Signatures over ID, timestamp and body, as specified by Standard Webhooks.",
    }
    facts = EVENT_FACTS[event]
    return {
        "operationId": f"receive_{event.replace('.', '_')}",
        "summary": f"Event {event}",
        "tags": ["webhooks"],
        "security": [],
        "parameters": [
            {
                "name": name,
                "in": "header",
                "required": True,
                "description": text,
                "schema": {"type": "string"},
            }
            for name, text in headers.items()
        ],
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": {
                        "type": "object",
                        "required": ["type", "timestamp", "data"],
                        "properties": {
                            "type": {"const": event},
                            "timestamp": {
                                "type": "string",
                                "format": "date-time",
                                "description": "Time of the event.",
                            },
                            "data": {"$ref": SCHEMA_REF.format(model=facts.__name__)},
                        },
                    }
                }
            },
        },
        "responses": {
            "2XX": {"description": "The message is accepted."},
            "410": {"description": "The endpoint is gone: the service disables the webhook."},
            "default": {"description": "The message is sent again later."},
        },
    }


def _complete_examples(operation: _Json, schemas: _Json) -> None:
    name = operation["operationId"]
    requested, recorded = _examples("request_examples.json"), _examples("response_examples.json")
    for media_type, example in requested.get(name, {}).items():
        operation["requestBody"]["content"][media_type]["example"] = example
    for status, response in operation["responses"].items():
        for media_type, content in response.get("content", {}).items():
            if media_type == MEDIA_TYPE:
                continue
            if media_type == "application/json":
                schema = content.get("schema", {})
                key = _model(schema) or name
                known = [recorded[key]] if key in recorded and status[0] == "2" else []
                if "items" in schema and known:
                    known = [known]
                content["example"] = complete_example(schema, schemas, *known)
            elif name in recorded:
                content["example"] = recorded[name]


def _problem(status: int) -> _Json:
    classes = problem_classes()[status]
    return {
        "description": " ".join(f"`{cls.problem_type()}`: {_summary(cls)}" for cls in classes),
        "headers": {header: {"$ref": f"#/components/headers/{header}"} for header in problem_headers(status)},
        "content": {
            MEDIA_TYPE: {
                "schema": {"$ref": SCHEMA_REF.format(model=Problem.__name__)},
                "examples": {
                    cls.problem_type().rpartition(":")[2]: {"summary": _summary(cls), "value": _example(cls)}
                    for cls in classes
                },
            }
        },
    }


def _summary(cls: type[CinestrataError]) -> str:
    return (cls.__doc__ or cls.title).partition("\n")[0]


def _example(cls: type[CinestrataError]) -> _Json:
    error = InvalidInput.at("limit", "0 is below the minimum 1.", "Send at least 1.")
    problem = Problem(
        type=cls.problem_type(),
        title=cls.title,
        status=cls.status,
        detail=error.detail if cls is InvalidInput else _summary(cls),
        instance=f"{PREFIX}/tasks",
        errors=[vars(field) for field in error.errors] if cls is InvalidInput else [],  # type: ignore[misc]
    )
    return problem.model_dump()


@cache
def _examples(name: str) -> Mapping[str, Any]:
    """Load request bodies by operation ID, or responses from a small library by model or operation ID."""
    examples: _Json = json.loads((files("api") / name).read_text(encoding="utf-8"))
    return examples
