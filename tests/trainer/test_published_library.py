"""Published library: the newest release is read with its ancestors, and damaged releases are named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from index.files.store_folder import list_manifest_files
from index.integrity_audit import audit
from index.shard_store import ShardStore
from models.backbones.backbone_loading import tiny_backbone
from models.encoders.encoder_registry import split_training_state
from models.releases.release_files import write_release, write_training_state
from models.releases.release_state import ParentRelease, ReleaseState, ReleaseTask
from models.routing.routing_profiles import VOCABULARY, RoutingProfiles, profile_row
from trainer.errors import LibraryDamaged
from trainer.methods.base import MethodError
from trainer.methods.finetune import Finetune, FinetuneConfig
from trainer.published_library import Library


def _state(tasks: int) -> ReleaseState:
    return ReleaseState(
        method="zero_shot",
        kind="frozen",
        backbone="tiny",
        backbone_fingerprint="b",
        fingerprint="f",
        frames=1,
        tasks=[ReleaseTask(f"t{n}", f"t{n}", "f") for n in range(tasks)],
        config={},
        profiles=RoutingProfiles.from_dense(np.eye(tasks, VOCABULARY)),
    )


def _publish(store: ShardStore, state: ReleaseState) -> str:
    library, (served, tensors) = Library(store), split_training_state(state)
    training = None
    if tensors:
        with store.staging() as staged:
            write_training_state(staged, tensors)
            training = store.adopt_release(staged)
    with store.staging() as staged:
        write_release(staged, served, parent=library.parent_release(state))
        release = store.adopt_release(staged)
    outdated = library.outdated_releases(state)
    store.publish(release=release, shards=[], training=training, outdated=outdated)
    return release.id


@pytest.fixture
def store(tmp_path: Path) -> ShardStore:
    store = ShardStore(tmp_path / "index")
    for tasks in (1, 2, 3):
        _publish(store, _state(tasks))
    return store


def test_newest_release_is_read_with_its_ancestors(store: ShardStore) -> None:
    library = Library(store)
    current = library.release(str(library.manifest.release))
    assert current.tasks == _state(3).tasks
    np.testing.assert_array_equal(current.profiles.to_dense(), np.eye(3, VOCABULARY))


def test_profiles_of_other_tokens_than_word_pieces_are_counted_again(tmp_path: Path) -> None:
    """As version 1.0.0 stored them for backbones other than small."""
    store = ShardStore(tmp_path / "index")
    for tasks in (1, 2):
        state = _state(tasks)
        _publish(store, replace(state, profiles=RoutingProfiles.from_dense(np.eye(tasks, 49_408))))
    library = Library(store, lambda task: ["a heron", f"a lake {task}"])
    current = library.release(str(library.manifest.release))
    assert current.uncounted == {"t0", "t1"}
    for row, task in enumerate(("t0", "t1")):
        tokens, values = profile_row(["a heron", f"a lake {task}"], 1.0)
        profile = current.profiles.part(row, row + 1)
        assert (profile.tokens.tolist(), profile.values.tolist()) == (tokens.tolist(), values.tolist())
    learned = RoutingProfiles.concatenate([current.profiles, _state(3).profiles.part(2, 3)])
    _publish(store, replace(_state(3), profiles=learned))
    library = Library(store, lambda task: ["a heron", f"a lake {task}"])
    continued = library.release(str(library.manifest.release))
    assert continued.uncounted == {"t0", "t1"}
    np.testing.assert_array_equal(continued.profiles.to_dense(), learned.to_dense())


def test_parent_release_is_the_newest_release_that_is_extended(store: ShardStore) -> None:
    library = Library(store)
    newest = str(store.manifest().release)
    assert library.parent_release(_state(4)) == ParentRelease(newest, 3)
    other = _state(4)
    other.tasks[0] = ReleaseTask("t0", "t0", "another encoder")
    assert [library.parent_release(state) for state in (_state(3), _state(2), other)] == [None] * 3
    assert Library(ShardStore(store.root / "empty")).parent_release(_state(1)) is None


def test_damaged_ancestor_is_named(store: ShardStore) -> None:
    library = Library(store)
    first = next(name for name in store.manifest().releases if len(library.release(name).tasks) == 1)
    path = store.release_folder(first) / "routing.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    damaged = Library(store)
    with pytest.raises(LibraryDamaged, match=f"release {first[:12]} was altered or is missing"):
        damaged.release(str(damaged.manifest.release))


def test_training_state_stays_in_the_two_newest_releases_and_the_served_one(tmp_path: Path) -> None:
    store, published = ShardStore(tmp_path / "index"), []
    for tasks in range(1, 6):
        tensors = {"clip.visual.proj": np.full(2, tasks), "global.queues.oldest": np.full(3, tasks)}
        published.append(_publish(store, replace(_state(tasks), kind="tower", tensors=tensors)))
        if tasks == 1:
            store.serve(published[0])
            other = replace(_state(1), kind="tower", backbone_fingerprint="c", tensors=tensors)
            other.tasks[0] = ReleaseTask("u0", "u0", "f")
            published.append(_publish(store, other))  # of another lineage
            store.serve(published[0])
    manifest = store.manifest()
    assert list(manifest.training) == [published[row] for row in (0, 1, 4, 5)]
    library = Library(store)
    for row, tasks in ((0, 1), (4, 4), (5, 5)):
        assert library.release(published[row]).tensors["global.queues.oldest"].tolist() == [tasks] * 3
    old = library.release(published[3])
    assert old.is_partial
    assert list(old.tensors) == ["clip.visual.proj"]
    backbone = tiny_backbone(1)
    with pytest.raises(MethodError, match="its training state was dropped"):
        Finetune.resume(backbone, FinetuneConfig(), old)
    assert not audit(store).problems
    folders = {path.parent.name for path, _ in list_manifest_files(store, manifest).values()}
    assert folders == {*published, *(entry.id for entry in manifest.training.values())}
    (store.release_folder(manifest.training[published[5]].id) / "training.safetensors").write_bytes(b"")
    with pytest.raises(LibraryDamaged, match="altered or is missing"):
        Library(store).release(published[5])
    assert len(audit(store).problems) == 1
