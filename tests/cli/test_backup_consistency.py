"""A backup's catalog and index show the same state; new videos and uploads are apart from those of a restored one."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select

from index.files.durable_files import exclusive_lock
from index.shard_store import ShardStore
from service.backups import snapshots
from service.catalog.database import dispose, session_scope
from service.catalog.tables import Task, Video
from service.core.settings import Settings, settings
from service.tasks import uploaded_videos
from tests.cli.invocation import run

Publish = Callable[..., Any]


def _require_success(*arguments: object) -> None:
    outcome = run(*arguments)
    assert outcome.exit_code == 0, outcome.output
    dispose()


@pytest.fixture(params=["sqlite", "postgresql"])
def publish(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Publish:
    """Publishes a task in a library with the published tasks a and b, on each database."""
    if request.param == "postgresql":
        url = request.getfixturevalue("fresh_postgres_url")
        monkeypatch.setenv("CINESTRATA_DATABASE_URL", url)
    publish: Publish = request.getfixturevalue("publish_task")
    publish("a", 5)
    publish("b", 3)
    return publish


def _restored_tasks(copy: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[set[str], set[str]]:
    """Restore with SQLite, and return the tasks in the catalog and in the manifest."""
    dispose()
    monkeypatch.delenv("CINESTRATA_DATABASE_URL", raising=False)
    _require_success("restore", copy, "--data", target)
    with session_scope() as session:
        return set(session.scalars(select(Task.id))), set(ShardStore(settings().index_dir).manifest().shards)


def test_task_published_during_the_copy_is_in_neither_part(
    publish: Publish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = snapshots.open_catalog_copy

    @contextmanager
    def publish_before_the_copy(configured: Settings) -> Iterator[Callable[[Path], None] | None]:
        with opened(configured) as write:

            def write_later(target: Path) -> None:
                publish("between")
                assert write is not None
                write(target)

            yield write_later

    monkeypatch.setattr(snapshots, "open_catalog_copy", publish_before_the_copy)
    assert run("snapshot", tmp_path / "copy").exit_code == 0
    catalog, manifest = _restored_tasks(tmp_path / "copy", tmp_path / "other", monkeypatch)
    assert catalog == {"tsk_a", "tsk_b"}
    assert manifest == {"tsk_a", "tsk_b"}


def test_catalog_and_manifest_are_read_under_the_lock(
    publish: Publish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[tuple[str, bool]] = []
    lock = settings().index_dir / "write.lock"
    opened, read = snapshots.open_catalog_copy, snapshots._published_manifest

    def is_locked() -> bool:
        def take() -> bool:
            try:
                with exclusive_lock(lock, 0):
                    return False
            except TimeoutError:
                return True

        with ThreadPoolExecutor(1) as other_thread:
            return other_thread.submit(take).result()

    @contextmanager
    def open_catalog(configured: Settings) -> Iterator[Callable[[Path], None] | None]:
        with opened(configured) as write:
            steps.append(("catalog", is_locked()))
            assert write is not None
            yield lambda target: (steps.append(("copy", is_locked())), write(target))[1]

    def read_manifest(store: ShardStore) -> Any:
        steps.append(("manifest", is_locked()))
        return read(store)

    monkeypatch.setattr(snapshots, "open_catalog_copy", open_catalog)
    monkeypatch.setattr(snapshots, "_published_manifest", read_manifest)
    assert run("snapshot", tmp_path / "copy").exit_code == 0
    assert steps[-3:] == [("catalog", True), ("manifest", True), ("copy", False)]


def _forget_videos(copy: Path) -> None:
    """Remove task b from a backup's catalog, as if it had been published after the catalog was copied."""
    catalog, description = copy / "catalog.sqlite3", copy / "snapshot.json"
    with closing(sqlite3.connect(catalog)) as connection:
        for table, column in (("videos", "task_id"), ("shards", "task_id"), ("releases", "task_id")):
            connection.execute(f"DELETE FROM {table} WHERE {column} = 'tsk_b'")
        connection.execute("DELETE FROM tasks WHERE id = 'tsk_b'")
        connection.execute("UPDATE sqlite_sequence SET seq = 5 WHERE name = 'videos'")
        connection.commit()
    body = json.loads(description.read_text())
    content = catalog.read_bytes()
    body["files"]["catalog.sqlite3"] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    description.write_text(json.dumps(body))


def _next_vector_id() -> int:
    with session_scope(write=True) as session:
        video = Video(id="new", task_id="tsk_a", uri="new.mp4")
        session.add(video)
        session.flush()
        session.rollback()
        return video.vector_id


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_videos_after_a_restore_have_ids_above_those_of_the_index(
    publish_task: Publish,
    tmp_path: Path,
    database: str,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """An index restored on its own may contain videos that the catalog does not know."""
    publish_task("a", 5)
    publish_task("b", 3)
    _require_success("snapshot", tmp_path / "copy")
    _forget_videos(tmp_path / "copy")
    if database == "postgresql":
        monkeypatch.setenv("CINESTRATA_DATABASE_URL", request.getfixturevalue("fresh_postgres_url"))
    _require_success("restore", tmp_path / "copy", "--data", tmp_path / "other")
    assert _next_vector_id() == 9
    assert ShardStore(settings().index_dir).last_video_id() == 8


def test_ids_of_moments_do_not_hide_higher_ids_of_videos(folder: Settings, publish_task: Publish) -> None:
    publish_task("a", 5)
    store = ShardStore(folder.index_dir)
    pinned = store.manifest().shards["tsk_a"]
    ids = np.array([6, 7, (1 << 62) + (6 << 16)], np.int64)
    for part in (ids[:2], ids[2:]):
        vectors = np.eye(8, dtype=np.float32)[: len(part)]
        store.append(
            store.write_shard(
                task="tsk_a",
                release=pinned.release,
                fingerprint=pinned.fingerprint,
                ids=part,
                vectors=vectors,
            )
        )
    store.compact("tsk_a")
    assert store.last_video_id() == 7


def test_index_restored_after_a_dump_raises_the_counter(
    publish_task: Publish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_postgres_url: str
) -> None:
    """The catalog dump is older than the index, which may therefore contain videos that the dump does not know."""
    publish_task("a", 5)
    _require_success("snapshot", tmp_path / "dump")
    publish_task("b", 3)
    _require_success("snapshot", tmp_path / "index", "--index-only")
    monkeypatch.setenv("CINESTRATA_DATABASE_URL", fresh_postgres_url)
    _require_success("restore", tmp_path / "dump", "--data", tmp_path / "dumped")
    _require_success("restore", tmp_path / "index", "--data", tmp_path / "other")
    assert _next_vector_id() == 9


@pytest.mark.slow
def test_backup_during_a_long_change_can_be_repeated(
    publish: Publish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "_LOCK_SECONDS", 0.05)

    def hold_the_lock() -> Any:
        with exclusive_lock(settings().index_dir / "write.lock"), ThreadPoolExecutor(1) as other_thread:
            return other_thread.submit(run, "snapshot", tmp_path / "copies" / "copy").result()

    refused = hold_the_lock()
    assert (refused.exit_code, list((tmp_path / "copies").iterdir())) == (1, [])
    assert "Another process is changing the index" in " ".join(refused.output.split())
    assert run("snapshot", tmp_path / "copies" / "copy").exit_code == 0


STORED, NEWER = "0123456789abcdef", "tsk_00000000000000aa"
DAY = timedelta(days=1).total_seconds()


def _restore(backup: Path, data: Path) -> str:
    for name in ("index", "catalog.sqlite3", "catalog.sqlite3-wal", "catalog.sqlite3-shm"):
        path = data / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    outcome = run("restore", str(backup), "--data", str(data))
    assert outcome.exit_code == 0, outcome.output
    return " ".join(outcome.output.split())


def test_uploads_newer_than_the_backup_stay_for_a_day(
    folder: Settings, publish_task: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files are older than a day, and the workers start right after the restore."""
    publish_task(STORED)
    backup = tmp_path / "library.tar"
    assert run("snapshot", str(backup)).exit_code == 0
    uploads = [settings().uploads_dir / name for name in (f"tsk_{STORED}", NEWER)]
    dispose()
    assert "after a day" not in _restore(backup, folder.data_dir)
    for upload in uploads:
        upload.mkdir(parents=True)
        (upload / "a.mp4").write_bytes(b"video")
    written = max(upload.stat().st_ctime for upload in uploads)
    dispose()
    output = _restore(backup, folder.data_dir)
    assert "1 uploads belong to no task in the catalog and will be removed after a day" in output
    monkeypatch.setattr(uploaded_videos.time, "time", lambda: written + DAY + 0.001)
    assert uploaded_videos.sweep_uploads() == []
    assert all((upload / "a.mp4").is_file() for upload in uploads)
    renewed = uploads[1].stat().st_ctime
    monkeypatch.setattr(uploaded_videos.time, "time", lambda: renewed + DAY + 1)
    assert uploaded_videos.sweep_uploads() == [NEWER]
    assert uploads[0].is_dir()
