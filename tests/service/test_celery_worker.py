"""A worker's maintenance thread while another writer holds the index lock, and the GPU memory that it reports."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from service import celery_worker
from service.catalog import database
from service.celery_worker import read_gpu_memory, write_health
from service.core.errors import Unavailable
from service.core.settings import Settings, settings
from service.library import deletion
from service.tasks import broker, lifecycle, uploaded_videos
from service.tasks.lifecycle import ReconcileReport
from tests.index_locking import compaction
from tests.service.search.caption_library import Library


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """``rounds()`` waits until the maintenance thread has completed another round."""
    done = threading.Semaphore(0)
    monkeypatch.setattr(celery_worker, "RECONCILE_SECONDS", 0.001)
    monkeypatch.setattr(lifecycle, "reconcile", lambda: ReconcileReport((), (), (), ()))
    monkeypatch.setattr(celery_worker, "write_health", lambda _: done.release())

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
    monkeypatch.setattr(deletion, "_LOCK_SECONDS", 0.01)
    unused, swept = _add_unused_shard(), list[None]()
    monkeypatch.setattr(uploaded_videos, "sweep_uploads", lambda: swept.append(None))
    thread = celery_worker.MaintenanceThread(Path("health.json"))
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


def test_health_file_has_the_result_of_each_check(
    sqlite_catalog: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise Unavailable("The catalog is locked.", 5)

    file = tmp_path / "health.json"
    monkeypatch.setattr(broker, "is_reachable", lambda: True)
    write_health(file)
    assert json.loads(file.read_text()) == {"catalog": "ok", "broker": "ok", "data_folder": "ok"}
    monkeypatch.setattr(broker, "is_reachable", lambda: False)
    monkeypatch.setattr(database, "ping", refuse)
    write_health(file)
    checks = json.loads(file.read_text())
    assert checks == {
        "catalog": "The catalog is locked.",
        "broker": "The broker doesn't respond.",
        "data_folder": "ok",
    }
    write_health(tmp_path / "none" / "health.json")  # the worker goes on; the probe sees an old file


def _install(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_devices_are_read_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _install(tmp_path, "printf '0, 1024, 81559\\n1, [N/A], [N/A]\\n2, 5, 10\\n'", monkeypatch)
    devices = [(gpu.device, gpu.used_bytes, gpu.total_bytes) for gpu in read_gpu_memory()]
    assert devices == [(0, 1024 * 1024**2, 81559 * 1024**2), (2, 5 * 1024**2, 10 * 1024**2)]


def test_machine_without_a_driver_or_a_device_reports_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_gpu_memory() == []
    for script in ("echo No devices were found; exit 6", "echo '0, \u0661, 2'", "exec missing"):
        _install(tmp_path, script, monkeypatch)
        assert read_gpu_memory() == []
