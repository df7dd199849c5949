"""Backups: a copy is complete or absent, even during a publication, and is restored unchanged."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import shutil
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select

from cli.commands import doctor
from index.index_snapshot import IndexSnapshot
from index.shard_store import ShardStore
from service.backups import backup_catalog
from service.catalog.database import dispose, session_scope
from service.catalog.tables import Task
from service.core.settings import settings
from service.search.library_words import write_words
from tests.audited_changes import audit_entries
from tests.cli.invocation import run
from tests.index.disk_faults import no_file_beyond


def _ready() -> set[str]:
    with session_scope() as session:
        return set(session.scalars(select(Task.id).where(Task.state == "ready")))


def _ranking(store: ShardStore, query: np.ndarray) -> dict[str, list[int]]:
    snapshot = IndexSnapshot.open(store)
    return {
        task: snapshot.shard(task, fingerprint=entry.fingerprint).search(query, 3).ids.tolist()
        for task, entry in snapshot.manifest.shards.items()
    }


@pytest.fixture
def copy(two: ShardStore, tmp_path: Path) -> Path:
    """A backup of the library."""
    assert run("snapshot", tmp_path / "copy").exit_code == 0
    return tmp_path / "copy"


@pytest.mark.parametrize("name", ["copy", "copy.tar"])
def test_restored_library_equals_the_original(two: ShardStore, tmp_path: Path, name: str) -> None:
    query = np.eye(8, dtype=np.float32)[2]
    expected, manifest, ready = _ranking(two, query), two.manifest(), _ready()
    written = run("snapshot", tmp_path / "deep" / name, "--json")
    assert written.exit_code == 0, written.output
    assert [path.name for path in (tmp_path / "deep").iterdir()] == [name]
    shutil.rmtree(two.root)
    outcome = run("restore", tmp_path / "deep" / name, "--data", tmp_path / "other", "--json")
    assert outcome.exit_code == 0, outcome.output
    assert json.loads(outcome.stdout)["files"] == json.loads(written.stdout)["files"]
    dispose()
    store = ShardStore(settings().index_dir)
    assert settings().data_dir == tmp_path / "other"
    assert (store.manifest(), _ready(), _ranking(store, query)) == (manifest, ready, expected)
    assert "words.json is missing, so a worker writes the word index again" in doctor.check_index(settings())
    write_words()
    assert doctor.check_index(settings()).endswith("all checksums correct, consistent with the catalog")
    assert not list((tmp_path / "other").glob(".restore-*"))
    (entry,) = audit_entries(action=["snapshot"])
    assert (entry.action, entry.actor_kind) == ("snapshot.restore", "cli")
    assert entry.target == str(tmp_path / "deep" / name)


@pytest.mark.parametrize(("name", "mode"), [("copy", 0o700), ("copy.tar", 0o600)])
def test_backup_is_readable_for_its_owner_only(two: ShardStore, tmp_path: Path, name: str, mode: int) -> None:
    """A catalog contains webhook secrets and password hashes."""
    before = os.umask(0)
    try:
        outcome = run("snapshot", tmp_path / name)
    finally:
        os.umask(before)
    assert outcome.exit_code == 0, outcome.output
    assert stat.S_IMODE((tmp_path / name).stat().st_mode) == mode
    if name.endswith(".tar"):
        with tarfile.open(tmp_path / name) as archive:
            assert {member.mode for member in archive} == {mode}
    restored = run("restore", tmp_path / name, "--data", tmp_path / "other")
    assert restored.exit_code == 0, restored.output


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["", ".tar"])
def test_full_disk_leaves_no_files(two: ShardStore, tmp_path: Path, suffix: str) -> None:
    place = tmp_path / "copies"
    assert run("snapshot", place / f"whole{suffix}").exit_code == 0
    files = [path for path in place.rglob("*") if path.is_file()]
    sizes = sorted({path.stat().st_size for path in files})
    for size in sizes:
        with no_file_beyond(size - 1):
            outcome = run("snapshot", place / f"copy{suffix}")
        assert outcome.exit_code == 1
        assert "The backup failed" in outcome.output
        assert [path.name for path in place.iterdir()] == [f"whole{suffix}"]
    if not suffix:
        for size in sizes:
            with no_file_beyond(size - 1):
                outcome = run("restore", place / "whole", "--data", tmp_path / "other")
            assert outcome.exit_code == 1, size
            assert not (tmp_path / "other" / "index").exists()
            assert not (tmp_path / "other" / "catalog.sqlite3").exists()
            assert not list((tmp_path / "other").glob(".restore-*"))


def test_backup_is_published_with_its_audit_entry(
    two: ShardStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("snapshot", tmp_path / "copy.tar").exit_code == 0
    (entry,) = audit_entries(action=["snapshot"])
    assert (entry.action, entry.actor_kind) == ("snapshot.create", "cli")
    assert entry.target == str(tmp_path / "copy.tar")
    assert entry.details["bytes"] > 0

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", refuse)
        assert run("snapshot", tmp_path / "second.tar").exit_code == 1
    assert [entry.target for entry in audit_entries(action=["snapshot"])] == [entry.target]


def test_damaged_library_is_not_backed_up(two: ShardStore, tmp_path: Path) -> None:
    path = two.shard_folder(two.manifest().shards["tsk_a"].id) / "ids.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"\7")
    outcome = run("snapshot", tmp_path / "copies" / "copy")
    assert outcome.exit_code == 1
    assert "ids.npy differs from the published file" in " ".join(outcome.output.split())
    assert not list((tmp_path / "copies").iterdir())


def _flip_vectors(copy: Path) -> None:
    path = next(copy.rglob("vectors.faiss"))
    path.write_bytes(path.read_bytes()[:-1] + b"\1")


def _edit(copy: Path, change: Callable[[dict[str, Any]], object]) -> None:
    body = json.loads((copy / "snapshot.json").read_text())
    change(body)
    (copy / "snapshot.json").write_text(json.dumps(body))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_flip_vectors, r"vectors\.faiss differs"),
        (lambda copy: next(copy.rglob("ids.npy")).unlink(), "ids.npy"),
        (lambda copy: (copy / "snapshot.json").unlink(), "not a backup"),
        (lambda copy: (copy / "snapshot.json").write_text("[]"), "not readable"),
        (lambda copy: _edit(copy, lambda body: body.update(schema=9)), "schema 9"),
        (
            lambda copy: _edit(copy, lambda body: body["files"].pop("index/manifest.json")),
            "index/manifest.json is missing",
        ),
        *(
            (
                lambda copy, name=name: _edit(
                    copy, lambda body: body["files"].update({name: {"bytes": 0, "sha256": ""}})
                ),
                "outside the data folder",
            )
            for name in ("index/../../x", "index/\0", "/etc/x")
        ),
        (
            lambda copy: _edit(
                copy,
                lambda body: [body["files"].pop(name) for name in list(body["files"]) if "releases" in name],
            ),
            "release .* is missing",
        ),
    ],
)
def test_damaged_backup_restores_nothing(
    copy: Path, tmp_path: Path, damage: Callable[[Path], object], message: str
) -> None:
    damage(copy)
    outcome = run("restore", copy, "--data", tmp_path / "other")
    assert outcome.exit_code == 1
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["run"]
    assert re.search(message, " ".join(outcome.output.split()))


def test_archive_cannot_write_through_a_link(copy: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "evil.tar", "w") as archive:
        content = (copy / "snapshot.json").read_bytes()
        member = tarfile.TarInfo("snapshot.json")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
        link = tarfile.TarInfo("index")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path)
        archive.addfile(link)
    outcome = run("restore", tmp_path / "evil.tar", "--data", tmp_path / "other")
    assert outcome.exit_code == 1
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["run"]


def test_catalog_that_cannot_be_installed_leaves_no_index(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = backup_catalog.sync

    def refuse_folders(path: Path) -> None:
        if path.is_dir():
            raise OSError(errno.EIO, "broken")
        sync(path)

    with monkeypatch.context() as patch:
        patch.setattr(backup_catalog, "sync", refuse_folders)
        outcome = run("restore", copy, "--data", tmp_path / "other")
    assert (outcome.exit_code, "Nothing was restored" in outcome.output) == (1, True), outcome.output
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["run"]
    assert run("restore", copy, "--data", tmp_path / "other").exit_code == 0


def test_existing_files_are_not_overwritten(two: ShardStore, copy: Path) -> None:
    before = two.manifest()
    again = run("snapshot", copy)
    assert (again.exit_code, "already exists" in again.output) == (1, True)
    onto = run("restore", copy)
    assert (onto.exit_code, "already exists" in onto.output) == (1, True)
    assert two.manifest() == before


def test_leftover_write_ahead_log_prevents_the_restore(copy: Path, tmp_path: Path) -> None:
    left = tmp_path / "other" / "catalog.sqlite3-wal"
    left.parent.mkdir()
    left.write_bytes(b"pages of another catalog")
    outcome = run("restore", copy, "--data", tmp_path / "other")
    assert (outcome.exit_code, "catalog.sqlite3-wal already exists" in outcome.output) == (1, True)
    assert sorted(path.name for path in left.parent.iterdir()) == ["catalog.sqlite3-wal", "run"]


def test_catalog_on_another_file_system_is_restored(
    two: ShardStore, copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready, manifest = _ready(), two.manifest()
    far = tmp_path / "far"
    rename = os.rename

    def as_if_mounted(source: str | Path, target: str | Path) -> None:
        if Path(source).is_relative_to(far) != Path(target).is_relative_to(far):
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        rename(source, target)

    monkeypatch.setattr(os, "rename", as_if_mounted)
    monkeypatch.setenv("CINESTRATA_DATABASE_URL", f"sqlite:///{far}/deep/catalog.sqlite3")
    outcome = run("restore", copy, "--data", tmp_path / "other")
    assert outcome.exit_code == 0, outcome.output
    dispose()
    assert (ShardStore(settings().index_dir).manifest(), _ready()) == (manifest, ready)
    assert [path.name for path in far.glob("deep/.restore-*")] == []


def test_unreachable_database_fails_without_files(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CINESTRATA_DATABASE_URL", "postgresql://nobody@nowhere.invalid/cinestrata")
    outcome = run("snapshot", tmp_path / "copies" / "other")
    assert (outcome.exit_code, "The backup failed" in outcome.output) == (1, True), outcome.output
    assert list((tmp_path / "copies").iterdir()) == []
    assert run("snapshot", "--index-only", tmp_path / "index").exit_code == 0
    outcome = run("restore", copy, "--data", tmp_path / "other")
    assert (outcome.exit_code, "Nothing was restored" in outcome.output) == (1, True), outcome.output
    assert not (tmp_path / "other" / "index").exists()
