"""Connections to the catalog: SQLite in one data folder, or PostgreSQL, with the same code above it."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, func, make_url, select
from sqlalchemy.exc import InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session

from service.core.errors import InDoubt, Unavailable
from service.core.settings import Settings, settings

__all__ = [
    "SQLITE_BUSY_SECONDS",
    "dispose",
    "engine",
    "id_chunks",
    "now",
    "open_engine",
    "ping",
    "session_scope",
    "sqlite_path",
]

SQLITE_BUSY_SECONDS = 30.0  # how long a writer waits for the lock of the SQLite file

_CHUNK = 500
_SWITCH_SECONDS = 5.0
_POSTGRESQL_FULL = "53100"  # disk_full
_engines: dict[str, Engine] = {}


def engine(configured: Settings | None = None) -> Engine:
    """The engine of the configured database (by default this process's); one for each address."""
    configured = configured or settings()
    url = configured.database_url
    if url not in _engines:
        _engines[url] = open_engine(url)
    return _engines[url]


def sqlite_path(url: str) -> Path | None:
    """The file of an SQLite database; None for an address of another one."""
    parts = make_url(url)
    return Path(parts.database or "") if parts.get_backend_name() == "sqlite" else None


@contextmanager
def session_scope(*, write: bool = False) -> Iterator[Session]:
    """A session in one transaction: committed at the end, rolled back on any exception.

    Args:
        write: take SQLite's write lock at the start. A transaction that first reads and then writes
            would otherwise fail when another writer came in between.

    Raises:
        Unavailable: the database cannot be reached, stayed locked, or has no room left; nothing was written.
        InDoubt: the commit was sent and not answered; what was written may be there or not.
    """
    bind = engine().execution_options(cinestrata_write=True) if write else engine()
    committing = False
    try:
        with Session(bind, expire_on_commit=False) as session, session.begin():
            yield session
            committing = write
    except (OperationalError, InterfaceError, PoolTimeout) as error:
        if _is_full(error):
            raise Unavailable(
                "The disk of the catalog database is full, and nothing was stored: make room, then send it again.",
                30,
            ) from error
        if committing:
            raise InDoubt(
                "The catalog database broke off while it stored this: look whether it is there, or send it again with "
                "the same Idempotency-Key.",
                5,
            ) from error
        raise Unavailable("The catalog database cannot be reached or is busy; try again.", 5) from error


def _is_full(error: SQLAlchemyError) -> bool:
    """Whether there was no room to write. What was to be committed is then rolled back."""
    original = getattr(error, "orig", None)
    sqlite, postgresql = getattr(original, "sqlite_errorcode", None), getattr(original, "sqlstate", None)
    return sqlite == sqlite3.SQLITE_FULL or postgresql == _POSTGRESQL_FULL


def now(session: Session) -> datetime:
    """The time by which leases are judged: the database server's, as machines' clocks differ."""
    if session.get_bind().dialect.name == "postgresql":
        server: datetime = session.execute(select(func.clock_timestamp())).scalar_one()
        return server.astimezone(UTC)
    return datetime.now(UTC)


def id_chunks(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """As many ids at a time as one ``IN (…)`` takes."""
    for start in range(0, len(ids), _CHUNK):
        yield ids[start : start + _CHUNK]


def ping() -> None:
    """One round trip. Raises Unavailable."""
    with session_scope() as session:
        session.execute(select(1))


def dispose() -> None:
    """Close all connections of this process."""
    while _engines:
        _engines.popitem()[1].dispose()


def open_engine(url: str) -> Engine:
    file = sqlite_path(url)
    if file is None:
        # psycopg returns bytes for text of a database with the encoding SQL_ASCII, unless the client names its own.
        encoding = {"client_encoding": "utf8"}
        return create_engine(url, connect_args=encoding, pool_pre_ping=True, pool_size=10, max_overflow=20)
    file.parent.mkdir(parents=True, exist_ok=True)
    made = create_engine(url, connect_args={"timeout": SQLITE_BUSY_SECONDS}, pool_size=10, max_overflow=30)
    event.listen(made, "connect", _prepare_sqlite)
    event.listen(made, "begin", _begin_sqlite)
    return made


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    # We begin transactions ourselves: the driver would begin them late and always deferred.
    connection.isolation_level = None
    _write_ahead(connection)
    connection.execute("PRAGMA synchronous = FULL")  # an acknowledged task survives a power cut
    connection.execute("PRAGMA foreign_keys = ON")
    # Captions of deleted videos are overwritten, not only let go.
    connection.execute("PRAGMA secure_delete = ON")


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Switch to the write-ahead log. Of processes that switch a new file at the same moment SQLite refuses some at
    once, whatever their timeout, and they find it switched a little later."""
    until = time.monotonic() + _SWITCH_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
        time.sleep(0.01)


def _begin_sqlite(connection: Connection) -> None:
    write = connection.get_execution_options().get("cinestrata_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def _forget_after_fork() -> None:
    # A child must not talk through its parent's connections, nor close them.
    while _engines:
        _engines.popitem()[1].dispose(close=False)


os.register_at_fork(after_in_child=_forget_after_fork)
