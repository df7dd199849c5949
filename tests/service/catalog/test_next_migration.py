"""Migrations: waiting for the database, a failed one, and the next version."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Connection, delete, event, func, select, text, update
from sqlalchemy.exc import IntegrityError

from cinestrata_schemas.tasks import TaskDetails
from service.catalog import migrations
from service.catalog.database import engine, ping, session_scope
from service.catalog.migrations import CATALOG_SCHEMA, alembic_config, require_newest_schema, upgrade
from service.catalog.tables import Task, Video
from service.core.errors import Conflict, Unavailable
from service.core.settings import Settings

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
    own = {}
    if request.param == "postgresql":
        own["database_url"] = request.getfixturevalue("fresh_postgres_url")
    return settings_factory(tmp_path, request.param, **own)


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
    with (
        pytest.raises(IntegrityError),
        session_scope(write=True) as session,
    ):  # foreign keys are checked again
        session.execute(delete(Task).where(Task.id == task_id))
    with pytest.raises(IntegrityError), session_scope(write=True) as session:
        session.execute(update(Task).values(state="lost"))


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
        assert session.scalars(text("SELECT version_num FROM alembic_version")).all() == ["catalog_4"]


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
    newer = r"newer version .* its schema is next, and this version knows catalog_4\. Use the newer version"
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
