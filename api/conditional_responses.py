"""Answers with a validator: a client that has the current version receives 304 and no body (RFC 9110, section 13)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from email.utils import parsedate_to_datetime

from fastapi import Request, Response
from pydantic import BaseModel, RootModel

__all__ = ["conditional_response", "is_current"]

_HASH_BYTES = 12
_Body = BaseModel | Sequence[BaseModel]


def conditional_response(
    request: Request,
    body: _Body | Callable[[], _Body],
    version: str | None = None,
    *,
    entity_tag: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return a body as JSON, or 304 if the client has it.

    Args:
        request: The request; its ``If-None-Match`` holds the tags that the client has.
        body: The body, or a function that creates it; it is not called for a current client if the version is given.
        version: Identifier that changes with the body; None: a digest of the body.
        entity_tag: Strong entity tag in place of a version.
        headers: Further headers of the answer.
    """
    content = b""
    if entity_tag is None:
        if version is None:
            content = _encode(body)
            version = hashlib.blake2b(content, digest_size=_HASH_BYTES).hexdigest()
        entity_tag = f'W/"{version}"'  # weak, because compression changes the bytes
    headers = {**(headers or {}), "ETag": entity_tag, "Cache-Control": "no-cache"}
    if is_current(request, entity_tag):
        return Response(status_code=304, headers=headers)
    return Response(content or _encode(body), media_type="application/json", headers=headers)


def is_current(request: Request, entity_tag: str, last_modified: str | None = None) -> bool:
    """Whether the client of a request has the current version.

    Args:
        request: The request. ``If-Modified-Since`` is ignored if it has ``If-None-Match``, too.
        entity_tag: Header ``ETag`` of the current version; tags are compared weakly.
        last_modified: Header ``Last-Modified`` of the current version; None: only tags decide.
    """
    tags = request.headers.get("if-none-match")
    if tags is not None:
        known = {tag.strip().removeprefix("W/") for tag in tags.split(",")}
        return entity_tag.removeprefix("W/") in known or "*" in known
    since = request.headers.get("if-modified-since")
    if since is None or last_modified is None:
        return False
    try:
        return parsedate_to_datetime(since) >= parsedate_to_datetime(last_modified)
    except (ValueError, TypeError, OverflowError):  # an invalid date, or one without a time zone, is ignored
        return False


def _encode(body: _Body | Callable[[], _Body]) -> bytes:
    value = body() if callable(body) else body
    model = value if isinstance(value, BaseModel) else RootModel[Sequence[BaseModel]].model_construct(value)
    return model.model_dump_json(serialize_as_any=True).encode()
