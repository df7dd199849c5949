"""Copy a whole catalog into an empty one, also between SQLite and PostgreSQL."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Table,
    column,
    delete,
    func,
    insert,
    inspect,
    select,
    text,
)

from service.catalog.migrations import CATALOG_SCHEMA, require_newest_schema
from service.catalog.tables import Base, EditCounter, PositionCounter
from service.core.errors import Conflict

_BATCH_ROWS = 1000
_COUNTERS = (PositionCounter, EditCounter)  # a migration inserts their rows
_REVISION_TABLE = "alembic_version"  # the target's own migrations write it


def copy_catalog(source: Connection, target: Connection) -> int:
    """Copy all rows of all tables, and the counters behind generated IDs.

    The copy does not reuse the IDs of deleted rows, because the index may still contain them. The caller opens the
    transactions; with a repeatable read of the source, the copy is consistent while other processes write.

    Args:
        source: Connection to a catalog with the newest schema.
        target: Connection to an empty catalog with the newest schema.

    Returns:
        Number of rows.

    Raises:
        Conflict: A catalog has another schema, the source has unknown tables, or the target has rows.
    """
    require_newest_schema(source)
    require_newest_schema(target)
    _require_known_tables(source)
    filled = find_filled_table(target)
    if filled is not None:
        raise Conflict(f"The target catalog is not empty: its table {filled} has rows.")
    for counter in _COUNTERS:
        target.execute(delete(counter))
    return sum(_copy_table(source, target, table) for table in CATALOG_SCHEMA.sorted_tables)


def find_filled_table(connection: Connection) -> str | None:
    """Find a table with rows and return its name; None if the catalog is empty or has no tables."""
    existing = inspect(connection).get_table_names()
    for table in CATALOG_SCHEMA.sorted_tables:
        if table in [counter.__table__ for counter in _COUNTERS] or table.name not in existing:
            continue
        if connection.execute(select(1).select_from(table).limit(1)).first() is not None:
            return table.name
    return None


def reserve_generated_ids(connection: Connection, model: type[Base], last: int) -> None:
    """Make a table generate only IDs above ``last``. Other processes must not insert meanwhile."""
    table = CATALOG_SCHEMA.tables[model.__tablename__]
    column = table.autoincrement_column
    if column is None:
        raise ValueError(f"the table {table.name} generates no identifiers")
    _raise_counter(connection, table, column, max(last, _last_generated(connection, table, column)))


def _require_known_tables(source: Connection) -> None:
    """Refuse a catalog with tables that the copy would silently leave out."""
    tables = set(inspect(source).get_table_names()) - {_REVISION_TABLE}
    if differing := sorted(tables ^ set(CATALOG_SCHEMA.tables)):
        raise Conflict(
            f"The {source.dialect.name} catalog has other tables than this version knows: {', '.join(differing)}. "
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
