"""Back up and restore the catalog as an SQLite file, whichever database the library uses."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from index.files.durable_files import sync
from service.backups.backup_files import CATALOG, BackupFile, require_intact_catalog, write_backup

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

    from service.core.settings import Settings


@contextmanager
def open_catalog_copy(settings: Settings) -> Iterator[Callable[[Path], None] | None]:
    """Freeze the catalog's current state; yield a function that writes it to a new SQLite file.

    Other processes may change the catalog meanwhile. Yields None if there is no catalog, that is, before the first
    start with SQLite.

    Raises:
        Conflict: The catalog's schema differs from this version's.
        Unavailable: The database does not respond.
    """
    from service.catalog.database import SQLITE_BUSY_SECONDS, sqlite_path

    file = sqlite_path(settings.database_url)
    if file is None:
        with _use_engine(settings.database_url) as engine, engine.connect() as reader:
            _begin_reading(reader)
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
    from service.catalog.catalog_copy import copy_catalog
    from service.catalog.migrations import upgrade_engine

    with _use_engine(target) as engine:
        upgrade_engine(engine)
        with engine.begin() as writer:
            copy_catalog(reader, writer)
    require_intact_catalog(target)


def find_catalog_rows(settings: Settings) -> str | None:
    """Find a table with rows in the configured PostgreSQL catalog and return its name; None if there is none."""
    from service.catalog.catalog_copy import find_filled_table

    with _use_engine(settings.database_url) as engine, engine.connect() as connection:
        return find_filled_table(connection)


def reserve_vector_ids(settings: Settings, last_video: int) -> None:
    """Raise the vector ID counter in a PostgreSQL catalog that another tool restored; without tables, do nothing.

    Args:
        last_video: As for :func:`install_catalog`.
    """
    from sqlalchemy import inspect

    from service.catalog.catalog_copy import reserve_generated_ids
    from service.catalog.tables import Video

    with _use_engine(settings.database_url) as engine, engine.begin() as connection:
        if inspect(connection).has_table(Video.__tablename__):
            reserve_generated_ids(connection, Video, last_video)


@contextmanager
def install_catalog(settings: Settings, source: Path, *, origin: Path, last_video: int) -> Iterator[None]:
    """Install a restored catalog once the ``with`` block succeeds; after an exception, install nothing.

    The restored catalog's audit log records the restoration.

    Args:
        settings: Settings that name the target, a missing SQLite file or an empty PostgreSQL database.
        source: Catalog of the backup.
        origin: Name of the backup for the audit log.
        last_video: Highest video ID in the index. The catalog assigns only higher ones: an index restored on its own
            may contain videos that the catalog does not know, and new videos must not take over their vectors.
    """
    from service.catalog.database import sqlite_path
    from service.catalog.migrations import upgrade_engine

    file = sqlite_path(settings.database_url)
    if file is None:
        with _copy_rows(source, settings) as connection:
            _complete_restoration(connection, origin, last_video)
            yield
        return
    # On the target's file system, so that a rename can publish it.
    file.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=file.parent, prefix=".restore-") as folder:
        restored = Path(folder) / CATALOG
        write_backup(Path(folder), {CATALOG: BackupFile.from_path(source)})
        with _use_engine(restored) as engine:
            upgrade_engine(engine)
            with engine.begin() as connection:
                _complete_restoration(connection, origin, last_video)
        sync(restored)
        yield
        os.rename(restored, file)
        try:
            sync(file.parent)
        except OSError:
            os.rename(file, restored)
            raise


@contextmanager
def _copy_rows(source: Path, target: Settings) -> Iterator[Connection]:
    """Copy an SQLite catalog's rows into another database, and commit after the ``with`` block.

    Yields the connection to the target.
    """
    from service.catalog.catalog_copy import copy_catalog
    from service.catalog.migrations import upgrade_engine

    with _use_engine(source) as file, _use_engine(target.database_url) as database:
        upgrade_engine(file)
        upgrade_engine(database)
        with file.connect() as reader, database.begin() as writer:
            copy_catalog(reader, writer)
            yield writer


def _begin_reading(reader: Connection) -> None:
    """Begin a transaction that sees no later change."""
    from sqlalchemy import select

    reader.execution_options(isolation_level="REPEATABLE READ")
    reader.execute(select(1))  # PostgreSQL fixes the visible rows at the first statement


@contextmanager
def _use_engine(database: str | Path) -> Iterator[Engine]:
    """Open an engine for a ``with`` block: SQLite completes its file when the last connection to it is closed.

    Args:
        database: URL, or path of an SQLite file.
    """
    from service.catalog.database import open_engine
    from service.core.settings import file_url

    engine = open_engine(file_url("sqlite:///", database) if isinstance(database, Path) else database)
    try:
        yield engine
    finally:
        engine.dispose()


def _complete_restoration(connection: Connection, origin: Path, last_video: int) -> None:
    from sqlalchemy.orm import Session

    from service.access.audit_log import record_change
    from service.catalog.catalog_copy import reserve_generated_ids
    from service.catalog.tables import Video

    reserve_generated_ids(connection, Video, last_video)

    with Session(connection) as session:
        record_change(session, "snapshot.restore", str(origin))
        session.commit()
