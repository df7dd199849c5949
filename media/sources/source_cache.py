"""The folder of downloaded files, whose total size is bounded across all processes that share it.

Each file is locked while it is in use. The kernel drops the lock of a dead process, so its files are recognized and
removed by the next download.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from media.errors import MediaError, SourceOutage

_WAIT_SECONDS = 0.2  # between two attempts to reserve space
_SUFFIX = ".download"
_KEPT_FREE = 1024**3  # bytes of the disk that downloads leave to the rest of the data folder


class CachedFile:
    """A file of the cache, open for writing.

    Attributes:
        path: The file.
        stream: The open file.
    """

    def __init__(self, cache: SourceCache, path: Path, stream: BinaryIO) -> None:
        self.path = path
        self.stream = stream
        self._cache = cache

    def reserve(self, size: int) -> None:
        """Reserve space, waiting until other files are removed.

        Args:
            size: Size of the whole file in bytes.

        Raises:
            MediaError: The cache can never hold the file.
            SourceOutage: No space became free in time.
            OSError: The file system is full.
        """
        if size > self._cache.max_bytes:
            raise MediaError(
                f"the file has {size} bytes; downloads are limited to {self._cache.max_bytes} bytes"
            )
        deadline = time.monotonic() + self._cache.wait_seconds
        while not self._cache.has_reserved(self, size):
            if time.monotonic() >= deadline:
                raise SourceOutage("The disk, or the cache of downloads, is full with files of other videos.")
            time.sleep(_WAIT_SECONDS)


class SourceCache:
    """Downloaded files in one folder.

    Attributes:
        folder: The folder.
        max_bytes: Maximum size of all files together.
        wait_seconds: Maximum time that a download waits for space.
    """

    def __init__(self, folder: Path, max_bytes: int, wait_seconds: float = 60.0) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self.wait_seconds = wait_seconds

    @contextmanager
    def file(self) -> Iterator[CachedFile]:
        """A new empty file, removed at the end of the block.

        Raises:
            OSError: The folder cannot be written.
        """
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
        """Extend a file to a size if the cache and the disk have space for it; returns whether they do."""
        with self._locked():
            others = list(self._files_in_use(file.path))
            reserved = sum(status.st_size for status in others)
            unwritten = sum(max(0, status.st_size - status.st_blocks * 512) for status in others)
            own = os.fstat(file.stream.fileno()).st_blocks * 512
            free = shutil.disk_usage(self.folder).free + own - unwritten - _KEPT_FREE
            if reserved + size > self.max_bytes or size > free:
                return False
            os.truncate(file.stream.fileno(), size)  # sparse: it counts, and occupies no block yet
        return True

    def _files_in_use(self, except_path: Path) -> Iterator[os.stat_result]:
        """Status of the files in use; files of dead processes are removed."""
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
