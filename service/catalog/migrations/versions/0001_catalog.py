"""Create the tables of the catalog.

The tables are those of the metadata until the first release. Write out their statements (``alembic revision
--autogenerate`` on an empty catalog) before the second migration: a test compares the migrations with the metadata.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from service.catalog.migrations import CATALOG_SCHEMA
from service.catalog.tables import EditCounter, PositionCounter

revision = "catalog_1"
down_revision = None


def upgrade() -> None:
    """Create all tables, and the rows of the counters."""
    connection = op.get_bind()
    CATALOG_SCHEMA.create_all(connection)
    connection.execute(sa.insert(PositionCounter).values(id=1, last_position=0))
    connection.execute(sa.insert(EditCounter).values(id=1, last_edit=0))
