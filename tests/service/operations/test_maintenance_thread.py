"""A worker's maintenance thread while another writer holds the index lock."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from service import maintenance
from service.core.settings import settings
from service.library import compaction as library_compaction
from service.tasks import lifecycle
from service.tasks.lifecycle import ReconcileReport
from service.tasks.uploads import uploaded_videos
from tests.index_locking import compaction
from tests.service.search.caption_library import Library


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """``rounds()`` waits until the maintenance thread has completed another round."""
    done = threading.Semaphore(0)
    monkeypatch.setattr(maintenance, "RECONCILE_SECONDS", 0.001)
    monkeypatch.setattr(lifecycle, "reconcile", lambda: ReconcileReport((), (), (), ()))
    monkeypatch.setattr(maintenance, "write_health", lambda _: done.release())

    def wait() -> None:
        while done.acquire(blocking=False):
            pass
        for _ in range(2):  # the first may have begun before this call
            assert done.acquire(timeout=30)

    return wait


def _add_unused_shard() -> Path:
    folder = settings().index_dir / "shards" / ("0" * 64)
    folder.mkdir(parents=True)
    os.utime(folder, (time.time() - 7200,) * 2)
    return folder


def test_maintenance_continues_during_a_compaction(
    learning: Library, rounds: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library_compaction, "_LOCK_SECONDS", 0.01)
    unused, swept = _add_unused_shard(), list[None]()
    monkeypatch.setattr(uploaded_videos, "sweep_uploads", lambda: swept.append(None))
    thread = maintenance.MaintenanceThread(Path("health.json"))
    with capture_logs() as events, compaction() as finish:
        thread.start()
        try:
            rounds()
            assert swept, "the other sweeps of the round"
            assert unused.is_dir()
            finish()
            rounds()
        finally:
            finish()
            thread.stop()
    assert not unused.exists(), "swept as soon as the lock is free"
    assert len(swept) == 1
    assert [event for event in events if event["log_level"] != "info"] == []
