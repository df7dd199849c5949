"""A generation whose releases keep only what they learned: served as before, swapped without reading them again."""

from __future__ import annotations

import gc
import json
import os
import shutil
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from index.files import durable_files
from index.files.manifest_format import ReleaseEntry
from index.index_snapshot import IndexSnapshot
from index.shard_store import ShardStore
from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import load_backbone
from models.releases import release_files
from models.releases.release_files import read_lineage, read_release, write_release
from models.releases.release_lineage import ParentRelease, ReleaseTask
from models.releases.release_state import ReleaseState
from models.routing.routing_profiles import RoutingProfiles
from service.core.settings import Settings
from service.search.engine import SearchEngine
from service.search.snapshots import snapshot_manager
from service.search.snapshots.search_snapshot import SearchSnapshot
from tests.models.releases.old_releases import write_schema_2
from tests.service.search.caption_library import BIRDS, CARS, SEA, Library

TAKES = ["a child runs after a kite", "snow falls on a roof", "a train leaves the station"]
TEXTS = ["an owl on a branch", "a red taxi", "waves", "something that nobody has seen"]

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return load_backbone("tiny")


@pytest.fixture
def configured(
    tmp_path: Path,
    settings_factory: Callable[..., Settings],
    backbone: Backbone,
    monkeypatch: pytest.MonkeyPatch,
) -> Settings:
    monkeypatch.setattr(snapshot_manager, "load_backbone", lambda name, frames: backbone)
    return settings_factory(tmp_path, limits__max_results=20)


@pytest.fixture(params=["strata", "ffa_tame", "zero_shot"])
def library(request: pytest.FixtureRequest, configured: Settings, backbone: Backbone) -> Library:
    small = {"strata": {"rank": 2, "image_rank": 1}, "ffa_tame": {"experts": 2, "rank": 2}, "zero_shot": {}}
    library = Library(configured, backbone, request.param, **small[request.param])
    for name, captions in (("birds", BIRDS), ("cars", CARS), ("takes", TAKES)):
        library.lay_down(name, captions)
    return library


@pytest.fixture
def service(configured: Settings) -> Iterator[SearchEngine]:
    service = SearchEngine(configured)
    yield service
    service.close()


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Every file of a release that is opened, whether for its checksum or for what is in it."""
    opened: list[Path] = []

    def watched(path: Path, *args: object, **options: object) -> object:
        opened.append(Path(path))
        return safe_open(path, *args, **options)

    safe_open, sha256, text = release_files.safe_open, durable_files._sha256, Path.read_text
    monkeypatch.setattr(release_files, "safe_open", watched)
    monkeypatch.setattr(durable_files, "_sha256", lambda path: (opened.append(path), sha256(path))[1])
    monkeypatch.setattr(
        Path,
        "read_text",
        lambda path, *args, **options: (opened.append(path), text(path, *args, **options))[1],
    )
    return opened


def _releases(opened: list[Path]) -> set[str]:
    return {path.parent.name for path in opened if path.parent.parent.name == "releases"}


def _folder(library: Library, task: str) -> Path:
    return library.store.release_folder(library.store.manifest().shards[f"tsk_{task}"].release)


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def _answers(service: SearchEngine) -> list[object]:
    found = [service.search(text, k=20) for text in TEXTS]
    return [([(r.video_id, r.score) for r in a.results], a.routing, a.degraded) for a in found]


# -- a swap -----------------------------------------------------------------------------------------------


def test_a_swap_reads_no_release_but_the_new_one(
    library: Library, service: SearchEngine, backbone: Backbone, read: list[Path]
) -> None:
    service.refresh()
    first = service.snapshots.current()
    assert _releases(read) == set(library.store.manifest().releases)
    everything = [(text, mode, task) for text in TEXTS for mode in first.modes for task in first.shards]
    before = first.encode(everything)
    manifest = library.lay_down("sea", SEA)
    read.clear()
    assert service.refresh()
    assert _releases(read) == {manifest.release}
    swapped, anew = (
        service.snapshots.current(),
        SearchSnapshot.load(IndexSnapshot.open(library.store), backbone),
    )
    assert set(swapped.shards) == {"tsk_birds", "tsk_cars", "tsk_takes", "tsk_sea"}
    pairs = [(text, mode, task) for text in TEXTS for mode in swapped.modes for task in swapped.shards]
    np.testing.assert_allclose(swapped.encode(pairs), anew.encode(pairs), atol=1e-6)
    tasks = [list(swapped.shards)] * len(TEXTS)
    assert swapped.route(TEXTS, tasks) == anew.route(TEXTS, tasks)
    first.query_vectors.clear()  # a request that began with it goes on with it
    np.testing.assert_array_equal(first.encode(everything), before)


def test_an_earlier_release_takes_over_what_the_current_one_holds(
    library: Library, backbone: Backbone, read: list[Path]
) -> None:
    snapshot = IndexSnapshot.open(library.store)
    current = SearchSnapshot.load(snapshot, backbone)
    earlier = snapshot.manifest.shards["tsk_cars"].release
    anew = SearchSnapshot.load(snapshot, backbone, earlier)
    read.clear()
    found = SearchSnapshot.load(snapshot, backbone, earlier, other=current)
    assert _releases(read) == {earlier}
    assert list(found.shards) == list(anew.shards) == ["tsk_birds", "tsk_cars"]
    pairs = [(text, mode, task) for text in TEXTS for mode in anew.modes for task in anew.shards]
    np.testing.assert_array_equal(found.encode(pairs), anew.encode(pairs))


def test_what_was_broken_is_looked_at_again_and_nothing_else(
    library: Library, backbone: Backbone, read: list[Path]
) -> None:
    whole = SearchSnapshot.load(IndexSnapshot.open(library.store), backbone)
    broken, newest = _folder(library, "cars"), library.store.manifest().release
    shutil.move(broken, broken.with_name("away"))
    degraded = SearchSnapshot.load(IndexSnapshot.open(library.store), backbone)
    assert list(degraded.degraded) == ["tsk_cars"]
    shutil.move(broken.with_name("away"), broken)
    read.clear()
    mended = SearchSnapshot.load(
        IndexSnapshot.open(library.store, previous=degraded.index_snapshot), backbone, other=degraded
    )
    assert _releases(read) == {broken.name, newest}
    assert (mended.degraded, mended.task_names) == ({}, whole.task_names)
    pairs = [(text, mode, task) for text in TEXTS for mode in whole.modes for task in whole.shards]
    np.testing.assert_array_equal(mended.encode(pairs), whole.encode(pairs))
    assert mended.route(TEXTS, [list(whole.shards)] * 4) == whole.route(TEXTS, [list(whole.shards)] * 4)


def test_a_generation_that_is_over_leaves_memory_at_once(library: Library, backbone: Backbone) -> None:
    snapshot = IndexSnapshot.open(library.store)
    serving = SearchSnapshot.load(snapshot, backbone)
    serving.encode([("an owl", mode, task) for mode in serving.modes for task in serving.shards])
    gone = weakref.ref(serving.query_vectors.encoder)
    gc.disable()
    try:
        del serving
        assert gone() is None
    finally:
        gc.enable()


# -- what is broken -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "file", "harm"),
    [
        ("birds", "routing.safetensors", "flip"),
        ("cars", "routing.safetensors", "remove"),
        ("cars", "release.json", "cut"),
        ("birds", "release.json", "remove"),
    ],
)
def test_a_task_whose_words_are_lost_is_named_and_the_rest_is_served(
    library: Library, service: SearchEngine, backbone: Backbone, file: str, harm: str, task: str
) -> None:
    served = SearchSnapshot.load(IndexSnapshot.open(library.store), backbone)
    path = _folder(library, task) / file
    if harm == "flip":
        _flip(path)
    elif harm == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        path.unlink()
    assert service.refresh()
    left = service.snapshots.current()
    (why,) = left.degraded.values()
    assert list(left.degraded) == [f"tsk_{task}"]
    assert path.parent.name[:12] in why
    assert "restore it from a backup" in why
    others = [name for name in served.shards if name != f"tsk_{task}"]
    assert list(left.shards) == others
    pairs = [(text, mode, name) for text in TEXTS for mode in left.modes for name in others]
    np.testing.assert_array_equal(left.encode(pairs), served.encode(pairs))
    assert left.route(TEXTS, [others] * len(TEXTS)) == served.route(TEXTS, [others] * len(TEXTS))
    answer = service.search("a red taxi", k=20)
    assert {result.task_id for result in answer.results} == set(others)
    assert len(answer.degraded) == 1
    assert why in service.readiness().model_dump_json().replace("\\", "")


def test_words_of_the_newest_that_are_broken_leave_the_old_one_serving(
    library: Library, service: SearchEngine
) -> None:
    service.refresh()
    before = _answers(service)
    library.lay_down("sea", SEA)
    _flip(_folder(library, "sea") / "routing.safetensors")
    assert not service.refresh()
    assert "routing.safetensors was altered" in str(service.last_error)
    assert _answers(service) == before


def test_a_line_that_does_not_fit_is_refused_by_name(
    library: Library, service: SearchEngine, backbone: Backbone
) -> None:
    """One that was altered before it was published, so that its checksums are right."""
    service.refresh()
    before = _answers(service)
    for said, says in (
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
            path.write_text(json.dumps({**json.loads(path.read_text()), "before": said}))
            release = library.store.adopt_release(staged)
        library.store.publish(release=release, shards=[])
        fresh = SearchEngine(library.settings)
        fresh.refresh()
        assert says in str(fresh.last_error)
        assert _answers(fresh) == before
        assert not service.refresh()
        assert _answers(service) == before
        fresh.close()


def _without(library: Library, task: str) -> tuple[list[ReleaseTask], RoutingProfiles]:
    method = library.method
    kept = [place for place, known in enumerate(method.learned_tasks) if known.task_id != task]
    return [method.learned_tasks[place] for place in kept], RoutingProfiles.from_dense(
        method.profiles.to_dense(kept)
    )


def test_what_is_deleted_and_compacted_leaves_the_line_as_it_is(library: Library, backbone: Backbone) -> None:
    before = SearchSnapshot.load(IndexSnapshot.open(library.store), backbone)
    library.store.delete([int(before.shards["tsk_cars"].ids[0])])
    library.store.compact("tsk_cars")
    for folder in library.store.folders():
        os.utime(folder, (0, 0))
    library.store.collect_garbage()
    after = SearchSnapshot.load(IndexSnapshot.open(library.store), backbone)
    assert {path.name for path in (library.store.root / "releases").iterdir()} == set(before.contributions)
    assert (after.degraded, after.task_names, after.shard_releases) == (
        {},
        before.task_names,
        before.shard_releases,
    )
    assert after.route(TEXTS, [list(after.shards)] * 4) == before.route(TEXTS, [list(before.shards)] * 4)


# -- the old layout -----------------------------------------------------------------------------------------


def test_a_library_of_the_old_layout_answers_alike_and_is_gone_on_from(
    library: Library, service: SearchEngine, backbone: Backbone, tmp_path: Path
) -> None:
    old = ShardStore(tmp_path / "old" / "index")
    _copy(library.store, old, write_schema_2)
    elder = SearchEngine(library.settings.model_copy(update={"data_dir": tmp_path / "old"}))
    assert service.refresh()
    assert elder.refresh()
    assert _answers(elder) == _answers(service)

    library.lay_down("sea", SEA)
    assert service.refresh()
    goes_on = _whole(library.store, str(library.store.manifest().release))
    newest = _adopt(old, goes_on, lambda f, s: write_release(f, s, parent=_before(old)))
    _shard(library.store, old, "tsk_sea", newest)
    assert len(read_lineage(old.release_folder(newest.id)).tasks) == 1
    assert elder.refresh()
    assert _answers(elder) == _answers(service)
    elder.close()


def _before(store: ShardStore) -> ParentRelease:
    manifest = store.manifest()
    return ParentRelease(str(manifest.release), len(manifest.shards))


def _whole(store: ShardStore, release: str) -> ReleaseState:
    folder = store.release_folder
    return read_release(folder(release), read_parent=lambda name: read_lineage(folder(name)))


def _adopt(
    store: ShardStore, state: ReleaseState, write: Callable[[Path, ReleaseState], None]
) -> ReleaseEntry:
    with store.staging() as staged:
        write(staged, state)
        return store.adopt_release(staged)


def _copy(source: ShardStore, target: ShardStore, write: Callable[[Path, ReleaseState], None]) -> None:
    """All tasks, one after the other, with releases of another layout."""
    for task, entry in source.manifest().shards.items():
        release = _adopt(target, _whole(source, entry.release), write)
        _shard(source, target, task, release)


def _shard(source: ShardStore, target: ShardStore, task: str, release: ReleaseEntry) -> None:
    entry = source.manifest().shards[task]
    vectors = IndexSnapshot.open(source).shard(task, fingerprint=entry.fingerprint)
    shard = target.write_shard(
        task=task,
        release=release.id,
        fingerprint=entry.fingerprint,
        ids=vectors.ids,
        vectors=vectors.vectors(vectors.ids),
    )
    target.publish(release=release, shards=[shard])
