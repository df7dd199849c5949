"""Backups move all catalog rows between the databases, with commands in their own processes.

A command's process imports fewer modules than the tests' process, but must still copy all tables.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, insert, select, text

from service.catalog.database import dispose
from service.catalog.migrations import CATALOG_SCHEMA
from service.catalog.operation_tables import ApiKey, User, Webhook
from service.core.settings import Settings

pytestmark = pytest.mark.slow  # fills every table, and copies it between two databases

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


def _require_success(process: subprocess.CompletedProcess[str]) -> None:
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


def test_commands_copy_all_tables_to_postgresql_and_back(
    catalog_file: Path, tmp_path: Path, fresh_postgres_url: str
) -> None:
    expected = _rows(f"sqlite:///{catalog_file}")
    assert all(expected[table.__tablename__] for table in ROWS)
    _require_success(_run("snapshot", tmp_path / "first.tar"))
    _require_success(
        _run("restore", tmp_path / "first.tar", "--data", tmp_path / "b", database=fresh_postgres_url)
    )
    assert _rows(fresh_postgres_url) == expected
    _require_success(
        _run("snapshot", tmp_path / "second.tar", "--data", tmp_path / "b", database=fresh_postgres_url)
    )
    _require_success(_run("restore", tmp_path / "second.tar", "--data", tmp_path / "c"))
    assert _rows(f"sqlite:///{tmp_path}/c/catalog.sqlite3") == expected


@pytest.fixture
def migrated_database(catalog_file: Path, tmp_path: Path, fresh_postgres_url: str) -> Iterator[Engine]:
    """A database with the catalog's tables, and a snapshot in ``copy``."""
    _require_success(_run("snapshot", tmp_path / "copy"))
    _require_success(_run("migrate", "--data", tmp_path / "b", database=fresh_postgres_url))
    engine = create_engine(fresh_postgres_url)
    yield engine
    engine.dispose()


def _restore_into(tmp_path: Path, url: str) -> subprocess.CompletedProcess[str]:
    return _run("restore", tmp_path / "copy", "--data", tmp_path / "b", database=url)


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
    _require_success(_restore_into(tmp_path, fresh_postgres_url))
