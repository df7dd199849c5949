"""The one place where errors become ``application/problem+json`` (RFC 9457)."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException

from service.errors import CinestrataError, InvalidInput

__all__ = ["RESPONSES", "Problem", "install", "problem"]

log = structlog.get_logger(__name__)

MEDIA_TYPE = "application/problem+json"
# Where FastAPI says a value came from; a reader looks for the field itself.
_SOURCES = {"body", "query", "path", "header", "cookie"}


class WrongField(BaseModel):
    """One wrong field and its mend."""

    field: str
    message: str
    mend: str = ""


class Problem(BaseModel):
    """What went wrong, in words."""

    model_config = ConfigDict(title="Problem")

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    instance: str
    errors: list[WrongField] = []


# For OpenAPI: every operation can answer so.
RESPONSES: dict[int | str, dict[str, Any]] = {
    "4XX": {
        "description": "The request was refused.",
        "content": {MEDIA_TYPE: {"schema": Problem.model_json_schema()}},
    },
    "5XX": {
        "description": "Try again later.",
        "content": {MEDIA_TYPE: {"schema": Problem.model_json_schema()}},
    },
}


def install(app: FastAPI) -> None:
    """Map every exception that can leave a route."""
    app.add_exception_handler(CinestrataError, _known)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unexpected)


def problem(request: Request, error: CinestrataError) -> JSONResponse:
    """The answer to an error of ours."""
    body = Problem(
        title=error.title,
        status=error.status,
        detail=_text(error.detail),
        instance=_text(request.url.path),
        errors=[
            WrongField(field=_text(e.field), message=_text(e.message), mend=_text(e.mend))
            for e in error.errors
        ],
    )
    return JSONResponse(body.model_dump(), error.status, {**error.headers}, media_type=MEDIA_TYPE)


def _known(request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, CinestrataError):
        raise error
    if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        log.warning("request_failed", path=request.url.path, error=error.detail)
    return problem(request, error)


def _validation(request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, RequestValidationError):
        raise error
    found = []
    for item in error.errors():
        location = tuple(item["loc"])
        if item["type"] == "json_invalid":
            at = location[-1] if len(location) > 1 else 0
            found.append(
                {**item, "loc": (), "msg": f"The body is not JSON: {item['ctx']['error']} at character {at}"}
            )
            continue
        found.append({**item, "loc": location[1:] if location and location[0] in _SOURCES else location})
    return problem(request, InvalidInput.from_pydantic(found))


def _http(request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, HTTPException):
        raise error
    title = HTTPStatus(error.status_code).phrase
    detail = str(error.detail)
    if error.status_code == HTTPStatus.NOT_FOUND and detail == title:
        detail = f"There is nothing at {request.url.path}; /docs lists what there is."
    body = Problem(
        title=title, status=error.status_code, detail=_text(detail), instance=_text(request.url.path)
    )
    return JSONResponse(
        body.model_dump(), error.status_code, dict(error.headers or {}), media_type=MEDIA_TYPE
    )


def _unexpected(request: Request, error: Exception) -> JSONResponse:
    log.error("unexpected_error", path=request.url.path, exc_info=error)
    body = Problem(
        title="Internal error",
        status=500,
        detail="Something went wrong here, not with your request. It is in the log.",
        instance=_text(request.url.path),
    )
    return JSONResponse(body.model_dump(), 500, media_type=MEDIA_TYPE)


def _text(value: str) -> str:
    """What can be encoded: a caller's lone surrogates must not break the answer that complains of them."""
    return value.encode("utf-8", "replace").decode("utf-8")
