"""Releases that store only their own contributions: loading, reuse between snapshots, and damage."""

from __future__ import annotations

import gc
import json
import os
import shutil
import time
import weakref
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from index.index_snapshot import IndexSnapshot
from models.backbones.backbone import Backbone
from models.releases import release_files
from models.releases.release_files import write_release
from models.releases.release_state import ReleaseState, ReleaseTask
from models.routing.router import TextEvidence
from models.routing.routing_profiles import RoutingProfiles
from service.core.settings import Settings
from service.search.engine import SearchEngine
from service.search.snapshots.search_snapshot import SearchSnapshot
from service.search.snapshots.snapshot_loading import load_snapshot, with_current_captions
from service.search.text_search.planner import TaskValues
from tests.index.disk_faults import flip_byte
from tests.service.search import caption_library
from tests.service.search.caption_library import BIRDS, CARS, SEA, Library

TAKES = ["a child runs after a kite", "snow falls on a roof", "a train leaves the station"]
TEXTS = ["an owl on a branch", "a red taxi", "waves", "something that nobody has seen"]


def _route(
    snapshot: SearchSnapshot, tasks: Iterable[str] | None = None
) -> list[tuple[dict[str, float], TextEvidence]]:
    routings = snapshot.route(TEXTS, [snapshot.scope(tuple(tasks or snapshot.shards))] * len(TEXTS))
    return [
        (dict(TaskValues(snapshot.task_indices, routing.log_weights)), *routing.evidence.values())
        for routing in routings
    ]


def _encode(snapshot: SearchSnapshot, tasks: Iterable[str] | None = None) -> list[np.ndarray]:
    """Encode each text in each mode for tasks, by default all of the snapshot."""
    names = list(tasks or snapshot.shards)
    return snapshot.query_vectors(
        [(text, mode, t) for text in TEXTS for mode in snapshot.modes for t in names]
    )


@pytest.fixture(params=["strata", "ffa_tame", "zero_shot"])
def library(request: pytest.FixtureRequest, configured: Settings, backbone: Backbone) -> Library:
    small = {"strata": {"rank": 2, "image_rank": 1}, "ffa_tame": {"experts": 2, "rank": 2}, "zero_shot": {}}
    library = Library(configured, backbone, request.param, **small[request.param])
    for name, captions in (("birds", BIRDS), ("cars", CARS), ("takes", TAKES)):
        library.add_task(name, captions)
    return library


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Paths of all release files that are opened, for checksums or for content."""
    opened: list[Path] = []

    def watched(path: Path, *args: object, **options: object) -> object:
        opened.append(Path(path))
        return safe_open(path, *args, **options)

    def open_path(path: Path, *args: Any, **options: Any) -> Any:
        opened.append(path)
        return path_open(path, *args, **options)

    safe_open, path_open = release_files.safe_open, Path.open
    monkeypatch.setattr(release_files, "safe_open", watched)
    monkeypatch.setattr(Path, "open", open_path)  # checksums and Path.read_text
    return opened


def _releases(opened: list[Path]) -> set[str]:
    return {path.parent.name for path in opened if path.parent.parent.name == "releases"}


def _folder(library: Library, task: str) -> Path:
    return library.store.release_folder(library.store.manifest().shards[f"tsk_{task}"].release)


def _answers(service: SearchEngine) -> list[object]:
    answers = [service.search(text, k=20) for text in TEXTS]
    return [([(r.video_id, r.score) for r in a.results], a.routing, a.degraded) for a in answers]


# -- replacement of a snapshot ----------------------------------------------------------------------------------


def test_new_snapshot_reads_only_the_new_release(
    library: Library, service: SearchEngine, backbone: Backbone, read: list[Path]
) -> None:
    service.snapshots.refresh()
    first = service.snapshots.current()
    assert _releases(read) == set(library.store.manifest().releases)
    before = _encode(first)
    manifest = library.add_task("sea", SEA)
    read.clear()
    assert service.snapshots.refresh()
    assert _releases(read) == {manifest.release}
    replaced = service.snapshots.current()
    loaded = load_snapshot(IndexSnapshot.open(library.store), lambda _: backbone)
    assert set(replaced.shards) == {"tsk_birds", "tsk_cars", "tsk_takes", "tsk_sea"}
    np.testing.assert_allclose(_encode(replaced), _encode(loaded, replaced.shards), atol=1e-6)
    assert _route(replaced) == _route(loaded, replaced.shards)
    encode = first.distinct_lineages[0].query_cache.encode_uncached
    again = [encode([text], mode, t)[0] for text in TEXTS for mode in first.modes for t in first.shards]
    np.testing.assert_allclose(again, before, atol=1e-6)  # running requests keep the previous snapshot


def test_profiles_of_other_tokens_are_counted_again(
    configured: Settings, backbone: Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 1.0.0 stored those of the text tower's tokens; the library routes as if it was learned today."""

    def write_other_tokens(folder: Path, state: ReleaseState, **options: Any) -> None:
        tokens = RoutingProfiles.from_dense(np.eye(len(state.tasks), 49_408, 49_000))
        write_release(folder, replace(state, profiles=tokens), **options)

    library = Library(configured, backbone, "zero_shot")
    library.add_task("birds", BIRDS)
    with monkeypatch.context() as patch:
        patch.setattr(caption_library, "write_release", write_other_tokens)
        library.add_task("cars", CARS)
    library.add_task("sea", SEA)
    snapshot = load_snapshot(IndexSnapshot.open(library.store), lambda _: backbone)
    expected = library.method.profiles
    np.testing.assert_array_equal(snapshot.router.profiles.to_dense(), expected.to_dense())
    assert list(snapshot.appended_profiles) == ["tsk_cars"]
    again = load_snapshot(IndexSnapshot.open(library.store), lambda _: backbone, other=snapshot)
    assert again.appended_profiles["tsk_cars"] is snapshot.appended_profiles["tsk_cars"]
    assert with_current_captions(snapshot) is None


def test_snapshot_of_an_earlier_release_reuses_the_current_one(
    library: Library, backbone: Backbone, read: list[Path]
) -> None:
    snapshot = IndexSnapshot.open(library.store)
    current = load_snapshot(snapshot, lambda _: backbone)
    earlier = snapshot.manifest.shards["tsk_cars"].release
    loaded = load_snapshot(snapshot, lambda _: backbone, earlier)
    read.clear()
    loaded_again = load_snapshot(snapshot, lambda _: backbone, earlier, other=current)
    assert _releases(read) == {earlier}
    assert list(loaded_again.shards) == list(loaded.shards) == ["tsk_birds", "tsk_cars"]
    np.testing.assert_array_equal(_encode(loaded_again), _encode(loaded))


def test_only_broken_releases_are_read_again(library: Library, backbone: Backbone, read: list[Path]) -> None:
    whole = load_snapshot(IndexSnapshot.open(library.store), lambda _: backbone)
    broken, newest = _folder(library, "cars"), library.store.manifest().release
    shutil.move(broken, broken.with_name("away"))
    degraded = load_snapshot(IndexSnapshot.open(library.store), lambda _: backbone)
    assert list(degraded.degraded) == ["tsk_cars"]
    shutil.move(broken.with_name("away"), broken)
    read.clear()
    repaired = load_snapshot(
        IndexSnapshot.open(library.store, previous=degraded.index_snapshot),
        lambda _: backbone,
        other=degraded,
    )
    assert _releases(read) == {broken.name, newest}
    assert (repaired.degraded, repaired.task_names) == ({}, whole.task_names)
    np.testing.assert_array_equal(_encode(repaired, whole.shards), _encode(whole))
    assert _route(repaired, whole.shards) == _route(whole)


def test_replaced_snapshot_is_freed_at_once(library: Library, backbone: Backbone) -> None:
    snapshot = IndexSnapshot.open(library.store)
    snapshot_in_use = load_snapshot(snapshot, lambda _: backbone)
    _encode(snapshot_in_use)
    encoder_reference = weakref.ref(snapshot_in_use.distinct_lineages[0].query_cache.encoder)
    gc.disable()
    try:
        del snapshot_in_use
        deadline = time.monotonic() + 30
        while encoder_reference() is not None and time.monotonic() < deadline:
            time.sleep(0.01)  # a thread of the pool may not have let go of its last call yet
        assert encoder_reference() is None
    finally:
        gc.enable()


# -- damaged releases ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "file", "harm"),
    [
        ("birds", "routing.safetensors", "flip"),
        ("cars", "routing.safetensors", "remove"),
        ("cars", "release.json", "cut"),
        ("birds", "release.json", "remove"),
    ],
)
def test_task_with_a_damaged_routing_profile_is_degraded_alone(
    library: Library, service: SearchEngine, backbone: Backbone, file: str, harm: str, task: str
) -> None:
    served = load_snapshot(IndexSnapshot.open(library.store), lambda _: backbone)
    path = _folder(library, task) / file
    if harm == "flip":
        flip_byte(path)
    elif harm == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        path.unlink()
    assert service.snapshots.refresh()
    left = service.snapshots.current()
    (why,) = left.degraded.values()
    assert list(left.degraded) == [f"tsk_{task}"]
    assert path.parent.name[:12] in why
    assert "restore it from a backup" in why
    others = [name for name in served.shards if name != f"tsk_{task}"]
    assert list(left.shards) == others
    np.testing.assert_array_equal(_encode(left), _encode(served, others))
    assert _route(left, others) == _route(served, others)
    answer = service.search("a red taxi", k=20)
    assert {result.task_id for result in answer.results} == set(others)
    assert len(answer.degraded) == 1
    assert why in service.snapshots.readiness().model_dump_json().replace("\\", "")


def test_damaged_profile_of_the_newest_release_keeps_the_current_snapshot(
    library: Library, service: SearchEngine
) -> None:
    service.snapshots.refresh()
    before = _answers(service)
    library.add_task("sea", SEA)
    flip_byte(_folder(library, "sea") / "routing.safetensors")
    assert not service.snapshots.refresh()
    assert "routing.safetensors was altered" in str(service.snapshots.last_error)
    assert _answers(service) == before


@pytest.mark.slow
def test_inconsistent_lineage_is_refused(library: Library, service: SearchEngine, backbone: Backbone) -> None:
    """The lineage is altered before publishing, so that its checksums are valid."""
    service.snapshots.refresh()
    before = _answers(service)
    for lineage, message in (
        ({"release": _folder(library, "birds").name, "tasks": 3}, "knows 1 tasks"),
        ({"release": "../../etc", "tasks": 3}, "is not in the manifest"),
    ):
        library.method.learned_tasks, library.method.profiles = _without(library, "tsk_x")
        library.method.begin_task("tsk_x", "x")
        library.method.end_task()
        library.method.record_task("tsk_x", "x", SEA)
        with library.store.staging() as staged:
            write_release(staged, library.method.release(), parent=library.before)
            path = staged / "release.json"
            path.write_text(json.dumps({**json.loads(path.read_text()), "before": lineage}))
            release = library.store.adopt_release(staged)
        library.store.publish(release=release, shards=[])
        fresh = SearchEngine(library.settings)
        fresh.snapshots.refresh()
        assert message in str(fresh.snapshots.last_error)
        assert _answers(fresh) == before
        assert not service.snapshots.refresh()
        assert _answers(service) == before
        fresh.close()


def _without(library: Library, task: str) -> tuple[list[ReleaseTask], RoutingProfiles]:
    method = library.method
    remaining = [place for place, learned in enumerate(method.learned_tasks) if learned.task_id != task]
    return [method.learned_tasks[place] for place in remaining], RoutingProfiles.from_dense(
        method.profiles.to_dense(remaining)
    )


def test_deletion_and_compaction_keep_the_lineage(library: Library, backbone: Backbone) -> None:
    before = load_snapshot(IndexSnapshot.open(library.store), lambda _: backbone)
    library.store.delete([int(before.shards["tsk_cars"].ids[0])])
    library.store.compact("tsk_cars")
    for folder in library.store.folders():
        os.utime(folder, (0, 0))
    library.store.collect_garbage()
    after = load_snapshot(IndexSnapshot.open(library.store), lambda _: backbone)
    assert {path.name for path in (library.store.root / "releases").iterdir()} == set(before.contributions)
    assert (after.degraded, after.task_names) == ({}, before.task_names)
    assert _releases_of_shards(after) == _releases_of_shards(before)
    assert _route(after) == _route(before)


def _releases_of_shards(snapshot: SearchSnapshot) -> dict[str, str]:
    return {task: shard.entry.release for task, shard in snapshot.shards.items()}
