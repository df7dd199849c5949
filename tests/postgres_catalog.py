"""A PostgreSQL database whose catalog tests use in turn: emptying it is faster than creating a database."""

from __future__ import annotations

import uuid

from sqlalchemy import create_engine, make_url, text

from service.catalog.database import open_engine
from service.catalog.migrations import upgrade_engine
from tests.shared_statements import register_dialect

_END_OTHERS = """
    SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
_RESTART_SEQUENCES = "SELECT setval(seqrelid::regclass, seqstart, false) FROM pg_sequence"


class PostgresCatalog:
    """Database with an empty catalog, for tests that leave its schema as it is."""

    def __init__(self, server_url: str) -> None:
        self._server = create_engine(server_url, isolation_level="AUTOCOMMIT")
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
            tables = connection.scalars(
                text("SELECT 'public.' || tablename FROM pg_tables WHERE schemaname = 'public'")
            )
            self._rows = {
                table: connection.scalar(text(f"SELECT json_agg(t)::text FROM {table} t")) for table in tables
            }

    def empty(self) -> None:
        """End all other connections, and restore the rows and sequences of an empty catalog."""
        with self._engine.begin() as connection:
            connection.execute(text(_END_OTHERS))
            # Neither triggers nor foreign keys act.
            connection.execute(text("SET LOCAL session_replication_role = replica"))
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
