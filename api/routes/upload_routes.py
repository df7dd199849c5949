"""Resumable uploads (tus protocol), and the preview of a task from uploaded files."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Header, Request, Response

from api import openapi, tus_protocol
from api.dependencies import parse_json
from api.request_paths import api_link
from api.request_threads import run_long
from api.security.route_scopes import ScopedRoute, requires
from cinestrata_schemas.uploads import PreviewRequest, UploadPreview
from service.access import audit_log
from service.core import request_limits
from service.core.errors import CinestrataError, TooLarge
from service.tasks.upload_preview import preview_upload
from service.tasks.uploads import upload_store
from service.tasks.uploads.upload_store import Upload, UploadWriter

_BLOCK_BYTES = 1024**2
_IDLE_SECONDS = 60.0  # a silent connection must not lock an upload
_PATH = "/uploads"

router = APIRouter(tags=["uploads"], route_class=ScopedRoute)
_tus_router = APIRouter(prefix=_PATH, route_class=tus_protocol.TusRoute)
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


class RequestTimeout(CinestrataError):
    """The client sent nothing for too long."""

    status = 408
    title = "Request timeout"


@router.post(
    f"{_PATH}/preview",
    operation_id="preview_upload",
    openapi_extra=openapi.PREVIEW_BODY,
    response_model=UploadPreview,
)
@requires("ingest")
async def preview(request: Request) -> UploadPreview:
    """Preview the task that selected files would become: its videos, captions and problems. Nothing is stored.

    Send the path and size of each file, and the content of caption tables and sidecar files. Then upload the files that
    `videos` in the response names, and post these videos to `/tasks` or `/tasks/{task_id}/videos` with
    `upload://<upload ID>` as their `uri`.
    """
    body = await request.body()
    return await run_long(lambda: preview_upload(parse_json(PreviewRequest, body)))


@_tus_router.options("", status_code=204, response_class=Response, operation_id="upload_capabilities")
@requires("ingest")
async def capabilities() -> Response:
    """Return the tus version, its supported extensions and the maximum file size."""
    headers = {
        "Tus-Version": tus_protocol.VERSION,
        "Tus-Extension": ",".join(tus_protocol.EXTENSIONS),
        "Tus-Max-Size": str(request_limits.MAX_VIDEO_BYTES),
    }
    return Response(status_code=204, headers=headers)


@_tus_router.post("", status_code=201, response_class=Response, operation_id="create_upload")
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
    size = tus_protocol.parse_size("Upload-Length", upload_length)
    metadata = upload_metadata or ""
    name = tus_protocol.file_name(metadata)
    has_body = content_type is not None
    if has_body:
        tus_protocol.require_content_type(content_type)
    upload = await run_long(upload_store.create_upload, name, metadata, size)
    received = await _receive(request, upload, 0) if has_body else 0
    headers = tus_protocol.upload_headers(upload, received)
    return Response(
        status_code=201, headers={**headers, "Location": api_link(request, f"{_PATH}/{upload.id}")}
    )


@_tus_router.head("/{upload_id}", response_class=Response, operation_id="get_upload_offset")
@requires("ingest")
def get_upload_offset(upload_id: str) -> Response:
    """Return the number of stored bytes (`Upload-Offset`): an interrupted upload continues there."""
    upload = upload_store.find_upload(upload_id)
    headers = tus_protocol.upload_headers(upload, upload.received)
    headers["Upload-Length"] = str(upload.size)
    if upload.metadata:
        headers["Upload-Metadata"] = upload.metadata
    return Response(headers=headers)


@_tus_router.patch("/{upload_id}", status_code=204, operation_id="append_to_upload")
@requires("ingest")
async def append_to_upload(
    upload_id: str,
    request: Request,
    upload_offset: _UploadOffset = None,
    content_type: _ContentType = None,
) -> Response:
    """Append the request body to an upload at `Upload-Offset`.

    Bytes that arrive before a connection breaks are kept. The status is 409 if a different number of bytes is stored,
    and 423 while another request writes to the upload.
    """
    tus_protocol.require_content_type(content_type)
    offset = tus_protocol.parse_size("Upload-Offset", upload_offset)
    upload = await run_long(upload_store.find_upload, upload_id)
    received = await _receive(request, upload, offset)
    return Response(status_code=204, headers=tus_protocol.upload_headers(upload, received))


@_tus_router.delete("/{upload_id}", status_code=204, operation_id="delete_upload")
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
            raise TooLarge(f"The body is longer than the missing part; the upload has {upload.size} bytes.")
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
        raise RequestTimeout(
            f"Nothing arrived for {_IDLE_SECONDS:.0f} seconds; continue the upload."
        ) from None
    finally:
        # Bytes received before the connection broke are kept; at most one block, so the loop hardly waits.
        if buffer:
            writer.write(bytes(buffer))
