"""A PostgreSQL database whose catalog tests use in turn: emptying it is faster than creating a database."""

from __future__ import annotations

import uuid
from typing import Any

from sqlalchemy import Connection, create_engine, make_url, text

from service.catalog.database import open_engine
from service.catalog.migrations import upgrade_engine
from tests.shared_statements import register_dialect

# Changed by every statement that changes a table, an index, a constraint or a trigger of the catalog.
_SCHEMA = """
    WITH parts AS (SELECT oid FROM pg_class WHERE relnamespace = 'public'::regnamespace)
    SELECT
        (SELECT array_agg(oid::text ORDER BY oid) FROM parts),
        (SELECT array_agg(a.xmin::text ORDER BY attrelid, attnum) FROM pg_attribute a JOIN parts ON oid = attrelid),
        (SELECT array_agg(c.xmin::text ORDER BY c.oid) FROM pg_constraint c JOIN parts p ON p.oid = conrelid),
        (SELECT array_agg(t.xmin::text ORDER BY t.oid) FROM pg_trigger t JOIN parts p ON p.oid = tgrelid),
        (SELECT array_agg(setconfig::text) FROM pg_db_role_setting)
"""
_END_OTHERS = """
    SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
_RESTART_SEQUENCES = "SELECT setval(seqrelid::regclass, seqstart, false) FROM pg_sequence"


class PostgresCatalog:
    """Database with an empty catalog."""

    def __init__(self, server_url: str) -> None:
        self._server = create_engine(server_url, isolation_level="AUTOCOMMIT")
        self._create()

    def _create(self) -> None:
        name = f"test_{uuid.uuid4().hex}"
        with self._server.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name} TEMPLATE template1"))
        self.url = self._server.url.set(database=name).render_as_string(hide_password=False)
        engine = open_engine(self.url)
        upgrade_engine(engine)
        register_dialect(engine)
        engine.dispose()
        self._engine = create_engine(self.url, pool_pre_ping=True)
        with self._engine.begin() as connection:
            self._schema = _schema(connection)
            tables = connection.scalars(
                text("SELECT 'public.' || tablename FROM pg_tables WHERE schemaname = 'public'")
            )
            self._rows = {
                table: connection.scalar(text(f"SELECT json_agg(t)::text FROM {table} t")) for table in tables
            }

    def empty(self) -> None:
        """End all connections, and restore the rows and sequences of an empty catalog."""
        with self._engine.begin() as connection:
            connection.execute(text(_END_OTHERS))
            has_changed = _schema(connection) != self._schema
            if not has_changed:
                self._restore_rows(connection)
        if has_changed:
            self.drop()
            self._create()

    def _restore_rows(self, connection: Connection) -> None:
        connection.execute(
            text("SET LOCAL session_replication_role = replica")
        )  # without triggers and foreign keys
        connection.execute(text("; ".join(f"DELETE FROM {table}" for table in self._rows)))
        for table, rows in self._rows.items():
            if rows is not None:
                restored = text(
                    f"INSERT INTO {table} SELECT * FROM json_populate_recordset(NULL::{table}, :rows)"
                )
                connection.execute(restored, {"rows": rows})
        connection.execute(text(_RESTART_SEQUENCES))

    def drop(self) -> None:
        """Drop the database."""
        self._engine.dispose()
        with self._server.connect() as connection:
            connection.execute(text(f"DROP DATABASE {make_url(self.url).database} WITH (FORCE)"))


def _schema(connection: Connection) -> Any:
    return connection.execute(text(_SCHEMA)).one()
