"""The independent checker reports each way in which a library can be damaged."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from benchmarks.chaos.library_checker import CatalogReader, ExpectedVideos, LibraryChecker, check_epochs
from index.shard_store import ShardStore
from service.catalog.database import dispose, session_scope
from service.catalog.tables import Task, Video
from service.search.library_words import write_words
from tests.index.disk_faults import flip_byte

DIM = 8
LEARNED, APPENDED, DELETED = (1, 2, 3, 4), (5, 6), 4
MOMENT = (1 << 62) + (1 << 16)


def _unit(count: int, seed: int) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(count, DIM)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def _video(number: int, **fields: Any) -> Video:
    values = {"status": "accepted", "effective_split": "train", **fields}
    return Video(vector_id=number, id=f"v{number}", task_id="tsk_1", uri=f"{number}.mp4", **values)


def write_library(data: Path) -> None:
    """Write the library."""
    store = ShardStore(data / "index")
    staged = store.stage()
    (staged / "release.json").write_text("{}")
    release = store.adopt_release(staged)

    def write(ids: tuple[int, ...], seed: int) -> Any:
        return store.write_shard(
            task="tsk_1",
            release=release.id,
            fingerprint="encoder",
            ids=np.array(ids, np.int64),
            vectors=_unit(len(ids), seed),
        )

    store.publish(release=release, shards=[write(LEARNED, 1)], segments=[write((MOMENT,), 3)])
    store.append(write(APPENDED, 2))
    store.delete([DELETED], task="tsk_1")
    with session_scope(write=True) as session:
        session.add(
            Task(
                id="tsk_1",
                position=1,
                name="day",
                method="strata",
                state="ready",
                release_id=release.id,
                created_at=datetime.now(UTC),
            )
        )
        session.flush()
        session.add_all(_video(number) for number in (*LEARNED, *APPENDED) if number != DELETED)
        session.add(_video(7, status="rejected", reason="not a video", effective_split=None))


class Library:
    """A library with one domain: four learned videos and a moment, two appended ones, and one deleted."""

    def __init__(self, data: Path) -> None:
        self.data, self.index = data, data / "index"
        self.expected = ExpectedVideos(
            stored={f"v{number}" for number in (*LEARNED, *APPENDED, 7) if number != DELETED},
            deleted={f"v{DELETED}"},
            uris={"5.mp4"},
        )

    def violations(self) -> list[str]:
        with closing(sqlite3.connect(self.data / "catalog.sqlite3")) as connection:
            return LibraryChecker(self.data, CatalogReader(connection)).check(self.expected)

    def sql(self, statement: str) -> None:
        with closing(sqlite3.connect(self.data / "catalog.sqlite3")) as connection:
            connection.execute(statement)
            connection.commit()

    def edit_manifest(self, edit: Callable[[dict[str, Any]], None]) -> None:
        path = self.index / "manifest.json"
        manifest = json.loads(path.read_text())
        edit(manifest)
        path.write_text(json.dumps(manifest))

    def segment_file(self, name: str) -> Path:
        """Return the segment file of the learned videos."""
        manifest = json.loads((self.index / "manifest.json").read_text())
        return self.index / "shards" / manifest["shards"]["tsk_1"]["id"] / name


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a library that the tests of this module copy."""
    return tmp_path_factory.mktemp("saved") / "data"


@pytest.fixture
def library(saved: Path, tmp_path: Path, settings_factory: Callable[..., Any]) -> Library:
    if not saved.exists():
        write_library(settings_factory(saved.parent).data_dir)
        write_words()
        dispose()
    shutil.copytree(saved, tmp_path / "data")
    return Library(tmp_path / "data")


def _repeat_segment(manifest: dict[str, Any]) -> None:
    manifest["appended"]["tsk_1"].append(manifest["appended"]["tsk_1"][0])


def _add_tombstones(manifest: dict[str, Any]) -> None:
    manifest["tombstones"].update(other=manifest["tombstones"]["tsk_1"] | {"task": "other"})


def _swap_vectors(library: Library) -> None:
    index = faiss.read_index(str(library.segment_file("vectors.faiss")))
    index.reset()
    index.add(np.ones((len(LEARNED), DIM), np.float32))
    faiss.write_index(index, str(library.segment_file("vectors.faiss")))


def _leave_folder(library: Library, seconds: float) -> None:
    folder = library.index / "tmp" / "left"
    folder.mkdir(parents=True)
    os.utime(folder, (time.time() - seconds,) * 2)


def _leave_thumbnail(library: Library) -> None:
    (library.data / "thumbnails").mkdir(exist_ok=True)
    thumbnail = library.data / "thumbnails" / f"v{DELETED}.jpg"
    thumbnail.touch()
    os.utime(thumbnail, (time.time() - 3700,) * 2)


DAMAGES: dict[str, tuple[Callable[[Library], object], str]] = {
    "altered vectors": (
        lambda lib: flip_byte(lib.segment_file("vectors.faiss")),
        "differs from its checksum",
    ),
    "altered words": (
        lambda lib: [*map(flip_byte, lib.index.glob("words/*/*"))],
        "differs from its checksum",
    ),
    "altered ids": (lambda lib: flip_byte(lib.segment_file("ids.npy")), "ids.npy differs from its checksum"),
    "missing file": (lambda lib: lib.segment_file("ids.npy").unlink(), "cannot be read"),
    "unreadable vectors": (
        lambda lib: lib.segment_file("vectors.faiss").write_bytes(b"x"),
        "vectors cannot be",
    ),
    "vectors of wrong length": (_swap_vectors, "whose length is not 1"),
    "no JSON": (lambda lib: (lib.index / "manifest.json").write_text("{"), "manifest.json is not JSON"),
    "lost manifest": (lambda lib: (lib.index / "manifest.json").unlink(), "no segment"),
    "segment listed twice": (lambda lib: lib.edit_manifest(_repeat_segment), "is in 2 segments"),
    "foreign tombstones": (
        lambda lib: lib.edit_manifest(_add_tombstones),
        "name 1 vectors that its shard does not",
    ),
    "old leftover": (lambda lib: _leave_folder(lib, 3700), "older than its grace time"),
    "thumbnail of a deleted video": (_leave_thumbnail, "belongs to no video"),
}
# Parts of the manifest that are lost.
LOST = {
    "tombstones": "belongs to no accepted video",
    "appended": "v5 was acknowledged, and no segment has it",
    "releases": "does not list its current release",
    "shards appended tombstones": "the manifest has no shard of it",
}
STATEMENTS = {
    "DELETE FROM videos WHERE id = 'v5'": "v5 was acknowledged and is lost",
    "DELETE FROM videos WHERE id = 'v1'": "vector 1 of task tsk_1 belongs to no accepted video",
    "INSERT INTO videos (vector_id, id, task_id, uri, captions, metadata, added_at, status, is_rejection_final) "
    f"VALUES ({DELETED}, 'v{DELETED}', 'tsk_1', 'x', '[]', '{{}}', '2026-01-01', 'rejected', FALSE)": (
        f"v{DELETED} was deleted and is in the catalog"
    ),
    "UPDATE videos SET reason = NULL WHERE id = 'v7'": "rejected without a reason",
    "UPDATE videos SET status = 'pending' WHERE id = 'v7'": "v7 is pending, and its task is ready",
    "UPDATE videos SET status = 'accepted' WHERE id = 'v7'": "v7 is accepted, and its vector is in no segment",
    "UPDATE videos SET uri = 'z' WHERE id = 'v5'": "5.mp4 is stored 0 times",
    "UPDATE videos SET uri = '5.mp4' WHERE id = 'v6'": "5.mp4 is stored 2 times",
    "UPDATE edits SET last_edit = -1": "the words contain edit 0",
    "UPDATE tasks SET state = 'indexing'": "day is stuck in indexing",
    "UPDATE tasks SET state = 'failed'": "day is failed",
    "UPDATE tasks SET lease_owner = 'w'": "still leased",
    "UPDATE tasks SET release_id = 'r'": "day has another release in the catalog than in the index",
}


def test_intact_library_has_no_violation(library: Library) -> None:
    """Neither with a recent leftover, nor after the moments of a deleted video are gone."""
    _leave_folder(library, 3500)
    assert library.violations() == []
    ShardStore(library.index).delete([1], task="tsk_1")
    library.sql("DELETE FROM videos WHERE id = 'v1'")
    library.expected.stored.discard("v1")
    assert library.violations() == []


@pytest.mark.parametrize("damage", [*DAMAGES, *LOST, *STATEMENTS])
def test_damage_is_reported(library: Library, damage: str) -> None:
    if damage in DAMAGES:
        cause, sentence = DAMAGES[damage]
        cause(library)
    elif sentence := LOST.get(damage, ""):
        library.edit_manifest(lambda manifest: manifest.update({part: {} for part in damage.split()}))
    else:
        sentence = STATEMENTS[damage]
        library.sql(damage)
    assert any(sentence in violation for violation in library.violations()), library.violations()


def test_repeated_epoch_in_progress_is_permitted_and_an_earlier_one_is_reported() -> None:
    assert check_epochs({"a": [1, 1, 2, 3, 3, 4]}) == []
    assert check_epochs({"a": [1, 2, 3, 2, 3]}) == [
        "task a continued in epoch 2 after it had reached epoch 3"
    ]
