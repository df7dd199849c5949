"""Files that are there completely, or not at all, whenever the power goes."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["exclusive", "hash_files", "replace_text", "sync"]


def sync(path: Path) -> None:
    """fsync a file or a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_text(path: Path, text: str) -> None:
    """Replace a file by a whole new one; readers of the old one keep it."""
    staged = path.with_suffix(".new")
    staged.write_text(text, encoding="utf-8")
    sync(staged)
    os.replace(staged, path)
    sync(path.parent)


def hash_files(folder: Path) -> dict[str, str]:
    """Name → SHA-256 of the files in a folder."""
    result = {}
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            result[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return result


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold a lock file: one writer at a time, across processes; freed when the process dies."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
