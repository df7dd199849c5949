"""The write lock of the index: held by another writer, and taken before the lock of the catalog."""

from __future__ import annotations

import fcntl
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from index.files.durable_files import exclusive_lock
from service.core.settings import settings


@contextmanager
def compaction() -> Iterator[Callable[[], None]]:
    """Another thread that holds the lock of the index until the yielded function is called."""
    is_held, end = threading.Event(), threading.Event()

    def hold() -> None:
        settings().index_dir.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(settings().index_dir / "write.lock"):
            is_held.set()
            end.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    is_held.wait()

    def finish() -> None:
        end.set()
        thread.join()

    yield finish
    finish()


def require_unlocked_catalog(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let each file lock fail that is taken while a transaction locks the SQLite catalog; returns the taken locks."""
    flock, taken = fcntl.flock, list[int]()

    def write_before(file: Any, operation: int) -> None:
        with closing(sqlite3.connect(settings().data_dir / "catalog.sqlite3", timeout=0)) as other:
            other.execute("BEGIN IMMEDIATE")  # raises if a transaction holds the lock of the catalog
        taken.append(operation)
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", write_before)
    return taken
