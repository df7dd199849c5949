"""Back up and restore the catalog as an SQLite file, whichever database the library uses."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Engine,
    Table,
    column,
    delete,
    func,
    insert,
    inspect,
    select,
    text,
)
from sqlalchemy.orm import Session

from index.files.durable_files import sync
from service.access.audit_log import record_change
from service.backups.backup_files import CATALOG, BackupFile, require_intact_catalog, write_backup
from service.catalog.database import SQLITE_BUSY_SECONDS, continue_edit_numbers, open_engine, sqlite_path
from service.catalog.migrations import CATALOG_SCHEMA, require_newest_schema, upgrade_engine
from service.catalog.tables import EditCounter, PositionCounter, Video
from service.core.errors import Conflict
from service.core.settings import Settings, file_url

_BATCH_ROWS = 1000
_COUNTERS = (PositionCounter, EditCounter)  # a migration inserts their rows
_REVISION_TABLE = "alembic_version"  # the target's own migrations write it


@contextmanager
def open_catalog_copy(settings: Settings) -> Iterator[Callable[[Path], None] | None]:
    """Freeze the catalog's current state; yield a function that writes it to a new SQLite file.

    Other processes may change the catalog meanwhile. Yields None if there is no catalog, that is, before the first
    start with SQLite. Raises Conflict for a catalog with another schema.
    """
    file = sqlite_path(settings.database_url)
    if file is None:
        with _use_engine(settings.database_url) as engine, engine.connect() as reader:
            # The transaction sees no later change: PostgreSQL fixes the visible rows at the first statement.
            reader.execution_options(isolation_level="REPEATABLE READ")
            reader.execute(select(1))
            yield lambda target: _write_rows(reader, target)
    elif not file.exists():
        yield None
    else:
        with closing(sqlite3.connect(file, timeout=SQLITE_BUSY_SECONDS, isolation_level=None)) as source:
            source.execute("BEGIN")
            source.execute("SELECT count(*) FROM sqlite_master").fetchone()  # the transaction begins here
            yield lambda target: _write_pages(source, target)


def _write_pages(source: sqlite3.Connection, target: Path) -> None:
    with closing(sqlite3.connect(target)) as copy:
        source.backup(copy)
    require_intact_catalog(target)


def _write_rows(reader: Connection, target: Path) -> None:
    with _use_engine(target) as engine:
        upgrade_engine(engine)
        with engine.begin() as writer:
            copy_catalog(reader, writer)
    require_intact_catalog(target)


def find_catalog_rows(settings: Settings) -> str | None:
    """Find a table with rows in the configured PostgreSQL catalog and return its name; None if there is none."""
    with _use_engine(settings.database_url) as engine, engine.connect() as connection:
        return _find_filled_table(connection)


def reserve_vector_ids(settings: Settings, last_video: int) -> None:
    """Make a PostgreSQL catalog that another tool restored assign only vector IDs above ``last_video``."""
    with _use_engine(settings.database_url) as engine, engine.begin() as connection:
        if inspect(connection).has_table(Video.__tablename__):
            _reserve_vector_ids(connection, last_video)


@contextmanager
def install_catalog(settings: Settings, source: Path, *, origin: Path, last_video: int) -> Iterator[None]:
    """Install a backup's catalog once the ``with`` block succeeds; after an exception, install nothing.

    The settings name the target, a missing SQLite file or an empty PostgreSQL database. The restored audit log records
    the restoration from ``origin``. The catalog assigns only IDs above ``last_video``, the highest in the index: an
    index restored on its own may have videos that the catalog lacks, and new videos must not take over their vectors.
    """
    file = sqlite_path(settings.database_url)
    if file is None:
        with _use_engine(source) as restored, _use_engine(settings.database_url) as database:
            upgrade_engine(restored)
            upgrade_engine(database)
            with restored.connect() as reader, database.begin() as connection:
                copy_catalog(reader, connection)
                _complete_restoration(connection, origin, last_video)
                yield
        return
    # On the target's file system, so that a rename can publish it.
    file.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=file.parent, prefix=".restore-") as folder:
        copy = Path(folder) / CATALOG
        write_backup(Path(folder), {CATALOG: BackupFile.from_path(source)})
        with _use_engine(copy) as engine:
            upgrade_engine(engine)
            with engine.begin() as connection:
                _complete_restoration(connection, origin, last_video)
        sync(copy)
        yield
        os.rename(copy, file)
        try:
            sync(file.parent)
        except OSError:
            os.rename(file, copy)
            raise


@contextmanager
def _use_engine(database: str | Path) -> Iterator[Engine]:
    """Open an engine for a ``with`` block: SQLite completes its file when the last connection to it is closed."""
    engine = open_engine(file_url("sqlite:///", database) if isinstance(database, Path) else database)
    try:
        yield engine
    finally:
        engine.dispose()


def _complete_restoration(connection: Connection, origin: Path, last_video: int) -> None:
    _reserve_vector_ids(connection, last_video)
    with Session(connection) as session:
        record_change(session, "snapshot.restore", str(origin))
        session.commit()


def copy_catalog(source: Connection, target: Connection) -> int:
    """Copy all rows of all tables, and the counters behind generated IDs; return the number of rows.

    The copy does not reuse the IDs of deleted rows, because the index may still contain them. The caller opens the
    transactions; with a repeatable read of the source, the copy is consistent while other processes write. Raises
    Conflict if a catalog has another schema, the source has unknown tables, or the target has rows.
    """
    require_newest_schema(source)
    require_newest_schema(target)
    _require_known_tables(source)
    filled = _find_filled_table(target)
    if filled is not None:
        raise Conflict(f"The target catalog is not empty: its table {filled} has rows.")
    for counter in _COUNTERS:
        target.execute(delete(counter))
    rows = sum(_copy_table(source, target, table) for table in CATALOG_SCHEMA.sorted_tables)
    continue_edit_numbers(target)
    return rows


def _find_filled_table(connection: Connection) -> str | None:
    """Find a table with rows and return its name; None if the catalog is empty or has no tables."""
    existing = inspect(connection).get_table_names()
    for table in CATALOG_SCHEMA.sorted_tables:
        if table in [counter.__table__ for counter in _COUNTERS] or table.name not in existing:
            continue
        if connection.execute(select(1).select_from(table).limit(1)).first() is not None:
            return table.name
    return None


def _reserve_vector_ids(connection: Connection, last: int) -> None:
    """Make the catalog assign only vector IDs above ``last``. Other processes must not insert meanwhile."""
    table = CATALOG_SCHEMA.tables[Video.__tablename__]
    column = table.c.vector_id
    _raise_counter(connection, table, column, max(last, _last_generated(connection, table, column)))


def _require_known_tables(source: Connection) -> None:
    """Refuse a catalog with tables that the copy would silently leave out."""
    tables = set(inspect(source).get_table_names()) - {_REVISION_TABLE}
    if differing := sorted(tables ^ set(CATALOG_SCHEMA.tables)):
        raise Conflict(
            f"These tables of the {source.dialect.name} catalog differ from this version's: {', '.join(differing)}. "
            "Move tables that are not part of the catalog to another schema or database."
        )


def _copy_table(source: Connection, target: Connection, table: Table) -> int:
    copied = 0
    rows = source.execution_options(yield_per=_BATCH_ROWS).execute(select(table))
    for batch in rows.partitions():
        target.execute(insert(table), [dict(zip(table.c.keys(), row, strict=True)) for row in batch])
        copied += len(batch)
    column = table.autoincrement_column
    if column is not None and column.autoincrement is True:
        _raise_counter(target, table, column, _last_generated(source, table, column))
    return copied


def _last_generated(connection: Connection, table: Table, generated: Column[int]) -> int:
    """Find the largest value generated for a column, as far as the database remembers."""
    stored: int = connection.execute(select(func.coalesce(func.max(generated), 0))).scalar_one()
    if connection.dialect.name == "postgresql":
        counter = select(column("last_value", BigInteger), column("is_called", Boolean)).select_from(
            text(_sequence(connection, table, generated))
        )
        last, is_used = connection.execute(counter).one()
        return max(stored, int(last)) if is_used else stored
    if table.dialect_options["sqlite"]["autoincrement"]:
        statement = text("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = :table")
        return max(stored, int(connection.execute(statement, {"table": table.name}).scalar_one()))
    return stored


def _raise_counter(connection: Connection, table: Table, column: Column[int], value: int) -> None:
    """Make a column's next generated value larger than ``value``."""
    if value == 0:
        return
    if connection.dialect.name == "postgresql":
        sequence = _sequence(connection, table, column)
        connection.execute(text("SELECT setval(:sequence, :value)"), {"sequence": sequence, "value": value})
    elif table.dialect_options["sqlite"]["autoincrement"]:
        row = {"table": table.name, "value": value}
        connection.execute(text("DELETE FROM sqlite_sequence WHERE name = :table"), row)
        connection.execute(text("INSERT INTO sqlite_sequence (name, seq) VALUES (:table, :value)"), row)


def _sequence(connection: Connection, table: Table, column: Column[int]) -> str:
    """Find the quoted name of a column's PostgreSQL sequence."""
    names = {"table": table.name, "column": column.name}
    name: str = connection.execute(text("SELECT pg_get_serial_sequence(:table, :column)"), names).scalar_one()
    return name
