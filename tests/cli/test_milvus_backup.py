"""Backups of libraries whose vectors are in Milvus: restored with intact vectors only."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import Result

from cli.commands import doctor
from index.index_snapshot import IndexSnapshot
from index.milvus import milvus_connection
from index.milvus.milvus_partitions import split_place
from index.milvus.milvus_vector_store import MilvusVectorStore
from index.shard_store import ShardStore
from service.catalog.database import dispose
from service.core.settings import Settings, settings
from service.storage import index_manifest
from service.storage.index_manifest import library_store
from tests.cli.invocation import run
from tests.milvus import Milvus, fresh_milvus

pytest.importorskip("milvus_lite")
pytestmark = pytest.mark.slow

QUERY = np.eye(8, dtype=np.float32)[2]


@pytest.fixture
def milvus(tmp_path: Path) -> Iterator[Milvus]:
    """A Milvus server for one test, which may damage its vectors."""
    with fresh_milvus(tmp_path) as server:
        yield server


@pytest.fixture
def original(
    folder: Settings, publish_task: Callable[..., Any], milvus: Milvus, monkeypatch: pytest.MonkeyPatch
) -> ShardStore:
    """A library of two tasks whose vectors are in Milvus."""
    publish_task("a", 5)
    publish_task("b", 3)
    monkeypatch.setenv("CINESTRATA_MILVUS__URI", milvus.uri)
    monkeypatch.setattr(index_manifest, "MILVUS_TIMEOUT_SECONDS", 30)  # a busy machine answers late
    monkeypatch.setattr(milvus_connection, "RETRY_SECONDS", 0)
    settings.cache_clear()
    _require_success("move", "--to", "milvus")
    for unused in folder.index_dir.rglob("*.faiss"):  # the garbage collector removes them after an hour
        unused.unlink()
    return library_store(settings())


def _run(*arguments: object) -> Result:
    outcome = run(*arguments)
    dispose()
    return outcome


def _require_success(*arguments: object) -> str:
    outcome = _run(*arguments)
    assert outcome.exit_code == 0, outcome.output
    return str(outcome.output)


def _ranking(store: ShardStore) -> dict[str, list[int]]:
    snapshot = IndexSnapshot.open(store)
    return {
        task: snapshot.shard(task, fingerprint=entry.fingerprint).search(QUERY, 3).ids.tolist()
        for task, entry in snapshot.manifest.shards.items()
    }


def _require_nothing_restored(target: Path) -> None:
    assert not [path for path in target.rglob("*") if path.is_file() and path.name != "up.lock"]


def test_restored_library_finds_the_vectors_in_milvus(original: ShardStore, tmp_path: Path) -> None:
    expected, manifest = _ranking(original), original.manifest()
    output = _require_success("snapshot", tmp_path / "copy.tar")
    assert "The vectors of 2 domains are in Milvus, so the backup has only their IDs" in output.replace(
        "\n", " "
    )
    shutil.rmtree(original.root)
    _require_success("restore", tmp_path / "copy.tar", "--data", tmp_path / "other")
    assert settings().data_dir == tmp_path / "other"
    restored = library_store(settings())
    assert (restored.manifest(), _ranking(restored)) == (manifest, expected)
    assert "all checksums correct" in doctor.check_index(settings())


def test_restore_refuses_vectors_that_differ_in_milvus(original: ShardStore, tmp_path: Path) -> None:
    _require_success("snapshot", tmp_path / "copy")
    entry = original.manifest().shards["tsk_b"]
    collection, partition = split_place(entry.place)
    assert isinstance(original.remote, MilvusVectorStore)
    original.remote.partitions.delete_rows(collection, partition, f"id == {entry.first_id}")
    outcome = _run("restore", tmp_path / "copy", "--data", tmp_path / "other")
    assert outcome.exit_code == 1
    assert "Nothing was restored" in outcome.output
    assert "tsk_b" in outcome.output
    _require_nothing_restored(tmp_path / "other")
