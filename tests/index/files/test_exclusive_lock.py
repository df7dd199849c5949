"""Exclusive file locks: reentrant within a thread, with an optional limit on the wait."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from index.files.durable_files import exclusive_lock


def _is_free(path: Path) -> bool:
    """Check whether another thread gets the lock at once."""

    def take() -> bool:
        try:
            with exclusive_lock(path, timeout=0):
                return True
        except TimeoutError:
            return False

    with ThreadPoolExecutor(1) as threads:
        return threads.submit(take).result()


def test_lock_is_taken_again_by_its_thread_and_freed_by_the_outermost_block(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with exclusive_lock(path):
        with exclusive_lock(path), exclusive_lock(path, timeout=0):
            assert not _is_free(path)
        assert not _is_free(path)
    assert _is_free(path)
    with pytest.raises(ZeroDivisionError), exclusive_lock(path):
        raise ZeroDivisionError
    assert _is_free(path)
    with exclusive_lock(path):
        assert not _is_free(path)
