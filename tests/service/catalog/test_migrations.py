"""Migrations: the upgrade of 1.0.0, damaged values, waiting for the database, a failed one, and the next version."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, delete, event, func, select, text, update
from sqlalchemy.exc import IntegrityError
from structlog.testing import capture_logs

from cinestrata_schemas.tasks import TaskDetails
from service.backups.backup_catalog import copy_catalog
from service.catalog import migrations
from service.catalog.database import engine, open_engine, ping, session_scope
from service.catalog.migrations import (
    CATALOG_SCHEMA,
    alembic_config,
    require_newest_schema,
    upgrade,
    upgrade_engine,
)
from service.catalog.operation_tables import Alert, DamagedRow
from service.catalog.tables import Event, Task, Video
from service.core.errors import Conflict, Unavailable
from service.core.settings import Settings
from service.tasks import commands
from tests.old_catalog import copy_to_postgresql

# Both changes replace a table on SQLite: rows refer to tasks with ON DELETE CASCADE, and videos counts its ids.
NEXT = """
import sqlalchemy as sa
from alembic import op

revision, down_revision = "next", "{head}"


def upgrade():
    op.add_column("videos", sa.Column("note", sa.Text(), nullable=False, server_default="none"))
    state = sa.CheckConstraint("state <> 'lost'", name=op.f("ck_tasks_state"))
    with op.batch_alter_table("tasks", table_args=(state,), table_kwargs={{"sqlite_strict": True}}) as tasks:
        tasks.alter_column("method", type_=sa.String(80), existing_type=sa.String(64))
    status = sa.CheckConstraint("status IN ('pending', 'accepted', 'rejected')", name=op.f("ck_videos_status"))
    options = {{"sqlite_autoincrement": True, "sqlite_strict": True}}
    with op.batch_alter_table("videos", table_args=(status,), table_kwargs=options) as videos:
        videos.alter_column("codec", type_=sa.String(80), existing_type=sa.String(64))
    {more}
"""


@contextmanager
def next_version(folder: Path, more: str = "") -> Iterator[None]:
    """Have one more migration during the block, as the next version does."""
    head = migrations.ScriptDirectory.from_config(alembic_config()).get_current_head()
    copy = folder / "next-version"
    shutil.copytree(Path(migrations.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "versions" / "next.py").write_text(NEXT.format(head=head, more=more))
    config = alembic_config()
    config.set_main_option("script_location", str(copy))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migrations, "alembic_config", lambda: config)
        yield


def row_counts() -> dict[str, int]:
    with engine().connect() as connection:
        return {
            table.name: connection.execute(select(func.count()).select_from(table)).scalar_one()
            for table in CATALOG_SCHEMA.sorted_tables
        }


@pytest.fixture(params=["sqlite", "postgresql"])
def catalog(
    request: pytest.FixtureRequest, tmp_path: Path, settings_factory: Callable[..., Settings]
) -> Settings:
    """Settings with an empty catalog whose schema changes, so that no other test uses its database."""
    options = {}
    if request.param == "postgresql":
        options["database_url"] = request.getfixturevalue("fresh_postgres_url")
    return settings_factory(tmp_path, request.param, **options)


@pytest.fixture
def library(catalog: Settings, post: Callable[..., TaskDetails]) -> tuple[str, int]:
    """A task with two of three videos, and the vector id of the deleted video."""
    task = post(videos=3)
    with session_scope(write=True) as session:
        last = session.scalars(select(func.max(Video.vector_id))).one()
        session.execute(delete(Video).where(Video.vector_id == last))
    return task.id, last


def test_rows_survive_the_next_migration(library: tuple[str, int], tmp_path: Path) -> None:
    task_id, deleted = library
    before = row_counts()
    assert before["events"]
    with next_version(tmp_path):
        upgrade()
        upgrade()  # has no effect
    assert row_counts() == before
    with session_scope(write=True) as session:
        assert session.scalars(text("SELECT DISTINCT note FROM videos")).all() == ["none"]
        captions = session.scalars(select(Video.captions).order_by(Video.vector_id)).all()
        assert captions == [["bird 0 flies"], ["bird 1 flies"]]
        video = Video(id="new", task_id=task_id, uri="x", captions=[], extra={}, status="pending")
        session.add(video)
        session.flush()
        assert video.vector_id > deleted
        if session.get_bind().dialect.name == "sqlite":
            assert session.execute(text("PRAGMA foreign_key_check")).all() == []
    for change in (delete(Task).where(Task.id == task_id), update(Task).values(state="lost")):
        with pytest.raises(IntegrityError), session_scope(write=True) as session:
            session.execute(change)


def test_failed_migration_changes_nothing(library: tuple[str, int], tmp_path: Path) -> None:
    before = row_counts()
    with (
        next_version(tmp_path, more="op.execute('SELECT * FROM missing')"),
        pytest.raises(Exception, match="missing"),
    ):
        upgrade()
    upgrade()
    assert row_counts() == before
    with session_scope() as session:
        assert session.scalars(text("SELECT version_num FROM alembic_version")).all() == ["catalog_9"]


def test_catalog_of_another_version_is_refused_with_the_remedy(
    library: tuple[str, int], tmp_path: Path
) -> None:
    with next_version(tmp_path):
        with (
            engine().connect() as older,
            pytest.raises(Conflict, match=r"needs next\. Run: cinestrata migrate"),
        ):
            require_newest_schema(older)
        upgrade()
    newer = r"newer version .* its schema is next, and this version knows catalog_9\. Use the newer version"
    with pytest.raises(Conflict, match=newer):
        upgrade()
    with engine().connect() as connection, pytest.raises(Conflict, match=newer):
        require_newest_schema(connection)


def test_migration_waits_until_the_database_responds(
    tmp_path: Path, settings_factory: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    configured = settings_factory(tmp_path, upgraded=False)
    refusals = [Unavailable("no route"), Unavailable("no route")]
    upgrade = migrations.upgrade

    def respond_later(settings: Settings) -> None:
        if refusals:
            raise refusals.pop()
        upgrade(settings)

    monkeypatch.setattr(migrations, "upgrade", respond_later)
    monkeypatch.setattr(migrations.time, "sleep", lambda seconds: None)
    migrations.upgrade_when_reachable(configured)
    ping()
    assert not refusals


def test_migration_gives_up_after_a_bounded_time(
    tmp_path: Path, settings_factory: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrations, "WAIT_SECONDS", 0.5)
    url = "postgresql://nobody@127.0.0.1:1/none"
    configured = settings_factory(tmp_path, database_url=url, upgraded=False)
    with pytest.raises(Unavailable, match=r"can't be reached .*CINESTRATA_DATABASE_URL. Gave up after 0.5 s"):
        migrations.upgrade_when_reachable(configured)


def test_migration_waits_for_that_of_another_process_without_a_limit(
    tmp_path: Path, settings_factory: Callable[..., Settings], fresh_postgres_url: str
) -> None:
    settings_factory(tmp_path, database_url=fresh_postgres_url, upgraded=False)
    limits: list[str] = []

    def read_limit(connection: Connection, _cursor: object, statement: str, *_: object) -> None:
        if "pg_advisory_xact_lock" in statement:
            limits.append(connection.exec_driver_sql("SHOW lock_timeout").scalar_one())

    event.listen(engine(), "before_cursor_execute", read_limit)
    migrations.upgrade()
    assert limits == ["0"]
    with session_scope() as session:
        assert session.scalar(text("SHOW lock_timeout")) == "30s"


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
    reports = [entry for entry in logs if entry["event"] == "catalog_rows_damaged"]
    assert {entry["table"]: entry["rows"] for entry in reports} == dict.fromkeys(damaged, 1)
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
