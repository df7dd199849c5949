"""The migration waits for a database that starts later."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Connection, event, text

from service.catalog import migrations
from service.catalog.database import engine, ping, session_scope
from service.core.errors import Unavailable
from service.core.settings import Settings


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
    tmp_path: Path, settings_factory: Callable[..., Settings]
) -> None:
    url = "postgresql://nobody@127.0.0.1:1/none"
    configured = settings_factory(tmp_path, database_url=url, upgraded=False)
    with pytest.raises(Unavailable, match=r"can't be reached .*CINESTRATA_DATABASE_URL. Gave up after 0.5 s"):
        migrations.upgrade_when_reachable(configured, wait_seconds=0.5)


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
