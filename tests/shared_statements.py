"""SQL statements compiled once per process; otherwise, the engine of each test would compile all of them again."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Dialect, Engine, event

from service.catalog import database

_open_engine = database.open_engine
_dialects: dict[str, Dialect] = {}
_statements: dict[Any, Any] = {}  # SQLAlchemy's keys contain the dialect


def share_statements() -> None:
    """Let the engines of the catalog share the dialects that were registered, and what these compile."""
    database.open_engine = _open_sharing_engine


def register_dialect(engine: Engine) -> None:
    """Share the dialect of a catalog's engine that has connected, which completes a dialect."""
    _dialects.setdefault(engine.dialect.name, engine.dialect)


def _open_sharing_engine(url: str) -> Engine:
    engine = _open_engine(url)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _do_not_sync)
    dialect = _dialects.get(engine.dialect.name)
    if dialect is not None:
        engine.dialect = dialect
        engine.update_execution_options(compiled_cache=_statements)
    return engine


def _do_not_sync(connection: Any, _: object) -> None:
    """Let commits return before the disk has them: a power cut would end the tests, too."""
    connection.execute("PRAGMA synchronous = OFF")
