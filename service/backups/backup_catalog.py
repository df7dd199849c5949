"""The catalog of a backup: an SQLite file, whichever database the library uses."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from index.files.durable_files import sync
from service.backups.backup_files import CATALOG, BackupFile, require_intact_catalog, write_backup

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from service.core.settings import Settings

__all__ = ["find_catalog_rows", "installed_catalog", "write_catalog_copy"]


def write_catalog_copy(settings: Settings, target: Path) -> bool:
    """Write a consistent copy of the catalog to an SQLite file while other processes use the catalog.

    Args:
        settings: Settings that name the catalog.
        target: New file.

    Returns:
        Whether there is a catalog; False before the first start with SQLite.

    Raises:
        Conflict: The catalog has another schema than this version.
        Unavailable: The database does not answer.
    """
    from service.catalog.database import SQLITE_BUSY_SECONDS, sqlite_path

    file = sqlite_path(settings.database_url)
    if file is None:
        _copy_rows(settings, _at(settings, target))
    elif not file.exists():
        return False
    else:
        with (
            closing(sqlite3.connect(file, timeout=SQLITE_BUSY_SECONDS)) as source,
            closing(sqlite3.connect(target)) as copy,
        ):
            source.backup(copy)
    require_intact_catalog(target)
    return True


def find_catalog_rows(settings: Settings) -> str | None:
    """Name of a table of the PostgreSQL catalog of the settings that has rows; None if there is none."""
    from service.catalog.catalog_copy import find_filled_table
    from service.catalog.database import open_engine

    engine = open_engine(settings.database_url)
    try:
        with engine.connect() as connection:
            return find_filled_table(connection)
    finally:
        engine.dispose()


@contextmanager
def installed_catalog(settings: Settings, source: Path, *, origin: Path) -> Iterator[None]:
    """Install a restored catalog when the ``with`` block succeeds; after an exception nothing is installed.

    The audit log of the restored catalog has an entry of the restoration.

    Args:
        settings: Settings that name the target, an absent SQLite file or an empty PostgreSQL database.
        source: Catalog of the backup; it may have an older schema.
        origin: The backup, as the audit log names it.
    """
    from service.catalog.database import open_engine, sqlite_path
    from service.catalog.migrations import upgrade_engine

    file = sqlite_path(settings.database_url)
    if file is None:
        with _copied_rows(_at(settings, source), settings) as connection:
            _record_restoration(connection, origin)
            yield
        return
    # On the file system of its target, so that a rename can publish it.
    file.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=file.parent, prefix=".restore-") as folder:
        restored = Path(folder) / CATALOG
        write_backup(Path(folder), {CATALOG: BackupFile.from_path(source)})
        engine = open_engine(f"sqlite:///{restored}")
        try:
            upgrade_engine(engine)
            with engine.begin() as connection:
                _record_restoration(connection, origin)
        finally:
            engine.dispose()  # the last connection completes the file
        sync(restored)
        yield
        os.rename(restored, file)
        sync(file.parent)


def _copy_rows(source: Settings, target: Settings) -> None:
    with _copied_rows(source, target):
        pass


@contextmanager
def _copied_rows(source: Settings, target: Settings) -> Iterator[Connection]:
    """Copy the rows of one catalog into another; the copy is committed after the ``with`` block.

    Yields the connection to the target.
    """
    from service.catalog.catalog_copy import copy_catalog
    from service.catalog.database import open_engine
    from service.catalog.migrations import upgrade_engine

    # Engines of their own: SQLite completes its file when the last connection to it is closed.
    engines = [open_engine(settings.database_url) for settings in (source, target)]
    try:
        for engine in engines:
            # The catalog of a running library keeps its schema, because its processes may be of an earlier version.
            if engine is engines[1] or engine.dialect.name == "sqlite":
                upgrade_engine(engine)
        with engines[0].connect() as reader, engines[1].begin() as writer:
            if engines[0].dialect.name == "postgresql":
                reader.execution_options(isolation_level="REPEATABLE READ")
            copy_catalog(reader, writer)
            yield writer
    finally:
        for engine in engines:
            engine.dispose()


def _record_restoration(connection: Connection, origin: Path) -> None:
    from sqlalchemy.orm import Session

    from service.audit.audit_log import record_change

    with Session(connection) as session:
        record_change(session, "snapshot.restore", str(origin))
        session.commit()


def _at(settings: Settings, file: Path) -> Settings:
    return settings.model_copy(update={"database_url": f"sqlite:///{file}"})
