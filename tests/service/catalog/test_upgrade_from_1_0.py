"""An upgraded catalog of version 1.0.0 has the schema of a new one; values that no version writes stop no upgrade."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import select, text
from sqlalchemy.exc import IntegrityError
from structlog.testing import capture_logs

from service.backups.backup_catalog import copy_catalog
from service.catalog.database import engine, open_engine, session_scope
from service.catalog.migrations import CATALOG_SCHEMA, upgrade, upgrade_engine
from service.catalog.operation_tables import Alert, DamagedRow
from service.catalog.tables import Event, Task, Video
from service.core.errors import Conflict
from service.core.settings import Settings
from service.tasks import commands
from tests.old_catalog import copy_to_postgresql

MIGRATE = """
import sys
from sqlalchemy import inspect
from service.catalog.database import open_engine
from service.catalog.migrations import upgrade_engine
engine = open_engine(sys.argv[1])
upgrade_engine(engine)
print(*sorted(set(inspect(engine).get_table_names()) - {"alembic_version"}))
"""


@pytest.fixture(params=["sqlite", "postgresql"])
def old_catalog(
    request: pytest.FixtureRequest, library_1_0_0: Path, settings_factory: Callable[..., Settings]
) -> Path:
    """SQLite file of the catalog that is to be upgraded."""
    if request.param == "sqlite":
        settings_factory(library_1_0_0)
    else:
        settings_factory(library_1_0_0, request.param, upgraded=False)
        with engine().begin() as writer:
            copy_to_postgresql(library_1_0_0 / "data" / "catalog.sqlite3", writer)
    return library_1_0_0 / "data" / "catalog.sqlite3"


def test_upgraded_catalog_has_the_schema_of_a_new_one(old_catalog: Path) -> None:
    upgrade()
    with engine().connect() as connection:
        is_sqlite = connection.dialect.name == "sqlite"
        context = MigrationContext.configure(connection, opts={"compare_type": is_sqlite})
        assert compare_metadata(context, CATALOG_SCHEMA) == []
        if is_sqlite:
            assert connection.exec_driver_sql("PRAGMA foreign_key_check").all() == []
            tables = connection.exec_driver_sql("PRAGMA table_list").mappings()
            assert {row["name"] for row in tables if row["strict"]} == set(CATALOG_SCHEMA.tables)
    with session_scope() as session:
        assert session.scalars(select(DamagedRow)).all() == []


def test_new_catalog_has_the_schema_of_the_tables(catalog: Settings) -> None:
    with engine().connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, CATALOG_SCHEMA) == []


def test_process_that_only_migrates_creates_all_tables(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MIGRATE, f"sqlite:///{tmp_path}/catalog.sqlite3"]
    created = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
    assert created.split() == sorted(CATALOG_SCHEMA.tables)


DAMAGE = {
    ("tasks", "settings"): "[]",
    ("tasks", "progress"): "{broken",
    ("tasks", "counts"): "3",
    ("tasks", "remedy"): "[1]",
    ("tasks", "attempts"): "yesterday",
    ("tasks", "started_at"): "yesterday",
    ("tasks", "method"): b"\xff",
    ("videos", "captions"): "{}",
    ("videos", "metadata"): "[" * 5000,
    ("videos", "added_at"): b"\xff",
    ("videos", "duration"): "long",
    ("events", "data"): "null",
    ("webhooks", "events"): "{}",
    ("releases", "metrics"): "7",
}


def test_damaged_rows_are_copied_and_repaired(
    library_1_0_0: Path, settings_factory: Callable[..., Settings]
) -> None:
    file = library_1_0_0 / "data" / "catalog.sqlite3"
    damaged: dict[str, object] = {}
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        for (table, column), value in DAMAGE.items():
            (row,) = connection.execute(f"SELECT min(rowid) FROM {table}").fetchone()
            if row is not None:
                damaged[table] = row
                connection.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (value, row))
    settings_factory(library_1_0_0, upgraded=False)
    with capture_logs() as logs:
        upgrade()
    assert {entry["table"]: entry["rows"] for entry in logs if entry["event"] == "catalog_rows_damaged"} == (
        dict.fromkeys(damaged, 1)
    )
    with session_scope() as session:
        copies = {row.table: json.loads(row.content) for row in session.scalars(select(DamagedRow))}
        task = session.get_one(Task, copies["tasks"]["id"])
        video = session.get_one(Video, damaged["videos"])
        event = session.get_one(Event, damaged["events"])
        assert (task.settings, task.progress) == ({}, {"stage": task.state})
        assert (task.counts, task.remedy, task.attempts, task.started_at) == ({}, None, 0, None)
        assert (video.captions, video.extra, video.duration, event.data) == ([], {}, None, {})
    assert copies["tasks"]["progress"] == "{broken"
    assert copies["videos"]["captions"] == "{}"
    (view,) = [view for view in commands.list_tasks() if view.id == task.id]
    assert view.counts.videos > 0


def test_ids_of_deleted_videos_are_not_given_again(
    library_1_0_0: Path, settings_factory: Callable[..., Settings]
) -> None:
    """Shards still contain vectors with these IDs."""
    sequences = "SELECT name, seq FROM sqlite_sequence"
    with closing(
        sqlite3.connect(library_1_0_0 / "data" / "catalog.sqlite3", isolation_level=None)
    ) as connection:
        connection.execute("UPDATE sqlite_sequence SET seq = seq + 100")
        expected = dict(connection.execute(sequences).fetchall())
    assert "videos" in expected
    settings_factory(library_1_0_0, upgraded=False)
    upgrade()
    with engine().connect() as connection:
        upgraded = {row.name: row.seq for row in connection.execute(text(sequences))}
    assert {name: upgraded.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("column", "value"), [("settings", "[]"), ("progress", "{"), ("attempts", "many"), ("method", b"\xff")]
)
def test_values_of_another_kind_are_refused(
    sqlite_catalog: Settings, post: Callable[..., object], column: str, value: object
) -> None:
    post()
    with pytest.raises(IntegrityError), session_scope(write=True) as session:
        session.execute(text(f"UPDATE tasks SET {column} = :value"), {"value": value})


def test_alerts_that_ended_are_dropped(
    library_1_0_0: Path, settings_factory: Callable[..., Settings]
) -> None:
    file = library_1_0_0 / "data" / "catalog.sqlite3"
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        for kind, key in (("forgetting_local", None), ("failed_tasks", "f"), ("forgetting_global", "g")):
            connection.execute(
                "INSERT INTO alerts (kind, open_key, value, threshold, raised_at, cleared_at) "
                "VALUES (?, ?, 1, 1, '2026-01-01 00:00:00.000000', NULL)",
                (kind, key),
            )
    settings_factory(library_1_0_0)
    upgrade()
    with session_scope() as session:
        assert session.scalars(select(Alert.open_key)).all() == ["g"]


@pytest.mark.parametrize("change", ["CREATE TABLE unknown (id INTEGER)", "DROP TABLE alerts"])
def test_catalog_with_other_tables_is_not_copied(tmp_path: Path, change: str) -> None:
    source, target = (open_engine(f"sqlite:///{tmp_path}/{name}.sqlite3") for name in ("source", "target"))
    for opened in (source, target):
        upgrade_engine(opened)
    with source.begin() as connection:
        connection.execute(text(change))
    with (
        source.connect() as reader,
        target.begin() as writer,
        pytest.raises(Conflict, match=change.split()[2]),
    ):
        copy_catalog(reader, writer)
    source.dispose()
    target.dispose()
