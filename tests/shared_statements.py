"""SQL statements compiled once per process: each test opens an engine of its own, which would compile all of them again."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Dialect, Engine

from service.catalog import database

_open_engine = database.open_engine
_dialects: dict[str, Dialect] = {}
_statements: dict[Any, Any] = {}  # SQLAlchemy's keys contain the dialect


def share_statements() -> None:
    """Let the engines of the catalog share the dialects that were registered, and what these compile."""
    database.open_engine = _open_sharing_engine


def register_dialect(engine: Engine) -> None:
    """Share the dialect of an engine of the catalog, with its handlers of errors, which the first connection completed."""
    _dialects.setdefault(engine.dialect.name, engine.dialect)


def _open_sharing_engine(url: str) -> Engine:
    engine = _open_engine(url)
    dialect = _dialects.get(engine.dialect.name)
    if dialect is not None:
        engine.dialect = dialect
        engine.update_execution_options(compiled_cache=_statements)
    return engine
