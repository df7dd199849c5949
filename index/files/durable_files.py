"""Files that are there completely, or not at all, whenever the power goes."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

__all__ = ["damage", "exclusive", "hash_files", "replace_text", "replacing", "sync"]


def sync(path: Path) -> None:
    """fsync a file or a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Replace a file by a whole new one, which the block writes where it is told; readers of the old one keep it."""
    staged = path.with_suffix(".new")
    try:
        yield staged
        sync(staged)
        os.replace(staged, path)
    except OSError:
        staged.unlink(missing_ok=True)  # a full disk needs the room
        raise
    sync(path.parent)


def replace_text(path: Path, text: str) -> None:
    """Replace a file by a text."""
    with replacing(path) as staged:
        staged.write_text(text, encoding="utf-8")


def hash_files(folder: Path) -> dict[str, str]:
    """Name → SHA-256 of the files in a folder."""
    return {path.name: _sha256(path) for path in sorted(folder.iterdir())}


def damage(folder: Path, files: Mapping[str, str], size: int | None, *, verify: bool) -> str | None:
    """What is wrong with a folder that should hold these files; None if nothing is.

    Args:
        files: name → SHA-256.
        size: of all files together, in bytes; None: unknown.
        verify: read every byte; otherwise only sizes are compared.
    """
    try:
        missing = [name for name in files if not (folder / name).is_file()]
        if missing:
            return f"{', '.join(missing)} is missing"
        actual = sum((folder / name).stat().st_size for name in files)
        if size is not None and actual != size:
            return f"its files have {actual} bytes instead of {size}"
        altered = [name for name, digest in files.items() if verify and _sha256(folder / name) != digest]
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    return f"{', '.join(altered)} was altered" if altered else None


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold a lock file: one writer at a time, across threads and processes; freed when its process dies."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
