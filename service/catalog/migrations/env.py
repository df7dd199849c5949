"""Alembic's environment: migrations run on the caller's connection, in its transaction."""

from __future__ import annotations

from alembic import context

from service.catalog.migrations import CATALOG_SCHEMA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=CATALOG_SCHEMA,
    compare_type=True,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
