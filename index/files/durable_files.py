"""Durable file operations: after a crash, a file has its old or its new content."""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

_POLL_SECONDS = 0.02


_held: set[tuple[Path, int]] = set()  # lock files, each with the ID of the thread that holds it


def sync(path: Path) -> None:
    """Fsync a file or a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Replace a file atomically with the file that the ``with`` block writes to the yielded path.

    Readers that have the old file open keep it.
    """
    staged = path.with_suffix(".new")
    try:
        yield staged
        sync(staged)
        os.replace(staged, path)
    except BaseException:
        staged.unlink(missing_ok=True)  # frees space on a full disk
        raise
    sync(path.parent)


def replace_text(path: Path, text: str) -> None:
    """Replace a file's text atomically."""
    with replace_file(path) as staged:
        staged.write_text(text, encoding="utf-8")


def hash_files(folder: Path) -> dict[str, str]:
    """Compute the SHA-256 of each file in a folder, by name."""
    return {path.name: hash_file(path) for path in sorted(folder.iterdir())}


def find_damage(folder: Path, files: Mapping[str, str], size: int | None, *, verify: bool) -> str | None:
    """Describe the first difference between a folder and the files (name → SHA-256) that it should contain, or None.

    Compares their total size, if known, and with ``verify`` the checksum of every file.
    """
    try:
        missing = [name for name in files if not (folder / name).is_file()]
        if missing:
            return f"{', '.join(missing)} is missing"
        actual = sum((folder / name).stat().st_size for name in files)
        if size is not None and actual != size:
            return f"its files have {actual} bytes instead of {size}"
        altered = [name for name, digest in files.items() if verify and hash_file(folder / name) != digest]
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    return f"{', '.join(altered)} was altered" if altered else None


@contextmanager
def exclusive_lock(path: Path, timeout: float | None = None) -> Iterator[None]:
    """Hold a lock file exclusively, across threads and processes. A thread that holds it may take it again.

    The kernel releases the lock when its process dies. With a ``timeout`` in seconds, raises TimeoutError after it.
    """
    holder = path, threading.get_ident()
    if holder in _held:
        yield
        return
    with path.open("a") as file:
        _lock(file, timeout)
        _held.add(holder)
        try:
            yield
        finally:
            _held.remove(holder)


def _lock(file: TextIO, timeout: float | None) -> None:
    if timeout is None:
        fcntl.flock(file, fcntl.LOCK_EX)
        return
    deadline = time.monotonic() + timeout
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise TimeoutError(f"another writer holds {file.name}") from None
        time.sleep(_POLL_SECONDS)


def hash_file(path: Path) -> str:
    """Compute the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
