"""Headers of the tus protocol 1.0.0 for resumable uploads (https://tus.io/protocols/resumable-upload).

The server supports the extensions creation, creation-with-upload, termination and expiration. The header
``X-HTTP-Method-Override`` is ignored, because a changed method would evade proxies' checks.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Coroutine, Mapping
from email.utils import format_datetime
from typing import Any

from fastapi import Request, Response

from api.security.route_scopes import ScopedRoute
from service.core.errors import CinestrataError, InvalidInput, PreconditionFailed, UnsupportedMediaType
from service.tasks.uploads.upload_store import Upload

VERSION = "1.0.0"
EXTENSIONS = ("creation", "creation-with-upload", "termination", "expiration")

_CONTENT_TYPE = "application/offset+octet-stream"
_MAX_METADATA_CHARS = 16_384


class UnsupportedVersion(PreconditionFailed):
    """The client uses a different protocol version."""

    title = "Unsupported version"


class InvalidHeader(InvalidInput):
    """A protocol header has an invalid value; the protocol defines status 400."""

    status = 400
    title = "Invalid header"


class TusRoute(ScopedRoute):
    """A route that checks a request's protocol version, and states it in every response."""

    described: Mapping[str, Any] = {
        "parameters": [
            {
                "name": "Tus-Resumable",
                "in": "header",
                "description": "Version of the tus protocol; needed by all requests except OPTIONS.",
                "schema": {"type": "string", "const": VERSION},
            }
        ]
    }

    def permitted_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler for requests with the declared scope."""
        handle = super().permitted_handler()

        async def handle_version(request: Request) -> Response:
            try:
                version = request.headers.get("tus-resumable")
                if request.method != "OPTIONS" and version != VERSION:
                    raise UnsupportedVersion(
                        f"Tus-Resumable: The header must be {VERSION}.", headers={"Tus-Version": VERSION}
                    )
                response = await handle(request)
            except CinestrataError as error:
                error.headers["Tus-Resumable"] = VERSION
                raise
            response.headers["Tus-Resumable"] = VERSION
            return response

        return handle_version


def parse_size(name: str, value: str | None) -> int:
    """Parse the number of bytes in a header.

    Raises:
        InvalidHeader: the header is missing, or not a number.
    """
    if value is None or not (value.isascii() and value.isdecimal()) or len(value) > 16:
        raise InvalidHeader.at(name, "The header must be a number of bytes.", "Send it as decimal digits.")
    return int(value)


def file_name(metadata: str) -> str:
    """Return the file name from the ``Upload-Metadata`` header; empty if it has none.

    Raises:
        InvalidHeader: the header is not a list of keys and Base64 values, or the name is not UTF-8.
    """
    values: dict[str, str] = {}
    for pair in filter(None, map(str.strip, metadata.split(","))):
        key, _, value = pair.partition(" ")
        values[key] = value.strip()
    encoded = values.get("filename") or values.get("name") or ""
    try:
        if len(metadata) > _MAX_METADATA_CHARS or not metadata.isascii():
            raise ValueError
        return base64.b64decode(encoded, validate=True).decode()
    except ValueError:  # includes the errors of Base64 and UTF-8
        raise InvalidHeader.at(
            "Upload-Metadata", "The name of the file is not UTF-8 in Base64.", "Send: filename <Base64>"
        ) from None


def require_content_type(value: str | None) -> None:
    """Check the Content-Type of upload bytes.

    Raises:
        UnsupportedMediaType: it is a different type.
    """
    if (value or "").partition(";")[0].strip().lower() != _CONTENT_TYPE:
        raise UnsupportedMediaType(f"Content-Type: The header must be {_CONTENT_TYPE}.")


def upload_headers(upload: Upload, received: int) -> dict[str, str]:
    """Return the headers that describe an upload's state."""
    expires_at = format_datetime(upload.expires_at, usegmt=True)
    return {"Upload-Offset": str(received), "Upload-Expires": expires_at, "Cache-Control": "no-store"}
