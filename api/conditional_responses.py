"""Responses to conditional and byte range requests (RFC 9110, sections 13 and 14), and playback of remote videos.

The bytes of a remote video are forwarded: a source's credentials, tokens and addresses stay inside the service, and the
pages' content security policy permits no other host.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path

import structlog
from anyio import CancelScope, CapacityLimiter, to_thread
from fastapi import Request
from fastapi.responses import FileResponse, Response, StreamingResponse
from pydantic import BaseModel, RootModel

from api.request_threads import StreamLimit
from media import MediaError
from media.errors import RangeOutside, SourceOutage
from media.sources.media_source import ByteRange, RemoteStream
from service.core.errors import CinestrataError, NotFound, SourceUnavailable
from service.storage.library_files import open_remote_video

_HASH_BYTES = 12
_SINGLE_RANGE = re.compile(r"bytes=(\d{1,18})?-(\d{1,18})?")
_Body = BaseModel | Sequence[BaseModel]
# Own threads, so that unresponsive sources don't occupy those of other requests.
_READERS = CapacityLimiter(16)
# Fewer than the connections to web servers, because paused players hold them.
VIDEOS = StreamLimit("remote videos", "close one of them", most=48, most_of_caller=24)
_PAUSE = 10  # seconds after which a client may try again

log = structlog.get_logger(__name__)


class RangeNotSatisfiable(CinestrataError, status=416, title="Range not satisfiable"):
    """The range starts after the end of the file."""


def conditional_response(
    request: Request,
    body: _Body | Callable[[], _Body],
    version: str | None = None,
    *,
    entity_tag: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return a body as JSON, or 304 if the client has it.

    The version is an ID that changes with the body (default: its digest); an entity tag replaces it, and is strong.
    With either, a function that creates the body is called only if the client lacks the version.
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
    """Return whether the client has the current version. Tags are compared weakly, and decide if there are any."""
    tags = request.headers.get("if-none-match")
    if tags is not None:
        client_tags = {tag.strip().removeprefix("W/") for tag in tags.split(",")}
        return entity_tag.removeprefix("W/") in client_tags or "*" in client_tags
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


def range_response(request: Request, path: Path, media_type: str, headers: dict[str, str]) -> Response:
    """Return the file, or the requested range; 304 if the client has the current version.

    A malformed ``Range`` header, or one with several ranges, is ignored and the whole file is sent, as RFC 9110
    (section 14.2) allows. Raises NotFound without a file, and RangeNotSatisfiable if it has no byte in the range.
    """
    try:
        status = os.stat(path)
    except OSError:
        status = None
    if status is None or not stat.S_ISREG(status.st_mode):
        raise NotFound("The file is no longer on disk.")
    response = FileResponse(path, media_type=media_type, headers=headers, stat_result=status)
    entity_tag, last_modified = response.headers["etag"], response.headers["last-modified"]
    if is_current(request, entity_tag, last_modified):
        validators = {"ETag": entity_tag, "Last-Modified": last_modified}
        return Response(status_code=304, headers={**headers, **validators})
    header = request.headers.get("range")
    if header is not None and not _is_satisfiable_range(header, status.st_size):
        request.scope["headers"] = [pair for pair in request.scope["headers"] if pair[0] != b"range"]
    return response


def parse_range(header: str | None) -> ByteRange | None:
    """Parse a ``Range`` header; None unless it is a valid single range."""
    match = _SINGLE_RANGE.fullmatch((header or "").strip().replace(" ", ""))
    if match is None or not any(match.groups()):
        return None
    first, last = (int(group) if group else None for group in match.groups())
    if first is not None and last is not None and first > last:
        return None
    return ByteRange(first, last)


def _is_satisfiable_range(header: str, size: int) -> bool:
    """Return whether the header is a valid single range; raises RangeNotSatisfiable if it is outside the file."""
    part = parse_range(header)
    if part is None:
        return False
    if (
        (part.first is not None and part.first >= size)
        or (part.first is None and part.last == 0)
        or size == 0
    ):
        raise RangeNotSatisfiable(
            f"The file has {size} bytes; none is in the range {header[:100]}.",
            headers={"Content-Range": f"bytes */{size}"},
        )
    return True


async def remote_response(
    request: Request, caller: str, video_id: str, uri: str, media_type: str, headers: dict[str, str]
) -> Response:
    """Return a remote video, or the requested range; raise RangeNotSatisfiable, SourceUnavailable, NotFound.

    Raises TooManyRequests if the caller has too many open videos: a paused player holds a connection to the source.
    """
    VIDEOS.require(caller)
    stack = ExitStack()
    stack.enter_context(VIDEOS.opened(caller))
    try:
        stream = await _open_stream(stack, request, uri, video_id)
    except BaseException:
        stack.close()
        raise
    headers = {**headers, "Accept-Ranges": "bytes"}
    if stream.length is not None:
        headers["Content-Length"] = str(stream.length)
    if stream.is_partial and stream.length is not None:
        last, total = stream.start + stream.length - 1, "*" if stream.total is None else stream.total
        headers["Content-Range"] = f"bytes {stream.start}-{last}/{total}"
    status = 206 if stream.is_partial else 200
    if request.method == "HEAD":
        await to_thread.run_sync(stack.close, limiter=_READERS)
        return Response(status_code=status, media_type=media_type, headers=headers)
    return StreamingResponse(_body(stream, stack, video_id), status, headers, media_type)


async def _open_stream(stack: ExitStack, request: Request, uri: str, video_id: str) -> RemoteStream:
    try:
        part = parse_range(request.headers.get("range"))
        opened = partial(stack.enter_context, open_remote_video(uri, part))
        return await to_thread.run_sync(opened, limiter=_READERS)
    except RangeOutside as error:
        raise RangeNotSatisfiable(f"{error.reason}.") from error
    except MediaError as error:
        raise NotFound(f"Video {video_id!r} is searchable, but can't be played: {error.reason}.") from error
    except SourceOutage as error:
        raise SourceUnavailable(error.reason, retry_after=_PAUSE) from error


async def _body(stream: RemoteStream, stack: ExitStack, video_id: str) -> AsyncIterator[bytes]:
    chunks: Iterator[bytes] = iter(stream.chunks)
    read = partial(next, chunks, None)
    try:
        while (chunk := await to_thread.run_sync(read, limiter=_READERS)) is not None:
            yield chunk
    except (SourceOutage, MediaError) as error:  # the status has been sent: the client sees a short body
        log.warning("playback_interrupted", video_id=video_id, error=error.reason)
        raise
    finally:
        with CancelScope(shield=True):
            await to_thread.run_sync(stack.close, limiter=_READERS)
