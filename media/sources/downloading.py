"""Download remote files into a cache, with limits on size and time, and retries.

The total size of the files is bounded across all processes that share the folder. Each file is locked while it is in
use. The kernel drops the locks of a dead process, so the next download recognizes its files and removes them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from media.errors import InconsistentFile, MediaError, SourceOutage
from media.sources.media_source import MediaSource, RemoteStream, SourceUri

_WAIT_SECONDS = 0.2  # between attempts to reserve space
_SUFFIX = ".download"
_KEPT_FREE = 1024**3  # bytes of disk space that downloads leave for the rest of the data folder


class CachedFile:
    """A file in the cache, open for writing."""

    def __init__(self, cache: SourceCache, path: Path, stream: BinaryIO) -> None:
        self.path = path
        self.stream = stream
        self._cache = cache

    def reserve(self, size: int) -> None:
        """Reserve space, waiting for other files to be removed.

        Raises MediaError if the file is larger than the cache, and SourceOutage if not enough space became free in
        time.
        """
        if size > self._cache.max_bytes:
            raise MediaError(f"the file has {size} bytes; the limit is {self._cache.max_bytes} bytes")
        deadline = time.monotonic() + self._cache.wait_seconds
        while not self._cache.has_reserved(self, size):
            if time.monotonic() >= deadline:
                raise SourceOutage("The disk or the download cache is full of other videos.")
            time.sleep(_WAIT_SECONDS)


class SourceCache:
    """Folder of downloaded files."""

    def __init__(self, folder: Path, max_bytes: int, wait_seconds: float = 60.0) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self.wait_seconds = wait_seconds

    @contextmanager
    def file(self) -> Iterator[CachedFile]:
        """Create an empty file, which is removed at the end of the ``with`` statement; raises OSError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{uuid.uuid4().hex}{_SUFFIX}"
        with self._locked():
            stream = path.open("xb")
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            with stream:
                yield CachedFile(self, path, stream)
        finally:
            path.unlink(missing_ok=True)

    def has_reserved(self, file: CachedFile, size: int) -> bool:
        """Extend a file to ``size`` bytes if cache and disk have the space, and return whether they do."""
        with self._locked():
            others = list(self._files_in_use(file.path))
            reserved = sum(status.st_size for status in others)
            unwritten = sum(max(0, status.st_size - status.st_blocks * 512) for status in others)
            allocated = os.fstat(file.stream.fileno()).st_blocks * 512
            free = shutil.disk_usage(self.folder).free + allocated - unwritten - _KEPT_FREE
            if reserved + size > self.max_bytes or size > free:
                return False
            os.truncate(file.stream.fileno(), size)  # sparse: it counts, but occupies no blocks yet
        return True

    def _files_in_use(self, except_path: Path) -> Iterator[os.stat_result]:
        """Yield the status of each file in use, and remove files of dead processes."""
        for path in self.folder.glob(f"*{_SUFFIX}"):
            if path == except_path:
                continue
            try:
                with path.open("rb") as file:
                    try:
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except OSError:
                        yield os.fstat(file.fileno())
                        continue
                    path.unlink(missing_ok=True)
            except FileNotFoundError:
                continue

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.folder / ".lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


_RESERVED_STEP = 64 * 1024**2  # bytes reserved at a time for a file of unknown size


@dataclass(frozen=True)
class DownloadLimits:
    """Limits on a download."""

    max_bytes: int
    # Maximum time for all attempts. A worker without progress for 15 minutes loses its lease.
    seconds: float = 600.0
    attempts: int = 4
    pause: float = 1.0  # seconds before the second attempt; each later pause is twice as long
    max_pause: float = 30.0  # maximum seconds before an attempt, even if the source asks for more


@contextmanager
def download_file(
    source: MediaSource,
    uri: SourceUri,
    cache: SourceCache,
    limits: DownloadLimits,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Path]:
    """Download a remote file into the cache, and remove it at the end of the ``with`` statement.

    Raises MediaError, also for a file that is too large, too slow or always ends early; SourceOutage; or OSError if the
    cache cannot be written.
    """
    deadline = time.monotonic() + limits.seconds
    with cache.file() as file:
        for attempt in range(1, limits.attempts + 1):
            try:
                with source.open(uri) as stream:
                    _receive(stream, uri, file, limits, deadline=deadline)
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
                f"{uri.shown} takes more than {limits.seconds:.0f} s to download ({received} bytes arrived); "
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
