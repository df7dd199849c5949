"""Start of the search engine: empty libraries, missing backbones, and the thread that loads snapshots."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from models.backbones import query_backbone
from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import load_backbone
from models.encoders import encoder_registry
from service.core.errors import InvalidInput, Unavailable
from service.core.settings import Settings
from service.search.engine import SearchEngine
from service.search.snapshots.snapshot_manager import SnapshotManager
from tests.service.search.caption_library import BIRDS, CARS, Library


def test_empty_library_is_ready_and_searches_are_unavailable(
    configured: Settings, service: SearchEngine
) -> None:
    assert not service.snapshots.readiness().ready
    with pytest.raises(Unavailable, match="still being loaded"):
        service.search("a taxi")
    with pytest.raises(InvalidInput):  # fields are checked without a snapshot
        service.search("", k=5)
    assert not service.snapshots.refresh()
    ready = service.snapshots.readiness()
    assert ready.ready  # otherwise a client that waits for readiness never posts the first task
    assert (ready.tasks, ready.generation) == (0, 0)
    assert "no domain has been learned" in ready.checks["index"]
    with pytest.raises(Unavailable, match="no domain has been learned yet") as refused:
        service.search("a taxi")
    assert refused.value.retry_after > 0
    assert not configured.index_dir.exists()  # reading creates no folder


def test_process_without_backbone_is_not_ready(
    configured: Settings, service: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[str] = []

    def unavailable(name: str, frames: int | None, **_: object) -> Backbone:
        attempts.append(name)
        return load_backbone("open_clip:no-such-model/x")

    monkeypatch.setattr(encoder_registry, "load_backbone", unavailable)
    assert not service.snapshots.refresh()
    ready = service.snapshots.readiness()
    assert not ready.ready
    assert "no-such-model" in ready.checks["model"]
    with pytest.raises(Unavailable, match="no-such-model"):
        service.search("a taxi")
    service.snapshots.refresh()
    assert len(attempts) == 1  # the failed load is not repeated at every poll


def test_background_thread_loads_new_generations(
    configured: Settings, backbone: Backbone, service: SearchEngine
) -> None:
    service.start()
    library = Library(configured, backbone, "zero_shot")
    for name, captions in (("birds", BIRDS), ("cars", CARS)):
        generation = library.add_task(name, captions).generation
        deadline = time.monotonic() + 30
        while service.snapshots.readiness().generation < generation and time.monotonic() < deadline:
            time.sleep(0.05)
        assert service.snapshots.readiness().generation == generation
    assert service.search(CARS[1], k=1).results[0].video_id == "cars-1"
    service.close()


def test_background_thread_survives_any_error(
    library: Library, service: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed, original = threading.Event(), SnapshotManager.refresh

    def fail_once(snapshots: SnapshotManager) -> bool:
        if not failed.is_set():
            failed.set()
            raise MemoryError("out of memory")
        return original(snapshots)

    monkeypatch.setattr(SnapshotManager, "refresh", fail_once)
    service.start()
    deadline = time.monotonic() + 30
    while not service.snapshots.readiness().ready and time.monotonic() < deadline:
        time.sleep(0.05)
    assert failed.is_set()
    assert service.snapshots.readiness().tasks == 2


@pytest.mark.parametrize(("configured_threads", "expected"), [(None, 1), (3, 3)])
def test_number_of_torch_threads_is_one_by_default(
    tmp_path: Path,
    settings_factory: Callable[..., Settings],
    backbone: Backbone,
    monkeypatch: pytest.MonkeyPatch,
    configured_threads: int | None,
    expected: int,
) -> None:
    monkeypatch.setattr(encoder_registry, "load_backbone", lambda name, frames, **_: backbone)
    threads: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    monkeypatch.setattr(query_backbone, "_threads", None)  # restored: later tests load backbones, too
    service = SearchEngine(
        settings_factory(tmp_path, **({"torch_threads": configured_threads} if configured_threads else {}))
    )
    service.start()
    service.close()
    assert set(threads) == {expected}
