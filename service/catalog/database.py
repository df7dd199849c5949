"""Connect to the catalog (SQLite in the data folder, or PostgreSQL), and read it with a bounded wait.

Every function that opens a session raises ``Unavailable`` while the catalog is unreachable; no docstring repeats it.

A database that refuses connections fails a read at once. One that does not respond, such as behind a network that drops
packets, would hold each search until TCP times out. So the first of the :class:`CatalogReads` that fails or takes too
long interrupts all of the process's reads: they fail at once until a background thread reaches the database again.
"""

from __future__ import annotations

import os
import sqlite3
import time
from asyncio import wait_for, wrap_future
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, TypeVar

import structlog
from sqlalchemy import (
    URL,
    BigInteger,
    ColumnElement,
    Connection,
    Engine,
    ExceptionContext,
    Text,
    cast,
    create_engine,
    event,
    func,
    make_url,
    select,
    update,
)
from sqlalchemy.dialects.sqlite.base import SQLiteTypeCompiler
from sqlalchemy.exc import InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session

from index.arrays import batches
from service.catalog.tables import EditCounter, Video
from service.core.errors import InDoubt, Unavailable
from service.core.settings import Settings, settings

SQLITE_BUSY_SECONDS = 30.0  # how long a writer waits for the SQLite file lock

Value = TypeVar("Value")
_Id = TypeVar("_Id", str, int)

_CHUNK = 500
_PROBE_SECONDS = 0.5  # between attempts to reach an unreachable database
_READ_THREADS = 8  # a read that does not return occupies one until TCP gives up
_RETRY_SECONDS = 5  # Retry-After
_OLDEST_SQLITE = (3, 37)  # with STRICT tables
_SWITCH_SECONDS = 5.0
_POSTGRESQL_FULL = "53100"  # disk_full
_FILE_ERRORS = frozenset({sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN})
_PRIMARY_CODE = 0xFF  # mask for the primary part of an extended SQLite error code
_POSTGRESQL_OPTIONS = {
    # From a database encoded in SQL_ASCII, psycopg returns text as bytes unless the client names its own encoding.
    "client_encoding": "utf8",
    # Otherwise, a network that drops packets would hold requests for a quarter of an hour, until TCP gives up.
    "connect_timeout": 5,  # seconds
    "tcp_user_timeout": 10_000,  # milliseconds that sent data may stay unacknowledged
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 2,
}
# Server settings for each session; values from the URL, role or database take precedence.
_POSTGRESQL_SETTINGS = {
    # Otherwise, a host that loses power would keep its transaction's locks for hours, until the server's kernel gives
    # up. The user timeout covers responses in transit, which no keepalive follows.
    "tcp_keepalives_idle": "10s",
    "tcp_keepalives_interval": "5s",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "20s",
    # Long enough for a lost host's locks to become free; equal to the wait for SQLite's lock.
    "lock_timeout": f"{SQLITE_BUSY_SECONDS:g}s",
}
_SET_UNLESS_GIVEN = """
    SELECT set_config(name, value, false) FROM unnest(%s::text[], %s::text[]) AS wanted(name, value)
    JOIN pg_settings USING (name) WHERE source NOT IN ('client', 'user', 'database', 'database user')
"""
_UNREACHABLE = (OperationalError, InterfaceError, PoolTimeout)
_engines: dict[str, Engine] = {}

log = structlog.get_logger(__name__)


def engine(configured: Settings | None = None) -> Engine:
    """Get the engine of a database, by default this process's; there is one per URL."""
    configured = configured or settings()
    url = configured.database_url
    # Another thread may create or close the engine at the same time.
    return _engines.get(url) or _engines.setdefault(url, open_engine(url))


def sqlite_path(url: str | URL) -> Path | None:
    """Extract the file of an SQLite database from its URL; None for other databases."""
    parts = make_url(url)
    return Path(parts.database or "") if parts.get_backend_name() == "sqlite" else None


@contextmanager
def session_scope(*, write: bool = False) -> Iterator[Session]:
    """Open a session in one transaction: committed at the end, rolled back on an exception.

    To ``write`` takes SQLite's write lock at the start: a transaction that first reads and then writes would fail if
    another process writes in between. Raises Unavailable if the database is unreachable, stayed locked, or its disk is
    full, and nothing was written; InDoubt if it did not confirm the commit, which may or may not have taken effect.
    """
    bind = engine().execution_options(cinestrata_begin="BEGIN IMMEDIATE") if write else engine()
    committing = False
    try:
        with Session(bind, expire_on_commit=False) as session, session.begin():
            yield session
            committing = write
    except _UNREACHABLE as error:
        if refusal := _refusal(error):
            raise Unavailable(refusal, 30) from error
        if committing:
            raise InDoubt(
                "The catalog database did not confirm the commit: check whether the data is stored, or send the "
                "request again with the same Idempotency-Key.",
                5,
            ) from error
        raise _unreachable() from error


@contextmanager
def read_connection() -> Iterator[Connection]:
    """Open a connection to read columns with, in less time than a session. In SQLite, each query is a transaction."""
    try:
        with engine().connect().execution_options(cinestrata_begin=None) as connection:
            yield connection
    except _UNREACHABLE as error:
        raise _unreachable() from error


def edit_number(dialect: str, transaction: ColumnElement[Any]) -> ColumnElement[int]:
    """Express the number of the edits of a transaction in PostgreSQL, given its ID; that of the last edit in SQLite.

    Numbers of a counter become visible in order only if each transaction locks it until its commit. IDs of transactions
    tell which of them are complete, so no edit waits for those of other domains.
    """
    counter = EditCounter.__table__.c.last_edit
    return counter + cast(cast(transaction, Text), BigInteger) if dialect == "postgresql" else counter


def read_last_edit() -> int:
    """Read the number up to which all edits are complete; rows read afterwards are at least as new."""
    with read_connection() as connection:
        following = edit_number(connection.dialect.name, func.pg_snapshot_xmin(func.pg_current_snapshot()))
        number: int = connection.execute(select(following)).scalar_one()
        return number - (connection.dialect.name == "postgresql")


def continue_edit_numbers(connection: Connection, *, repair: bool = True) -> str | None:
    """Let edits get higher numbers than all videos, whose rows may come from another server; explain why, if needed."""
    following = edit_number(connection.dialect.name, func.pg_snapshot_xmax(func.pg_current_snapshot()))
    # In one statement: with two, an edit in between would seem unnumbered.
    highest = select(func.max(Video.last_edit)).scalar_subquery()
    last, number = connection.execute(select(highest, select(following).scalar_subquery())).one()
    if last is None or last <= number:
        return None
    if repair:
        connection.execute(update(EditCounter).values(last_edit=last))
    return f"edits.last_edit is {number}, but videos.last_edit reaches {last}"


def _unreachable() -> Unavailable:
    return Unavailable("The catalog database is unreachable or busy; try again.", _RETRY_SECONDS)


def _refusal(error: SQLAlchemyError) -> str | None:
    """Explain why the database refuses any change; None for other errors."""
    original = getattr(error, "orig", None)
    sqlite, postgresql = getattr(original, "sqlite_errorcode", None), getattr(original, "sqlstate", None)
    if sqlite == sqlite3.SQLITE_FULL or postgresql == _POSTGRESQL_FULL:
        return "The catalog database's disk is full; nothing was stored. Free some space, then send the request again."
    if sqlite is not None and sqlite & _PRIMARY_CODE == sqlite3.SQLITE_READONLY:
        return (
            f"{sqlite_path(engine().url)} cannot be written; nothing was stored. Give this user write access."
        )
    return None


def now(session: Session) -> datetime:
    """Read the clock for leases: the database server's, because machines' clocks differ."""
    if session.get_bind().dialect.name == "postgresql":
        server: datetime = session.execute(select(func.clock_timestamp())).scalar_one()
        return server.astimezone(UTC)
    return datetime.now(UTC)


def id_chunks(ids: Sequence[_Id]) -> Iterator[Sequence[_Id]]:
    """Split IDs into chunks that fit in one ``IN (…)``."""
    return batches(ids, _CHUNK)


def ping() -> None:
    """Send a trivial query to the database."""
    with session_scope() as session:
        session.execute(select(1))


def dispose() -> None:
    """Close all of this process's connections."""
    while _engines:
        _engines.popitem()[1].dispose()


class _StrictTypeCompiler(SQLiteTypeCompiler):
    """Names SQLite's storage class of each type; its STRICT tables accept no other names."""

    def _text(self, type_: Any, **options: Any) -> str:
        return "TEXT"

    def _integer(self, type_: Any, **options: Any) -> str:
        return "INTEGER"

    def _real(self, type_: Any, **options: Any) -> str:
        return "REAL"

    visit_VARCHAR = visit_DATETIME = visit_JSON = _text  # noqa: N815
    visit_BIGINT = visit_BOOLEAN = _integer  # noqa: N815
    visit_FLOAT = _real  # noqa: N815


def open_engine(url: str) -> Engine:
    """Create an engine with the options that the catalog needs."""
    file = sqlite_path(url)
    if file is None:
        given = make_url(url).query
        options = {name: value for name, value in _POSTGRESQL_OPTIONS.items() if name not in given}
        made = create_engine(url, connect_args=options, pool_pre_ping=True, pool_size=10, max_overflow=20)
        event.listen(made, "connect", _prepare_postgresql)
        return made
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        needed = ".".join(map(str, _OLDEST_SQLITE))
        raise Unavailable(f"SQLite {sqlite3.sqlite_version} is too old; install {needed} or newer.", 60)
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    made = create_engine(url, connect_args={"timeout": SQLITE_BUSY_SECONDS}, pool_size=10, max_overflow=30)
    made.dialect.type_compiler_instance = made.dialect.type_compiler = _StrictTypeCompiler(made.dialect)
    event.listen(made, "connect", _prepare_sqlite)
    event.listen(made, "begin", _begin_sqlite)
    event.listen(made, "handle_error", _discard_broken_connections)
    return made


def _prepare_postgresql(connection: Any, _record: Any) -> None:
    # A statement instead of startup options, which connection poolers such as PgBouncer refuse.
    connection.autocommit = True
    connection.execute(_SET_UNLESS_GIVEN, [list(_POSTGRESQL_SETTINGS), list(_POSTGRESQL_SETTINGS.values())])
    connection.autocommit = False


def _prepare_sqlite(connection: sqlite3.Connection, _record: Any) -> None:
    # Transactions begin in _begin_sqlite: the driver would begin them late, and always deferred.
    connection.isolation_level = None
    # Otherwise, bytes that are not text would end the read of all rows.
    connection.text_factory = partial(str, encoding="utf-8", errors="replace")
    try:
        _write_ahead(connection)
        connection.execute("PRAGMA synchronous = FULL")  # an acknowledged task survives a power cut
        connection.execute("PRAGMA foreign_keys = ON")
        # Captions of deleted videos are overwritten, not just released.
        connection.execute("PRAGMA secure_delete = ON")
    except BaseException:
        connection.close()
        raise


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Switch to the write-ahead log.

    If several processes switch a new file at the same moment, SQLite refuses some at once despite their timeout; the
    switch has happened a little later.
    """
    until = time.monotonic() + _SWITCH_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
        time.sleep(0.01)


def _discard_broken_connections(context: ExceptionContext) -> None:
    """Close the pool's connections after a file error: one that is kept may refuse every change."""
    code = getattr(context.original_exception, "sqlite_errorcode", None)
    if code is not None and code & _PRIMARY_CODE in _FILE_ERRORS:
        context.is_disconnect = True
        if context.execution_context is not None:
            # SQLite keeps the file open while a statement exists, and the exception refers to this one.
            context.execution_context.cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    begin = connection.get_execution_options().get("cinestrata_begin", "BEGIN")
    if begin is not None:
        connection.exec_driver_sql(begin)


def _forget_after_fork() -> None:
    # A child process must neither use nor close its parent's connections.
    while _engines:
        _engines.popitem()[1].dispose(close=False)


class CatalogReads:
    """A process's catalog reads. Thread-safe."""

    timeout = 2.0  # seconds until the database counts as unreachable; no limit for an SQLite file

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_READ_THREADS, "catalog-read")
        self.is_interrupted = False  # whether the last attempt to reach the database failed
        self._lock = Lock()
        self._is_closed = Event()

    def read(self, function: Callable[[], Value]) -> Value:
        """Run a function that reads the catalog; raise Unavailable, also if it does not respond in time."""
        self.require_reachable()
        try:
            if engine().dialect.name == "sqlite":
                return function()
            return self._submit(function).result(self.timeout)
        except (TimeoutError, Unavailable) as failure:
            raise self._interrupt(failure) from failure.__cause__

    async def read_async(self, function: Callable[[], Value]) -> Value:
        """Run :meth:`read` without blocking the event loop. Errors as for :meth:`read`."""
        self.require_reachable()
        try:
            is_bounded = engine().dialect.name != "sqlite"
            return await wait_for(wrap_future(self._submit(function)), self.timeout if is_bounded else None)
        except (TimeoutError, Unavailable) as failure:
            raise self._interrupt(failure) from failure.__cause__

    def require_reachable(self) -> None:
        """Check, without I/O, that the last attempt reached the database; raise Unavailable."""
        if self.is_interrupted:
            raise _unreachable()

    def close(self) -> None:
        """Stop the background thread."""
        self._is_closed.set()

    def _submit(self, function: Callable[[], Value]) -> Future[Value]:
        return self._threads.submit(copy_context().run, function)

    def _interrupt(self, failure: TimeoutError | Unavailable) -> Unavailable:
        """Interrupt the reads, because one failed or took too long; returns the error to raise."""
        if isinstance(failure, Unavailable):
            error = failure
        else:
            error = Unavailable("The catalog database does not respond; try again.", _RETRY_SECONDS)
        with self._lock:
            if self.is_interrupted or self._is_closed.is_set():
                return error
            self.is_interrupted = True
        log.warning("catalog_unreachable", error=error.detail)
        try:
            Thread(target=self._probe, name="catalog-probe", daemon=True).start()
        except RuntimeError as reason:  # no thread is free; the next read will try the database instead
            self.is_interrupted = False
            log.warning("catalog_probe_not_started", error=str(reason))
        return error

    def _probe(self) -> None:
        reason: str | None = None
        while not self._is_closed.wait(_PROBE_SECONDS):
            try:
                ping()
            except Unavailable:
                continue
            except Exception as error:  # if this thread ended, reads would never resume
                if str(error) != reason:
                    reason = str(error)
                    log.warning("catalog_probe_failed", error=reason, kind=type(error).__name__)
                continue
            log.info("catalog_reachable")
            break
        self.is_interrupted = False


os.register_at_fork(after_in_child=_forget_after_fork)
