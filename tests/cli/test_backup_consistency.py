"""A backup's catalog and index show the same state, and a restore moves all rows between the databases.

New videos and uploads are apart from those of a restored backup.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import Engine, create_engine, insert, select, text

from index.files.durable_files import exclusive_lock
from index.shard_store import ShardStore
from service.backups import snapshots
from service.catalog.database import dispose, session_scope
from service.catalog.migrations import CATALOG_SCHEMA
from service.catalog.operation_tables import ApiKey, User, Webhook
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


AT = datetime(2026, 1, 2, tzinfo=UTC)
ROWS: dict[Any, dict[str, Any]] = {
    ApiKey: {
        "id": "key",
        "name": "ci",
        "name_key": "ci",
        "secret_hash": "0" * 64,
        "scope": "ingest",
        "created_at": AT,
        "created_by": "ann",
    },
    User: {"id": "user", "name": "ann", "name_key": "ann", "scope": "admin", "created_at": AT},
    Webhook: {
        "id": "hook",
        "url": "https://hooks.example/",
        "secret": "whsec_x",
        "events": ["task.ready"],
        "enabled": True,
        "created_at": AT,
    },
}


def _run(*arguments: object, database: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ)
    if database is not None:
        environment["CINESTRATA_DATABASE_URL"] = database
    command = [sys.executable, "-m", "cli.main", *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


def _require_completed(process: subprocess.CompletedProcess[str]) -> None:
    assert process.returncode == 0, process.stdout + process.stderr


def _rows(url: str) -> Mapping[str, list[str]]:
    """Return the rows of all tables; the audit log grows with each command."""
    engine = create_engine(url)
    with engine.connect() as connection:
        rows = {
            table.name: sorted(map(repr, connection.execute(select(table))))
            for table in CATALOG_SCHEMA.sorted_tables
            if table.name != "audit_log"
        }
    engine.dispose()
    return rows


@pytest.fixture
def catalog_file(folder: Settings, publish_task: Callable) -> Path:
    """An SQLite catalog with rows in tables that the commands' modules do not need."""
    publish_task("a", 3)
    dispose()
    _insert(folder.database_url)
    return folder.data_dir / "catalog.sqlite3"


def _insert(url: str) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        for table, row in ROWS.items():
            connection.execute(insert(table), row)
    engine.dispose()


@pytest.mark.slow
def test_commands_copy_all_tables_to_postgresql_and_back(
    catalog_file: Path, tmp_path: Path, fresh_postgres_url: str
) -> None:
    expected = _rows(f"sqlite:///{catalog_file}")
    assert all(expected[table.__tablename__] for table in ROWS)
    _require_completed(_run("snapshot", tmp_path / "first.tar"))
    _require_completed(
        _run("restore", tmp_path / "first.tar", "--data", tmp_path / "b", database=fresh_postgres_url)
    )
    assert _rows(fresh_postgres_url) == expected
    _require_completed(
        _run("snapshot", tmp_path / "second.tar", "--data", tmp_path / "b", database=fresh_postgres_url)
    )
    _require_completed(_run("restore", tmp_path / "second.tar", "--data", tmp_path / "c"))
    assert _rows(f"sqlite:///{tmp_path}/c/catalog.sqlite3") == expected


@pytest.fixture
def migrated_database(catalog_file: Path, tmp_path: Path, fresh_postgres_url: str) -> Iterator[Engine]:
    """A database with the catalog's tables, and a snapshot in ``copy``."""
    _require_completed(_run("snapshot", tmp_path / "copy"))
    _require_completed(_run("migrate", "--data", tmp_path / "b", database=fresh_postgres_url))
    engine = create_engine(fresh_postgres_url)
    yield engine
    engine.dispose()


def _restore_into(tmp_path: Path, url: str) -> subprocess.CompletedProcess[str]:
    return _run("restore", tmp_path / "copy", "--data", tmp_path / "b", database=url)


@pytest.mark.slow
def test_database_of_another_installation_is_refused(
    migrated_database: Engine, tmp_path: Path, fresh_postgres_url: str
) -> None:
    """Its keys and sessions would be valid in the restored library."""
    with migrated_database.begin() as connection:
        connection.execute(insert(ApiKey), ROWS[ApiKey])
    refused = _restore_into(tmp_path, fresh_postgres_url)
    message = "its table api_keys has rows"
    assert (refused.returncode, message in " ".join(refused.stderr.split())) == (1, True), refused
    assert not (tmp_path / "b" / "index").exists()


@pytest.mark.slow
def test_refused_commit_leaves_the_data_folder_as_it_was(
    migrated_database: Engine, tmp_path: Path, fresh_postgres_url: str
) -> None:
    with migrated_database.begin() as connection:
        connection.execute(
            text("CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'full'; END $$")
        )
        connection.execute(
            text(
                "CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON tasks DEFERRABLE INITIALLY DEFERRED "
                "FOR EACH ROW EXECUTE FUNCTION refuse()"
            )
        )
    refused = _restore_into(tmp_path, fresh_postgres_url)
    assert (refused.returncode, "Nothing was restored" in refused.stderr) == (1, True), refused
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["run"]
    with migrated_database.begin() as connection:
        connection.execute(text("DROP TRIGGER refuse ON tasks"))
    _require_completed(_restore_into(tmp_path, fresh_postgres_url))
