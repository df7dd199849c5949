"""Broken shards and releases degrade their task, and other tasks are searched."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from index.shard_store import ShardStore
from models.backbones.backbone import Backbone
from models.encoders import encoder_registry
from service.core.errors import Unavailable
from service.core.settings import Settings
from service.search.engine import SearchEngine
from service.storage import index_manifest
from tests.service.search.caption_library import BIRDS, CARS, SEA, Library, flip_last_byte


def test_broken_shard_is_degraded_and_other_shards_are_searched(
    library: Library, service: SearchEngine, pass_retry_interval: Callable[[], None]
) -> None:
    shard = library.store.manifest().shards["tsk_birds"]
    path = library.store.shard_folder(shard.id) / "vectors.faiss"
    flip_last_byte(path)
    assert service.snapshots.refresh()
    answer = service.search("an owl", k=20)
    assert {result.task for result in answer.results} == {"cars"}
    assert list(answer.degraded) == ["birds"]
    assert "vectors.faiss was altered" in answer.degraded["birds"]
    assert [entry.task for entry in answer.routing] == ["cars"]
    assert list(service.snapshots.degraded()) == ["tsk_birds"]
    ready = service.snapshots.readiness()
    assert (ready.ready, list(ready.degraded)) == (True, ["birds"])
    with pytest.raises(Unavailable, match=r"Task 'birds' can't be searched: .*was altered"):
        service.search("an owl", task="birds")
    pass_retry_interval()
    snapshot = service.snapshots.current()
    assert not service.snapshots.refresh()  # still broken
    assert service.snapshots.current() is snapshot
    flip_last_byte(path)
    pass_retry_interval()
    assert service.snapshots.refresh()
    assert service.search("an owl", task="birds").degraded == {}


def test_shard_of_another_encoder_is_not_searched(
    configured: Settings, backbone: Backbone, service: SearchEngine
) -> None:
    library = Library(configured, backbone, "zero_shot")
    library.add_task("birds", BIRDS)
    library.add_task("cars", CARS, fingerprint="f" * 64)
    service.snapshots.refresh()
    answer = service.search("a taxi", k=20)
    assert {result.task for result in answer.results} == {"birds"}
    assert "made by encoder ffffffffffff" in answer.degraded["cars"]


def test_task_unknown_to_the_release_is_degraded(library: Library, service: SearchEngine) -> None:
    library.publish("sea", SEA)
    service.snapshots.refresh()
    answer = service.search("a taxi")
    assert answer.degraded == {"tsk_sea": "no release knows it"}
    assert {entry.task for entry in answer.routing} == {"birds", "cars"}


def test_broken_pinned_release_degrades_its_task_only(learning: Library, service: SearchEngine) -> None:
    older = learning.store.manifest().shards["tsk_birds"].release
    (learning.store.release_folder(older) / "weights.safetensors").unlink()
    assert service.snapshots.refresh()
    answer = service.search("a taxi", k=20)
    assert {result.task for result in answer.results} == {"cars"}
    assert "weights.safetensors is missing" in answer.degraded["birds"]


def test_library_without_searchable_shards_is_unavailable(library: Library, service: SearchEngine) -> None:
    shutil.rmtree(library.settings.index_dir / "shards")
    assert not service.snapshots.refresh()
    with pytest.raises(Unavailable, match=r"no shard can be searched: .*folder is missing"):
        service.search("a taxi")
    assert not service.snapshots.readiness().ready


def test_library_of_another_backbone_is_refused(library: Library, configured: Settings) -> None:
    torch.manual_seed(1)
    from models.backbones.backbone_loading import tiny_backbone

    other = tiny_backbone()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoder_registry, "load_backbone", lambda name, frames, **_: other)
        service = SearchEngine(configured)
        assert not service.snapshots.refresh()
    with pytest.raises(Unavailable, match="learned on another backbone"):
        service.search("a taxi")


def test_shard_that_breaks_while_served_is_degraded(
    library: Library, configured: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores: list[ShardStore] = []

    def open_store(*arguments: Any, **options: Any) -> ShardStore:
        stores.append(ShardStore(*arguments, **options))
        return stores[-1]

    monkeypatch.setattr(index_manifest, "ShardStore", open_store)
    service = SearchEngine(configured)
    assert service.snapshots.refresh()
    assert {result.task for result in service.search("an owl").results} == {"birds", "cars"}
    stores[0].segment_cache.retain(set())  # the next search opens the files again
    folder = library.store.shard_folder(library.store.manifest().shards["tsk_birds"].id)
    folder.rename(folder.with_suffix(".away"))
    answer = service.search("an owl", k=20)
    assert {result.task for result in answer.results} == {"cars"}
    assert "folder is missing" in answer.degraded["birds"]
    ready = service.snapshots.readiness()
    assert (ready.ready, list(ready.degraded)) == (True, ["birds"])
    with pytest.raises(Unavailable, match="folder is missing"):
        service.search("an owl", task="birds")
    assert service.snapshots.refresh()  # the degraded shard is checked again at once
    ready = service.snapshots.readiness()
    assert (ready.tasks, list(ready.degraded)) == (1, ["birds"])
    assert not service.snapshots.refresh()
    folder.with_suffix(".away").rename(folder)
    service.snapshots.retry_at = time.monotonic()
    assert service.snapshots.refresh()
    assert service.snapshots.readiness().degraded == {}
    assert {result.task for result in service.search("an owl").results} == {"birds", "cars"}
