"""Create the catalog's tables, and migrate those of earlier versions (Alembic).

To change the schema, change the tables and add the next file to ``versions/``; a test compares an upgraded catalog of
version 1.0.0 with the tables on both databases. SQLAlchemy knows a table once its module is imported, so
``CATALOG_SCHEMA`` imports all of them.

SQLite cannot change a column in place: there, ``op.batch_alter_table`` writes a new table. It reads neither check
constraints nor AUTOINCREMENT and STRICT from the old one, so pass them as ``table_args`` and ``table_kwargs``
(tests/service/catalog/test_migrations.py has an example).
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import structlog
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, Engine, insert, inspect, text
from sqlalchemy.exc import OperationalError

from service.catalog import operation_tables  # noqa: F401
from service.catalog.database import continue_edit_numbers, engine
from service.catalog.tables import Base, EditCounter, PositionCounter
from service.core.errors import Conflict, Unavailable
from service.core.settings import Settings

CATALOG_SCHEMA = Base.metadata
WAIT_SECONDS = 60.0  # enough for a database server that starts at the same time

_RETRY_SECONDS = 1.0
_UPGRADE_LOCK = 0x63696E65  # key of the advisory lock: in a cluster, one process migrates at a time

log = structlog.get_logger(__name__)


def alembic_config() -> Config:
    """Create Alembic's configuration without a file."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.set_main_option("path_separator", "os")
    return config


def upgrade(configured: Settings | None = None) -> None:
    """Upgrade the catalog to the newest schema, see :func:`upgrade_engine`."""
    upgrade_engine(engine(configured))


def upgrade_engine(database: Engine) -> None:
    """Upgrade the catalog in one transaction, also concurrently; raise Unavailable, or Conflict for a newer one."""
    config = alembic_config()
    try:
        with database.connect() as connection:
            newest = ScriptDirectory.from_config(config).get_current_head()
            if MigrationContext.configure(connection).get_current_revision() == newest:
                if connection.dialect.name == "postgresql":  # which a dump of another server may have filled
                    continue_edit_numbers(connection)
                    connection.commit()
                return  # also of a catalog that cannot be written
        with (
            database.execution_options(cinestrata_begin="BEGIN IMMEDIATE").connect() as connection,
            _suspend_foreign_keys(connection),
            connection.begin(),
        ):
            if connection.dialect.name == "postgresql":
                # Another process's migration may take minutes, longer than the usual wait for a lock.
                connection.execute(text("SET LOCAL lock_timeout TO DEFAULT"))
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _UPGRADE_LOCK})
            config.attributes["connection"] = connection
            if MigrationContext.configure(connection).get_current_revision() is None:
                CATALOG_SCHEMA.create_all(connection, checkfirst=False)
                connection.execute(insert(PositionCounter).values(id=1, last_position=0))
                connection.execute(insert(EditCounter).values(id=1, last_edit=0))
                command.stamp(config, "head")
                return
            counters = _read_counters(connection)
            try:
                command.upgrade(config, "head")
            except CommandError:
                require_newest_schema(connection)
                raise
            _restore_counters(connection, counters)
    except OperationalError as error:
        reason = str(error.orig).strip().partition("\n")[0]
        raise Unavailable(
            f"The catalog database can't be reached ({reason}); check CINESTRATA_DATABASE_URL.", 5
        ) from error


def upgrade_when_reachable(configured: Settings) -> None:
    """Upgrade the catalog, waiting for a database that does not respond yet; raise Unavailable after that time."""
    deadline = time.monotonic() + WAIT_SECONDS
    for attempt in count():
        try:
            return upgrade(configured)
        except Unavailable as error:
            if time.monotonic() + _RETRY_SECONDS > deadline:
                raise Unavailable(f"{error.detail} Gave up after {WAIT_SECONDS:g} seconds.", 5) from error
            if attempt == 0:
                log.warning("waiting_for_database", reason=error.detail, timeout_seconds=WAIT_SECONDS)
        time.sleep(_RETRY_SECONDS)


def require_newest_schema(connection: Connection) -> str:
    """Check that a catalog has the newest schema, and return its revision; raise Conflict."""
    current = MigrationContext.configure(connection).get_current_revision()
    scripts = ScriptDirectory.from_config(alembic_config())
    newest = scripts.get_current_head()
    if current is not None and current == newest:
        return current
    if current in (None, *(script.revision for script in scripts.walk_revisions())):
        raise Conflict(
            f"The schema of the {connection.dialect.name} catalog has revision {current or 'none'}, but this "
            f"version needs {newest}. Run: cinestrata migrate"
        )
    raise Conflict(
        f"A newer version of Cinestrata has upgraded the catalog: its schema is {current}, and this version knows "
        f"{newest}. Use the newer version, or restore a snapshot from before the upgrade into a new data folder."
    )


@contextmanager
def _suspend_foreign_keys(connection: Connection) -> Iterator[None]:
    """Suspend foreign keys in SQLite, where a migration that replaces a table would delete rows that refer to it."""
    if connection.dialect.name != "sqlite":
        yield
        return
    # On the driver's connection: these statements have no effect within a transaction.
    driver = connection.connection.cursor()
    (previous,) = driver.execute("PRAGMA foreign_keys").fetchone()
    driver.execute("PRAGMA foreign_keys = OFF")
    try:
        yield
    finally:
        with suppress(sqlite3.ProgrammingError):  # a connection that failed is closed
            driver.execute(f"PRAGMA foreign_keys = {previous}")
            driver.close()


def _read_counters(connection: Connection) -> list[dict[str, Any]]:
    """Read the last generated ID of each table on SQLite, which forgets it when the table is dropped."""
    if connection.dialect.name != "sqlite" or not inspect(connection).has_table("sqlite_sequence"):
        return []
    rows = connection.execute(text("SELECT name, seq FROM sqlite_sequence"))
    return [dict(row) for row in rows.mappings()]


def _restore_counters(connection: Connection, counters: list[dict[str, Any]]) -> None:
    """Write the counters of tables that still exist, so that the IDs of deleted rows are not assigned again."""
    existing = inspect(connection).get_table_names()
    for counter in counters:
        if counter["name"] in existing:
            connection.execute(text("DELETE FROM sqlite_sequence WHERE name = :name"), counter)
            connection.execute(text("INSERT INTO sqlite_sequence (name, seq) VALUES (:name, :seq)"), counter)
