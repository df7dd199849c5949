"""Resumable uploads with the tus protocol 1.0.0 (https://tus.io/protocols/resumable-upload), and their preview.

The server supports the extensions creation, creation-with-upload, termination and expiration. The header
``X-HTTP-Method-Override`` is ignored, because a changed method would evade proxies' checks.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Coroutine, Mapping
from email.utils import format_datetime
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request, Response

from api import openapi
from api.dependencies import parse_json
from api.request_middleware import api_link
from api.request_threads import run_long
from api.security.route_scopes import ScopedRoute, requires
from cinestrata_schemas.tasks import PreviewRequest, UploadPreview
from service.access import audit_log
from service.core import errors, request_limits
from service.tasks import upload_preview, upload_store
from service.tasks.upload_store import Upload, UploadWriter

VERSION = "1.0.0"
EXTENSIONS = ("creation", "creation-with-upload", "termination", "expiration")

_CONTENT_TYPE = "application/offset+octet-stream"
_MAX_METADATA_CHARS = 16_384


class UnsupportedVersion(errors.PreconditionFailed, title="Unsupported version"):
    """The client uses a different protocol version."""


class InvalidHeader(errors.InvalidInput, status=400, title="Invalid header"):
    """A protocol header has an invalid value; the protocol defines status 400."""


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
            except errors.CinestrataError as error:
                error.headers["Tus-Resumable"] = VERSION
                raise
            response.headers["Tus-Resumable"] = VERSION
            return response

        return handle_version


def parse_size(name: str, value: str | None) -> int:
    """Parse the number of bytes in a header; raises InvalidHeader."""
    if value is None or not (value.isascii() and value.isdecimal()) or len(value) > 16:
        raise InvalidHeader.at(name, "The header must be a number of bytes.", "Send it as decimal digits.")
    return int(value)


def file_name(metadata: str) -> str:
    """Return the file name from the ``Upload-Metadata`` header; empty if it has none. Raises InvalidHeader."""
    if len(metadata) > _MAX_METADATA_CHARS:
        raise InvalidHeader.at("Upload-Metadata", f"Send at most {_MAX_METADATA_CHARS} characters.")
    values: dict[str, str] = {}
    for pair in filter(None, map(str.strip, metadata.split(","))):
        key, _, value = pair.partition(" ")
        values[key] = value.strip()
    encoded = values.get("filename") or values.get("name") or ""
    try:
        if not metadata.isascii():
            raise ValueError
        return base64.b64decode(encoded, validate=True).decode()
    except ValueError:  # includes the errors of Base64 and UTF-8
        raise InvalidHeader.at(
            "Upload-Metadata", "The name of the file is not UTF-8 in Base64.", "Send: filename <Base64>"
        ) from None


def require_content_type(value: str | None) -> None:
    """Check the Content-Type of upload bytes; raises UnsupportedMediaType."""
    if (value or "").partition(";")[0].strip().lower() != _CONTENT_TYPE:
        raise errors.UnsupportedMediaType(f"Content-Type: The header must be {_CONTENT_TYPE}.")


def upload_headers(upload: Upload, received: int) -> dict[str, str]:
    """Return the headers that describe an upload's state."""
    expires_at = format_datetime(upload.expires_at, usegmt=True)
    return {"Upload-Offset": str(received), "Upload-Expires": expires_at, "Cache-Control": "no-store"}


_BLOCK_BYTES = 1024**2
_IDLE_SECONDS = 60.0  # a silent connection must not lock an upload
_PATH = "/uploads"

router = APIRouter(tags=["uploads"], route_class=ScopedRoute)
_tus_router = APIRouter(prefix=_PATH, route_class=TusRoute)
_ContentType = Annotated[
    str | None, Header(alias="Content-Type", description="`application/offset+octet-stream`.")
]
_UploadLength = Annotated[str | None, Header(alias="Upload-Length", description="Size of the file in bytes.")]
_UploadMetadata = Annotated[
    str | None,
    Header(
        alias="Upload-Metadata",
        description="Pairs of a key and a Base64 value; `filename` is the file's name.",
    ),
]
_UploadOffset = Annotated[
    str | None, Header(alias="Upload-Offset", description="Number of bytes that the service has received.")
]


class RequestTimeout(errors.CinestrataError, status=408, title="Request timeout"):
    """The client sent nothing for too long."""


@router.post(f"{_PATH}/preview", openapi_extra=openapi.PREVIEW_BODY, response_model=UploadPreview)
@requires("ingest")
async def preview_upload(request: Request) -> UploadPreview:
    """Preview the task that selected files would become: its videos, captions and problems. Nothing is stored.

    Send the path and size of each file, and the content of caption tables and sidecar files. Then upload the files that
    `videos` in the response names, and post these videos to `/tasks` or `/tasks/{task_id}/videos` with
    `upload://<upload ID>` as their `uri`.
    """
    body = await request.body()
    return await run_long(lambda: upload_preview.preview_upload(parse_json(PreviewRequest, body)))


@_tus_router.options("", status_code=204, response_class=Response)
@requires("ingest")
async def upload_capabilities() -> Response:
    """Return the tus version, its supported extensions and the maximum file size."""
    headers = {
        "Tus-Version": VERSION,
        "Tus-Extension": ",".join(EXTENSIONS),
        "Tus-Max-Size": str(request_limits.MAX_VIDEO_BYTES),
    }
    return Response(status_code=204, headers=headers)


@_tus_router.post("", status_code=201, response_class=Response)
@requires("ingest")
async def create_upload(
    request: Request,
    upload_length: _UploadLength = None,
    upload_metadata: _UploadMetadata = None,
    content_type: _ContentType = None,
) -> Response:
    """Create an upload for one file (tus extension creation). A request body holds the file's first bytes.

    `Upload-Length` is the file's size in bytes, and `filename` in `Upload-Metadata` its name. `Location` in the
    response is the address of the upload. Uploads that receive nothing for three days are deleted.
    """
    size = parse_size("Upload-Length", upload_length)
    metadata = upload_metadata or ""
    name = file_name(metadata)
    has_body = content_type is not None
    if has_body:
        require_content_type(content_type)
    upload = await run_long(upload_store.create_upload, name, metadata, size)
    received = await _receive(request, upload, 0) if has_body else 0
    headers = upload_headers(upload, received)
    return Response(
        status_code=201, headers={**headers, "Location": api_link(request, f"{_PATH}/{upload.id}")}
    )


@_tus_router.head("/{upload_id}", response_class=Response)
@requires("ingest")
def get_upload_offset(upload_id: str) -> Response:
    """Return the number of stored bytes (`Upload-Offset`): an interrupted upload continues there."""
    upload = upload_store.find_upload(upload_id)
    headers = upload_headers(upload, upload.received)
    headers["Upload-Length"] = str(upload.size)
    if upload.metadata:
        headers["Upload-Metadata"] = upload.metadata
    return Response(headers=headers)


@_tus_router.patch("/{upload_id}", status_code=204)
@requires("ingest")
async def append_to_upload(
    upload_id: str, request: Request, upload_offset: _UploadOffset = None, content_type: _ContentType = None
) -> Response:
    """Append the request body to an upload at `Upload-Offset`.

    Bytes that arrive before a connection breaks are kept. The status is 409 if a different number of bytes is stored,
    and 423 while another request writes to the upload.
    """
    require_content_type(content_type)
    offset = parse_size("Upload-Offset", upload_offset)
    upload = await run_long(upload_store.find_upload, upload_id)
    received = await _receive(request, upload, offset)
    return Response(status_code=204, headers=upload_headers(upload, received))


@_tus_router.delete("/{upload_id}", status_code=204)
@requires("ingest")
def delete_upload(upload_id: str) -> Response:
    """Delete an upload and its bytes (tus extension termination)."""
    upload = upload_store.find_upload(upload_id)
    upload_store.delete_upload(upload)
    audit_log.record_event("upload.delete", upload.id, {"name": upload.name})
    return Response(status_code=204)


router.include_router(_tus_router)


async def _receive(request: Request, upload: Upload, offset: int) -> int:
    """Write a request body to an upload, and return the number of stored bytes."""
    writer = await run_long(UploadWriter, upload, offset)
    try:
        length = request.headers.get("content-length", "0")
        if length.isdecimal() and offset + int(length) > upload.size:
            raise errors.TooLarge(
                f"Content-Length: The body is longer than the missing part; the upload has {upload.size} bytes."
            )
        await _write_body(request, writer)
    except BaseException:
        writer.interrupt()  # without await, which is refused in a cancelled task
        raise
    await run_long(writer.finish)
    return writer.offset


async def _write_body(request: Request, writer: UploadWriter) -> None:
    buffer = bytearray()
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_IDLE_SECONDS) as idle:
            async for block in request.stream():
                idle.reschedule(loop.time() + _IDLE_SECONDS)
                buffer += block
                if len(buffer) >= _BLOCK_BYTES:
                    data = bytes(buffer)
                    buffer.clear()
                    idle.reschedule(None)
                    await run_long(writer.write, data)
                    idle.reschedule(loop.time() + _IDLE_SECONDS)
    except TimeoutError:
        raise RequestTimeout(f"Nothing arrived for {_IDLE_SECONDS:.0f} s; continue the upload.") from None
    finally:
        # Bytes received before the connection broke are kept; at most one block, so the loop hardly waits.
        if buffer:
            writer.write(bytes(buffer))
