"""Inject faults into the system calls that change files."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

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


@contextmanager
def no_file_beyond(size: int) -> Iterator[None]:
    """Limit, in the kernel, the size of every file that this process writes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
