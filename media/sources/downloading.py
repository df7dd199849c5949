"""Download of remote files into the cache, with limits on size and time and repeated attempts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from media.errors import InconsistentFile, MediaError, SourceOutage
from media.sources.media_source import MediaSource, RemoteStream
from media.sources.source_cache import CachedFile, SourceCache
from media.sources.source_uris import SourceUri

_RESERVED_STEP = 64 * 1024**2  # bytes reserved at a time for a file of unknown size


@dataclass(frozen=True)
class DownloadLimits:
    """Limits of one download.

    Attributes:
        max_bytes: Maximum size of the file.
        seconds: Maximum time of all attempts. A worker without progress for 15 minutes loses its lease.
        attempts: Maximum number of attempts.
        pause: Seconds before the second attempt; each further pause is twice as long.
        max_pause: Maximum seconds before an attempt, also if the source asks for more.
    """

    max_bytes: int
    seconds: float = 600.0
    attempts: int = 4
    pause: float = 1.0
    max_pause: float = 30.0


@contextmanager
def download_file(
    source: MediaSource,
    uri: SourceUri,
    cache: SourceCache,
    limits: DownloadLimits,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Path]:
    """Download a remote file into the cache, and remove it at the end of the ``with`` block.

    Args:
        cache: Cache that receives the file.
        sleep: Called with the seconds of each pause.

    Raises:
        MediaError: The file does not exist, is too large, arrives too slowly, or ends early in every attempt.
        SourceOutage: The source cannot be reached in any attempt.
        OSError: The cache cannot be written.
    """
    deadline = time.monotonic() + limits.seconds
    with cache.file() as file:
        for attempt in range(1, limits.attempts + 1):
            try:
                with source.open(uri) as stream:
                    _receive(stream, uri, file, limits, deadline)
                break
            except (SourceOutage, InconsistentFile) as error:
                pause = limits.pause * 2 ** (attempt - 1)
                if isinstance(error, SourceOutage) and error.retry_after is not None:
                    pause = max(pause, error.retry_after)
                is_late = time.monotonic() + pause > deadline
                if attempt == limits.attempts or pause > limits.max_pause or is_late:
                    raise
                sleep(pause)
        yield file.path


def _receive(
    stream: RemoteStream, uri: SourceUri, file: CachedFile, limits: DownloadLimits, deadline: float
) -> None:
    if stream.total is not None and stream.total > limits.max_bytes:
        raise _too_large(uri, limits)
    reserved = stream.total if stream.total is not None else 0
    file.reserve(reserved)
    file.stream.seek(0)
    received = 0
    for chunk in stream.chunks:
        received += len(chunk)
        if received > limits.max_bytes:
            raise _too_large(uri, limits)
        if time.monotonic() > deadline:
            raise MediaError(
                f"{uri.shown} takes more than {limits.seconds:.0f} s to download: {received} bytes arrived; "
                "shorten it, or copy it to a faster source"
            )
        if received > reserved:
            reserved = min(received + _RESERVED_STEP, limits.max_bytes)
            file.reserve(reserved)
        file.stream.write(chunk)
    if stream.length is not None and received != stream.length:
        raise InconsistentFile(f"{uri.shown} has {received} bytes instead of the announced {stream.length}")
    file.stream.flush()
    file.stream.truncate(received)


def _too_large(uri: SourceUri, limits: DownloadLimits) -> MediaError:
    return MediaError(f"{uri.shown} is larger than {limits.max_bytes} bytes; shorten it")
