"""Releases are validated with self-test queries before they serve; large libraries are verified after readiness."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cinestrata_schemas.search import SearchResult
from index.shards.faiss_vector_store import SegmentCache
from models.backbones.backbone import Backbone
from models.errors import ReleaseError
from models.releases.release_files import (
    MAX_TESTED_OLDER_TASKS,
    SELF_TEST_ANCHORS,
    SELF_TEST_TEXTS,
    SelfTest,
    read_self_test,
    write_self_test,
)
from models.routing.confidence_model import DEFAULT_VISUAL_SCORE
from service.core.settings import Settings
from service.search.engine import SearchEngine
from service.search.snapshots import generation_loader, snapshot_loading
from service.search.snapshots.self_test import SELF_TEST_TOLERANCE
from tests.index.disk_faults import flip_byte
from tests.service.search.caption_library import BIRDS, SEA, Library, SelfTested, learn_birds_and_cars
from trainer.task_pipeline import make_self_test


@pytest.fixture
def learning(configured: Settings, backbone: Backbone) -> SelfTested:
    library = SelfTested(configured, backbone, "ffa_tame", experts=2, rank=2)
    learn_birds_and_cars(library)
    return library


def _self_test(library: Library) -> SelfTest:
    self_test = read_self_test(library.store.release_folder(str(library.store.manifest().release)))
    assert self_test is not None
    return self_test


def _cosines(results: Sequence[SearchResult]) -> list[float]:
    """Return the cosines of the results of one task, found without words."""
    return [DEFAULT_VISUAL_SCORE.cosines(result.score) for result in results]


# -- self-test queries -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_words")
def test_self_test_equals_search_results(learning: SelfTested, service: SearchEngine) -> None:
    assert service.snapshots.refresh(), service.snapshots.last_error
    self_test = _self_test(learning)
    assert self_test.texts == [*SELF_TEST_TEXTS, SELF_TEST_TEXTS[0]]
    assert self_test.tasks == ["tsk_cars"] * len(SELF_TEST_TEXTS) + ["tsk_birds"]
    assert self_test.ids.shape == (len(self_test), SELF_TEST_ANCHORS)
    names = {f"cars-{n}" for n in range(3)}
    for row, text in enumerate(SELF_TEST_TEXTS):
        results = service.search(text, k=3, task="cars", mode=self_test.mode).results
        assert {result.video_id for result in results} == names
        has_vector = self_test.ids[row] >= 0
        assert self_test.scores[row, has_vector] == pytest.approx(_cosines(results), abs=1e-5)
    # Queries of older tasks have arbitrary vectors of the task with their scores.
    birds = service.search(SELF_TEST_TEXTS[0], k=3, task="birds", mode=self_test.mode).results
    assert sorted(self_test.scores[-1, :3], reverse=True) == pytest.approx(_cosines(birds), abs=1e-5)
    assert not has_vector[3:].any()


def test_number_of_self_test_queries_is_bounded(backbone: Backbone) -> None:
    class Shard:
        ids = np.arange(7, 107)

        def vectors(self, ids: Any) -> Any:
            return np.ones((len(ids), 4), np.float32) / 2

    class Encoder:
        modes = ("m",)

        def encode(self, texts: Any, tasks: Any, mode: str) -> Any:
            return np.ones((len(texts), len(tasks), 4), np.float32) / 2

    older: Any = {f"task {n}": Shard() for n in range(100)}
    self_test = make_self_test(Encoder(), "new", np.arange(3), np.eye(4, dtype=np.float32)[:3], older)  # type: ignore[arg-type]
    assert len(self_test) == len(SELF_TEST_TEXTS) + MAX_TESTED_OLDER_TASKS == 32
    assert self_test.tasks[len(SELF_TEST_TEXTS) :] == [
        f"task {n}" for n in range(100 - MAX_TESTED_OLDER_TASKS, 100)
    ]
    assert self_test.ids[-1].tolist() == [7, 31, 56, 81, 106]
    assert self_test.ids[0].tolist() == [0, 1, 2, -1, -1]


def _turn(self_test: SelfTest, row: int) -> SelfTest:
    vectors = self_test.vectors.copy()
    vectors[row] = np.roll(vectors[row], 1)
    return replace(self_test, vectors=vectors)


def _raise(self_test: SelfTest, row: int, by: float) -> SelfTest:
    scores = self_test.scores.copy()
    scores[row, 0] += by
    return replace(self_test, scores=scores)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "row"),
    [
        (lambda self_test: _turn(self_test, 3), 3),
        (lambda self_test: _turn(self_test, len(SELF_TEST_TEXTS) + 1), len(SELF_TEST_TEXTS) + 1),
        (lambda self_test: _raise(self_test, 5, 1.1 * SELF_TEST_TOLERANCE), 5),
        (lambda self_test: _raise(self_test, 5, -1.1 * SELF_TEST_TOLERANCE), 5),
        (lambda self_test: replace(self_test, vectors=np.full_like(self_test.vectors, np.nan)), 0),
        (lambda self_test: replace(self_test, vectors=self_test.vectors[:, :-1].copy()), 0),
    ],
    ids=["vector", "vector of an older task", "score above", "score below", "no number", "width"],
)
def test_release_with_other_answers_is_refused_and_the_current_one_stays(
    learning: SelfTested, service: SearchEngine, change: Callable[[SelfTest], SelfTest], row: int
) -> None:
    assert service.snapshots.refresh()
    before = service.search("an owl", k=20)
    learning.change = change
    manifest = learning.add_task("sea", SEA)
    assert not service.snapshots.refresh()
    assert service.snapshots.last_error is not None
    release = str(manifest.release)[:12]
    assert f"release {release} doesn't answer as it did" in service.snapshots.last_error
    assert f"self-test query {row} (" in service.snapshots.last_error
    assert service.search("an owl", k=20).results == before.results
    ready = service.snapshots.readiness()
    assert (ready.ready, ready.release) == (True, before.release)
    assert release in ready.checks["index"]
    learning.change = lambda self_test: self_test
    learning.add_task("lake", BIRDS)
    assert service.snapshots.refresh()
    assert service.search("an owl", k=20).generation == manifest.generation + 1


def test_rounding_differences_are_accepted(
    learning: SelfTested, service: SearchEngine, backbone: Backbone
) -> None:
    def bfloat16(self_test: SelfTest) -> SelfTest:
        """Return the self-test queries as recorded by a worker that computes in bfloat16, rounded twelve times."""
        rng = np.random.default_rng(0)
        noise = rng.normal(size=self_test.vectors.shape) * 0.02 / np.sqrt(self_test.vectors.shape[1])
        scores = torch.tensor(self_test.scores).bfloat16().float().numpy()
        return replace(self_test, vectors=(self_test.vectors + noise).astype(np.float16), scores=scores)

    learning.change = bfloat16
    learning.add_task("sea", SEA)
    assert service.snapshots.refresh(), service.snapshots.last_error


def test_releases_without_self_test_and_queries_of_deleted_vectors_are_accepted(
    learning: SelfTested, service: SearchEngine, configured: Settings, backbone: Backbone
) -> None:
    self_test = _self_test(learning)
    learning.store.delete([int(self_test.ids[0, 0]), int(self_test.ids[-1, 0])])
    assert service.snapshots.refresh(), service.snapshots.last_error
    learning.store.compact("tsk_cars")
    assert service.snapshots.refresh(), service.snapshots.last_error
    Library.publish(learning, "sea", SEA)  # without self-test queries
    learning.method.record_task("tsk_sea", "sea", SEA)
    assert service.snapshots.refresh() or service.snapshots.last_error is None


def test_unreadable_self_tests_are_reported(learning: SelfTested, tmp_path: Path) -> None:
    self_test = _self_test(learning)
    write_self_test(tmp_path, replace(self_test, tasks=self_test.tasks[1:]))
    with pytest.raises(ReleaseError, match=r"have inconsistent shapes"):
        read_self_test(tmp_path)
    (tmp_path / "probes.safetensors").write_bytes(b"{")
    with pytest.raises(ReleaseError, match=r"cannot be read"):
        read_self_test(tmp_path)
    write_self_test(tmp_path, replace(self_test, mode="pinned"))
    with pytest.raises(ReleaseError, match=r"mode 'pinned', which it does not offer"):
        snapshot_loading.check_self_test(
            tmp_path, "r", lambda *_: np.empty((0, 0, 0), np.float32), {}, ("latest",)
        )


# -- checksums ----------------------------------------------------------------------------------------------


def test_large_library_is_served_before_it_is_verified(
    learning: SelfTested, service: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flipped byte in an unverified shard is found later, and the other shards stay served."""
    learning.add_task("sea", SEA)
    shards = learning.store.manifest().shards
    monkeypatch.setattr(generation_loader, "BYTES_BEFORE_READY", shards["tsk_sea"].bytes)
    vectors = learning.store.shard_folder(shards["tsk_birds"].id) / "vectors.faiss"
    flip_byte(vectors)
    assert service.snapshots.refresh()
    assert service.snapshots.readiness().degraded == {}
    assert service.snapshots.readiness().checks["checksums"] == "2 of 3 shards (0.0 GB) are not verified yet"
    monkeypatch.setattr(SegmentCache, "gpu_failures", lambda cache: {"tsk_birds": "its memory is full"})
    device = service.snapshots.readiness().checks["index_device"]
    assert device == "the CPU searches, not the GPU: 'birds' (its memory is full)"
    assert {r.task for r in service.search("an owl", k=20).results} == {"birds", "cars", "sea"}
    assert service.snapshots.verify_next_shard()
    assert service.snapshots.readiness().degraded == {}, "the shard of cars is verified first and is intact"
    learning.add_task("lake", BIRDS)  # verified shards stay verified
    assert service.snapshots.refresh()
    assert [entry.task for entry in service.snapshots.current().index_snapshot.unverified_segments] == [
        "tsk_birds"
    ]
    assert service.snapshots.verify_next_shard()
    assert not service.snapshots.verify_next_shard()
    ready = service.snapshots.readiness()
    assert (ready.ready, list(ready.degraded)) == (True, ["birds"])
    assert "vectors.faiss was altered" in ready.degraded["birds"]
    assert "checksums" not in ready.checks
    assert {r.task for r in service.search("an owl", k=20).results} == {"cars", "sea", "lake"}
    assert service.snapshots.refresh(), "the degraded shard is checked again at once"
    assert list(service.snapshots.readiness().degraded) == ["birds"]
    flip_byte(vectors)
    service.snapshots.retry_at = 0.0
    assert service.snapshots.refresh()
    assert (service.snapshots.readiness().degraded, service.snapshots.verify_next_shard()) == ({}, False)


def test_running_process_verifies_new_shards_before_serving_them(
    learning: SelfTested, service: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation_loader, "BYTES_BEFORE_READY", 0)
    assert service.snapshots.refresh()
    while service.snapshots.verify_next_shard():
        pass
    manifest = learning.add_task("sea", SEA)
    flip_byte(learning.store.shard_folder(manifest.shards["tsk_sea"].id) / "vectors.faiss")
    assert service.snapshots.refresh()
    assert list(service.snapshots.readiness().degraded) == ["sea"]


def test_file_sizes_are_verified_before_readiness(
    learning: SelfTested, service: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation_loader, "BYTES_BEFORE_READY", 0)
    entry = learning.store.manifest().shards["tsk_birds"]
    with (learning.store.shard_folder(entry.id) / "vectors.faiss").open("ab") as file:
        file.truncate(entry.bytes // 2)
    assert service.snapshots.refresh()
    assert "bytes instead of" in service.snapshots.readiness().degraded["birds"]
