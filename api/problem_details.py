"""The one place where errors become ``application/problem+json`` (RFC 9457)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.core.errors import CinestrataError, InvalidInput

__all__ = ["MEDIA_TYPE", "Problem", "UnexpectedErrorMiddleware", "install", "problem"]

log = structlog.get_logger(__name__)

MEDIA_TYPE = "application/problem+json"
# Where FastAPI says a value came from; a reader looks for the field itself.
_SOURCES = {"body", "query", "path", "header", "cookie"}
# What the framework says of a body that it cannot even split into parts, and what a reader can do about it.
_UNREADABLE = {
    "There was an error parsing the body": "The body cannot be read as JSON: send UTF-8, nested a few levels deep.",
    "Missing boundary in multipart.": (
        "The body has no parts: leave the Content-Type to your client, as curl's -F name=@file does."
    ),
    "Invalid multipart data.": "The body is no multipart/form-data: send it as curl's -F name=@file does.",
}


class ProblemField(BaseModel):
    """One wrong field and its hint."""

    field: str
    message: str
    hint: str = ""


class Problem(BaseModel):
    """What went wrong, in words."""

    model_config = ConfigDict(title="Problem")

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    instance: str
    errors: list[ProblemField] = []


def install(app: FastAPI) -> None:
    """Map every exception of ours and of the framework; :class:`UnexpectedErrorMiddleware` takes the rest."""
    app.add_exception_handler(CinestrataError, _known)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(HTTPException, _http)


def problem(request: Request, error: CinestrataError) -> JSONResponse:
    """The answer to an error of ours."""
    body = Problem(
        title=error.title,
        status=error.status,
        detail=_text(error.detail),
        instance=_text(request.url.path),
        errors=[
            ProblemField(field=_text(e.field), message=_text(e.message), hint=_text(e.hint))
            for e in error.errors
        ],
    )
    return JSONResponse(body.model_dump(), error.status, {**error.headers}, media_type=MEDIA_TYPE)


class UnexpectedErrorMiddleware:
    """ASGI middleware: an error that nobody foresaw is logged in full, and told without a word of its insides.

    A framework's own handler of last resort stands outside all middleware, where its answer would have no
    security headers and no place in the metrics.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False

        async def noted(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self.app(scope, receive, noted)
        except ClientDisconnect:
            log.info("client_left", path=scope["path"])
        except Exception as error:
            log.error("unexpected_error", path=scope["path"], exc_info=error)
            if started:  # the server cuts the connection, which tells the client that something is missing
                raise
            request = Request(scope, receive)
            await problem(
                request, _InternalError("Something went wrong here, not with your request. It is in the log.")
            )(scope, receive, send)


class _InternalError(CinestrataError):
    status = 500
    title = "Internal error"


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
        shown = location[1:] if location and location[0] in _SOURCES else location
        found.append({**item, "loc": shown, "msg": _in_words(request, item, shown)})
    return problem(request, InvalidInput.from_pydantic(found))


def _in_words(request: Request, wrong: Mapping[str, Any], location: Sequence[str | int]) -> str:
    """What is wrong with a field, where the framework speaks of its own insides."""
    if wrong["type"] == "extra_forbidden":
        return "There is no such parameter here; see how it is written in /openapi.json, or leave it out"
    if wrong["type"] == "value_error" and "UploadFile" in wrong["msg"]:
        return "This is no file; send one as multipart/form-data, as curl's -F name=@file does"
    if wrong["loc"][:1] == ("body",) and not location:
        kind = request.headers.get("content-type", "")
        if "json" not in kind:
            return f"It is sent as {kind or 'nothing that is known'}; add the header Content-Type: application/json"
        return "This is no JSON object"
    return str(wrong["msg"])


def _http(request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, HTTPException):
        raise error
    title = HTTPStatus(error.status_code).phrase
    detail = _UNREADABLE.get(str(error.detail), str(error.detail))
    if error.status_code == HTTPStatus.NOT_FOUND and detail == title:
        detail = f"There is nothing at {request.url.path}; /openapi.json lists what there is."
    body = Problem(
        title=title, status=error.status_code, detail=_text(detail), instance=_text(request.url.path)
    )
    return JSONResponse(
        body.model_dump(), error.status_code, dict(error.headers or {}), media_type=MEDIA_TYPE
    )


def _text(value: str) -> str:
    """What can be encoded: a caller's lone surrogates must not break the answer that complains of them."""
    return value.encode("utf-8", "replace").decode("utf-8")
