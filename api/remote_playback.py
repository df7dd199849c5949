"""Play remote videos by forwarding their bytes from the source.

A source's credentials, tokens and addresses stay inside the service, and the pages' content security policy permits no
other host.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from functools import partial

import structlog
from anyio import CancelScope, CapacityLimiter, to_thread
from fastapi import Request
from fastapi.responses import Response, StreamingResponse

from api.conditional_responses import RangeNotSatisfiable, parse_range
from api.request_threads import StreamLimit
from media import MediaError
from media.errors import RangeOutside, SourceOutage
from media.sources.media_source import RemoteStream
from service.core.errors import NotFound, SourceUnavailable
from service.storage.library_files import open_remote_video

log = structlog.get_logger(__name__)

# Separate threads, so that unresponsive sources don't occupy the threads of other requests.
_READERS = CapacityLimiter(16)
# Fewer than the connections to web servers, because paused players hold them.
VIDEOS = StreamLimit("remote videos", "close one of them", most=48, most_of_caller=24)
_PAUSE = 10  # seconds after which a client may try again


async def remote_response(
    request: Request, caller: str, video_id: str, uri: str, media_type: str, headers: dict[str, str]
) -> Response:
    """Return a remote video, or the requested range.

    Raises:
        TooManyRequests: The caller has too many open videos: a paused player holds a connection to the source.
        NotFound: The source no longer has the file, or is no longer allowed.
        RangeNotSatisfiable: The file has no byte in the range.
        SourceUnavailable: The source is currently unreachable.
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
        return await to_thread.run_sync(_open, stack, request, uri, limiter=_READERS)
    except RangeOutside as error:
        raise RangeNotSatisfiable(f"{error.reason}.") from error
    except MediaError as error:
        raise NotFound(f"Video {video_id!r} is searchable, but can't be played: {error.reason}.") from error
    except SourceOutage as error:
        raise SourceUnavailable(error.reason, retry_after=_PAUSE) from error


def _open(stack: ExitStack, request: Request, uri: str) -> RemoteStream:
    return stack.enter_context(open_remote_video(uri, parse_range(request.headers.get("range"))))


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
