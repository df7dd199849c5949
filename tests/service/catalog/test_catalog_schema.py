"""Code that treats the catalog as a whole knows all of its tables, whatever else its process has imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import Float, text
from sqlalchemy.dialects.postgresql.psycopg import dialect as postgresql_dialect
from sqlalchemy.dialects.sqlite import dialect as sqlite_dialect

from service.catalog.catalog_copy import copy_catalog
from service.catalog.column_types import StoredType
from service.catalog.database import open_engine
from service.catalog.migrations import CATALOG_SCHEMA, upgrade_engine
from service.core.errors import Conflict

MIGRATE = """
import sys
from sqlalchemy import inspect
from service.catalog.database import open_engine
from service.catalog.migrations import upgrade_engine
engine = open_engine(sys.argv[1])
upgrade_engine(engine)
print(*sorted(set(inspect(engine).get_table_names()) - {"alembic_version"}))
"""
COPY = "import service.catalog.catalog_copy"
KNOWN = """
from service.catalog.tables import Base
print(*sorted(Base.metadata.tables))
"""


def _output(code: str, url: str) -> list[str]:
    """Return the lines that a fresh interpreter prints, since this one has imported all modules of the tables."""
    run = [sys.executable, "-c", code, url]
    return subprocess.run(run, check=True, capture_output=True, text=True, timeout=120).stdout.splitlines()


def test_migrations_and_copies_know_all_tables_in_a_fresh_process(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/catalog.sqlite3"
    migrated, known_by_migrations = _output(MIGRATE + KNOWN, url)
    (known_by_copies,) = _output(COPY + KNOWN, url)
    assert {"tasks", "api_keys", "webhooks"} <= set(migrated.split())
    assert known_by_migrations == migrated
    assert known_by_copies == migrated


@pytest.mark.parametrize("change", ["CREATE TABLE unknown (id INTEGER)", "DROP TABLE alerts"])
def test_catalog_with_other_tables_is_not_copied(tmp_path: Path, change: str) -> None:
    source, target = (open_engine(f"sqlite:///{tmp_path}/{name}.sqlite3") for name in ("source", "target"))
    for engine in (source, target):
        upgrade_engine(engine)
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


def test_numbers_can_be_checked_on_both_databases() -> None:
    columns = [column for table in CATALOG_SCHEMA.sorted_tables for column in table.columns]
    types = [column.type for column in columns if isinstance(column.type, StoredType)]
    numbers = [kind for kind in types if isinstance(kind.impl, Float)]
    assert numbers
    for dialect in (postgresql_dialect(), sqlite_dialect()):
        assert all(kind.checker(dialect)(0.5) for kind in numbers)
