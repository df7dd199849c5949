"""Conversion of errors to ``application/problem+json`` (RFC 9457)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from http import HTTPStatus
from re import Pattern
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute, iter_route_contexts
from starlette.exceptions import HTTPException
from starlette.routing import compile_path

from cinestrata_schemas.problems import Problem, ProblemField
from service.core.errors import CinestrataError, InvalidInput, problem_type

MEDIA_TYPE = "application/problem+json"
FAILURE_KEY = "cinestrata.failure"  # in the scope: the reason of a status of 500 or above, for its log line
_STATIC_FILES = {"GET", "HEAD"}  # of mounted folders, which have no routes
# FastAPI prefixes the location of a field with its source; the problem names only the field.
_FIELD_SOURCES = {"body", "query", "path", "header", "cookie"}
# Errors about the whole body whose messages name Python classes.
_BODY_TYPES = {"missing", "model_type", "model_attributes_type", "dict_type", "list_type"}
# Framework messages about unparsable bodies, with replacements that say how to correct the request.
_PARSER_MESSAGES = {
    "There was an error parsing the body": "The body is not valid JSON: send UTF-8 with a few levels of nesting.",
    "Missing boundary in multipart.": (
        "The Content-Type header has no multipart boundary: let the client set it, as curl's -F "
        "name=@file does."
    ),
    "Invalid multipart data.": "The body is not multipart/form-data: send it as curl's -F name=@file does.",
}


def install_error_handlers(app: FastAPI) -> None:
    """Register handlers for errors of the service and of the framework.

    The handlers are coroutines. Plain functions would run in the thread pool, so a busy server could not refuse a
    request until a thread is free. ``UnexpectedErrorMiddleware`` handles all other exceptions.
    """
    app.exception_handler(CinestrataError)(_handle_service_error)
    app.exception_handler(RequestValidationError)(_handle_validation_error)
    app.exception_handler(HTTPException)(http_problem_response)


def problem_response(request: Request, error: CinestrataError) -> JSONResponse:
    """Convert an error of the service to a response."""
    fields = [
        ProblemField(field=_encodable(e.field), message=_encodable(e.message), hint=_encodable(e.hint))
        for e in error.errors
    ]
    body = _problem(request, error.status, error.title, f"{error.detail} {error.hint}".rstrip())
    body = body.model_copy(update={"errors": fields, "remedy": error.remedy})
    return JSONResponse(body.model_dump(), error.status, {**error.headers}, media_type=MEDIA_TYPE)


def _problem(request: Request, status: int, title: str, detail: str) -> Problem:
    path, detail = _encodable(request.url.path), _encodable(detail)
    return Problem(type=problem_type(title), title=title, status=status, detail=detail, instance=path)


async def _handle_service_error(request: Request, error: CinestrataError) -> JSONResponse:
    if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        request.scope[FAILURE_KEY] = error.detail
    return problem_response(request, error)


async def _handle_validation_error(request: Request, error: RequestValidationError) -> JSONResponse:
    # A generator: only listed errors are described.
    errors = (_describe_error(request, item) for item in error.errors())
    body = getattr(request.scope.get("route"), "body_field", None)
    model = None if body is None else body.field_info.annotation
    return problem_response(request, InvalidInput.from_pydantic(errors, model))


def _describe_error(request: Request, item: Mapping[str, Any]) -> dict[str, Any]:
    """Return a validation error with its field's path, a message and a hint for the sender."""
    location = tuple(item["loc"])
    if item["type"] == "json_invalid":
        position = location[-1] if len(location) > 1 else 0
        message = f"The body is not JSON: {item['ctx']['error']} at character {position}"
        return {**item, "loc": (), "msg": message}
    field = location[1:] if location and location[0] in _FIELD_SOURCES else location
    hint = _parameter_hint(request, item)
    return {**item, "loc": field, "msg": _field_message(request, item, field), "hint": hint}


def _parameter_hint(request: Request, item: Mapping[str, Any]) -> str:
    """Suggest the route's parameter closest to an unknown name."""
    if item["type"] != "extra_forbidden" or item["loc"][:1] != ("query",):
        return ""
    route = request.scope.get("route")
    if not isinstance(route, APIRoute):
        return ""
    parameters = [
        name
        for parameter in route.dependant.query_params
        for name in getattr(parameter.field_info.annotation, "model_fields", {parameter.alias: None})
    ]
    closest = get_close_matches(str(item["loc"][-1])[:100], parameters, n=1)
    if closest:
        return f"Did you mean {closest[0]!r}?"
    return (
        f"Known parameters: {', '.join(sorted(parameters))}."
        if parameters
        else "This resource has no parameters."
    )


def _field_message(request: Request, item: Mapping[str, Any], field: Sequence[str | int]) -> str:
    """Return a field's error message, reworded if it describes framework internals."""
    if item["type"] == "extra_forbidden":
        return "This parameter does not exist"
    if item["type"] == "value_error" and "UploadFile" in item["msg"]:
        return "This field is not a file; send it as multipart/form-data, as curl's -F name=@file does"
    if item["loc"][:1] == ("body",) and not field:
        content_type = request.headers.get("content-type", "")
        if "json" not in content_type:
            sent = f"The Content-Type {content_type!r}" if content_type else "A missing Content-Type"
            return f"{sent} is not supported here; add the header Content-Type: application/json"
        if item["type"] in _BODY_TYPES:
            return "The body is not a JSON object"
    return str(item["msg"])


async def http_problem_response(request: Request, error: HTTPException) -> JSONResponse:
    """Convert a framework error, such as an unknown path or method, to a response."""
    title = HTTPStatus(error.status_code).phrase.capitalize()
    detail = _PARSER_MESSAGES.get(str(error.detail), str(error.detail))
    headers = dict(error.headers or {})
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = ", ".join(allowed_methods(request))
        detail = f"This path does not support {request.method}; it supports {headers['Allow']}."
    if error.status_code == HTTPStatus.NOT_FOUND and detail.capitalize() == title:
        detail = f"There is no resource at {request.url.path}."
    body = _problem(request, error.status_code, title, detail)
    return JSONResponse(body.model_dump(), error.status_code, headers, media_type=MEDIA_TYPE)


def allowed_methods(request: Request) -> list[str]:
    """List the methods of all routes that match a request's path; the framework knows only those of the first."""
    path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    methods = {
        method
        for context in iter_route_contexts(request.app.routes)
        if context.path and context.methods and _pattern(context.path).match(path)
        for method in context.methods
    }
    return sorted(methods or _STATIC_FILES)


@lru_cache(maxsize=512)
def _pattern(path: str) -> Pattern[str]:
    return compile_path(path)[0]


def _encodable(text: str) -> str:
    """Replace lone surrogates of a request, which would fail to encode in the response that reports them."""
    return text.encode("utf-8", "replace").decode("utf-8")
