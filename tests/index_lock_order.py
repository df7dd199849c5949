"""Check of the order of locks: the write lock of the index comes before the lock of the catalog."""

from __future__ import annotations

import fcntl
import sqlite3
from contextlib import closing
from typing import Any

import pytest

from service.core.settings import settings


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
