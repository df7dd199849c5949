"""Versions of the catalog's schema (alembic).

To change the schema, change the tables and add the next file to ``versions/``; a test compares the two on both
databases. SQLAlchemy knows a table once its module is imported, so ``CATALOG_SCHEMA`` imports all of them.
"""

from __future__ import annotations

import time
from pathlib import Path

import structlog
from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import Engine, text
from sqlalchemy.exc import OperationalError

from service.catalog import operation_tables  # noqa: F401
from service.catalog.database import engine
from service.catalog.tables import Base
from service.core.errors import Conflict, Unavailable
from service.core.settings import Settings

CATALOG_SCHEMA = Base.metadata
WAIT_SECONDS = 60.0  # a database server that starts at the same time is up by then

_RETRY_SECONDS = 1.0
_UPGRADE_LOCK = 0x63696E65  # key of the advisory lock: one process of a cluster migrates at a time

log = structlog.get_logger(__name__)


def alembic_config() -> Config:
    """Return alembic's configuration, which needs no file."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.set_main_option("path_separator", "os")
    return config


def upgrade(configured: Settings | None = None) -> None:
    """Upgrade the catalog to the newest schema in one transaction. Concurrent calls of many processes are safe.

    Args:
        configured: Settings that name the database; None: the settings of this process.

    Raises:
        Unavailable: the database cannot be reached.
        Conflict: the schema is that of another version.
    """
    upgrade_engine(engine(configured))


def upgrade_engine(database: Engine) -> None:
    """Upgrade the catalog of an engine, see :func:`upgrade`.

    Raises:
        Unavailable: the database cannot be reached.
    """
    config = alembic_config()
    try:
        with database.execution_options(cinestrata_write=True).begin() as connection:
            if connection.dialect.name == "postgresql":
                # The migration of another process may take minutes: longer than the catalog waits for a lock otherwise.
                connection.execute(text("SET LOCAL lock_timeout TO DEFAULT"))
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _UPGRADE_LOCK})
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    except CommandError as error:
        raise Conflict(
            "The catalog was made by another version of Cinestrata; use that version, or another data folder."
        ) from error
    except OperationalError as error:
        raise Unavailable(
            f"The catalog database cannot be reached ({_first_line(error)}); check CINESTRATA_DATABASE_URL.",
            5,
        ) from error


def upgrade_when_reachable(configured: Settings, wait_seconds: float | None = None) -> None:
    """Upgrade the catalog, and wait for a database that does not answer yet.

    Args:
        wait_seconds: Maximum time to wait; None: ``WAIT_SECONDS``.

    Raises:
        Unavailable: the database could not be reached in this time.
    """
    wait_seconds = WAIT_SECONDS if wait_seconds is None else wait_seconds
    deadline = time.monotonic() + wait_seconds
    is_waiting = False
    while True:
        try:
            upgrade(configured)
            return
        except Unavailable as error:
            if time.monotonic() + _RETRY_SECONDS > deadline:
                raise Unavailable(f"{error.detail} Gave up after {wait_seconds:g} seconds.", 5) from error
            if not is_waiting:
                log.warning("waiting_for_database", reason=error.detail, timeout_seconds=wait_seconds)
                is_waiting = True
        time.sleep(_RETRY_SECONDS)


def _first_line(error: OperationalError) -> str:
    return str(error.orig).strip().partition("\n")[0]
