"""Answers with an entity tag: a client that has the current version receives 304 and no body (RFC 9110, 13.1.2)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from fastapi import Request, Response
from pydantic import BaseModel

__all__ = ["conditional_response"]

_HASH_BYTES = 12


def conditional_response(
    request: Request, body: BaseModel | Callable[[], BaseModel], version: str | None = None
) -> Response:
    """Return a body as JSON, or 304 if the client has it.

    Args:
        request: The request; its ``If-None-Match`` holds the tags that the client has.
        body: The body, or a function that creates it; it is not called for a current client if the version is given.
        version: Identifier that changes with the body; None: a digest of the body.
    """
    content = b""
    if version is None:
        content = _encode(body)
        version = hashlib.blake2b(content, digest_size=_HASH_BYTES).hexdigest()
    # The tag is weak, because compression changes the bytes.
    headers = {"ETag": f'W/"{version}"', "Cache-Control": "no-cache"}
    if _matches(request.headers.get("if-none-match", ""), version):
        return Response(status_code=304, headers=headers)
    return Response(content or _encode(body), media_type="application/json", headers=headers)


def _encode(body: BaseModel | Callable[[], BaseModel]) -> bytes:
    model = body if isinstance(body, BaseModel) else body()
    return model.model_dump_json().encode()


def _matches(header: str, version: str) -> bool:
    tags = {tag.strip().removeprefix("W/") for tag in header.split(",")}
    return f'"{version}"' in tags or "*" in tags
