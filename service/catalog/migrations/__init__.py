"""The catalog's schema, step by step (alembic).

To change the schema: change ``models.py``, add the next file to ``versions/``; a test asserts that both agree
on both databases.
"""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from service.catalog.database import engine
from service.core.errors import Unavailable
from service.core.settings import Settings

__all__ = ["config", "upgrade"]

_UPGRADE_LOCK = 0x63696E65  # one migration at a time, whichever process of a cluster comes first


def config() -> Config:
    """Alembic's configuration, without a file."""
    made = Config()
    made.set_main_option("script_location", str(Path(__file__).parent))
    made.set_main_option("path_separator", "os")
    return made


def upgrade(configured: Settings | None = None) -> None:
    """Bring the configured database (by default this process's) to the newest schema: all of it or nothing.

    Safe to call from many processes at once.

    Raises:
        Unavailable: the database cannot be reached.
    """
    prepared = config()
    try:
        with engine(configured).execution_options(cinestrata_write=True).begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _UPGRADE_LOCK})
            prepared.attributes["connection"] = connection
            command.upgrade(prepared, "head")
    except OperationalError as error:
        raise Unavailable(
            "The catalog database cannot be reached; check CINESTRATA_DATABASE_URL.", 5
        ) from error
