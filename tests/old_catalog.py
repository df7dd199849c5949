"""The catalog of version 1.0.0 on PostgreSQL: its SQLite file with the types of PostgreSQL for the same columns."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from sqlalchemy import (
    JSON,
    BigInteger,
    Connection,
    DateTime,
    Integer,
    MetaData,
    create_engine,
    func,
    insert,
    select,
    text,
)

from service.catalog.migrations import alembic_config


def copy_to_postgresql(file: Path, writer: Connection) -> None:
    """Create the tables of version 1.0.0 with the rows of an SQLite file, whose values are valid."""
    engine = create_engine(f"sqlite:///{file}")
    with engine.connect() as reader:
        schema = MetaData()
        schema.reflect(reader)
        schema.remove(schema.tables["alembic_version"])
        rows = {
            table.name: [dict(row) for row in reader.execute(select(table)).mappings()]
            for table in schema.sorted_tables
        }
        counters: dict[str, int] = dict(reader.execute(text("SELECT name, seq FROM sqlite_sequence")).all())
    engine.dispose()
    for column in (column for table in schema.sorted_tables for column in table.columns):
        column.type = column.type.as_generic()
        if isinstance(column.type, JSON):
            column.type = JSON(none_as_null=True)
        elif isinstance(column.type, DateTime):
            column.type = DateTime(timezone=True)
        elif isinstance(column.type, Integer):
            column.type = BigInteger()
    schema.create_all(writer)
    config = alembic_config()
    config.attributes["connection"] = writer
    command.stamp(config, "catalog_1")
    writer.execute(text("SET LOCAL TIME ZONE 'UTC'"))  # the catalog's times
    for table in schema.sorted_tables:
        if rows[table.name]:
            writer.execute(insert(table), rows[table.name])
        for key in table.primary_key.columns:
            sequence = writer.scalar(select(func.pg_get_serial_sequence(table.name, key.name)))
            if sequence is not None:
                last = max([counters.get(table.name, 0), *(row[key.name] for row in rows[table.name])])
                writer.execute(select(func.setval(sequence, max(last, 1), last > 0)))
