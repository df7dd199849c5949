"""Faults of disks: system calls that fail, a limit to the size of files, and changed bytes."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

DISK_CALLS = ("fsync", "rename", "replace", "utime")


class Crash(BaseException):
    """Simulates a power failure; a ``BaseException``, so that no handler of the product catches it."""


@contextmanager
def fail_at(
    number: int | None, error: Callable[[], BaseException] = Crash, names: Sequence[str] = DISK_CALLS
) -> Iterator[list[str]]:
    """Raise an error in one call to ``os``, counted from 1, and yield the list of calls.

    Args:
        number: Number of the call that fails; None if none does.
        error: Creates the error to raise.
        names: Functions of ``os`` that are counted.
    """
    calls: list[str] = []
    originals = {name: getattr(os, name) for name in names}

    def counted(name: str) -> Callable:
        def call(*arguments: object, **named: object) -> object:
            calls.append(name)
            if len(calls) == number:
                raise error()
            return originals[name](*arguments, **named)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setattr(os, name, counted(name))
        yield calls


def flip_byte(path: Path, offset: int = -1, change: int = 1) -> None:
    """Change bits of a byte of a file, the last one by default; a second call restores it."""
    content = bytearray(path.read_bytes())
    content[offset] ^= change
    path.write_bytes(content)


@contextmanager
def no_file_beyond(size: int) -> Iterator[None]:
    """Limit, in the kernel, the size of every file that this process writes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
