"""Let an upgrade leave videos that cannot be read in their shard."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "catalog_9"
down_revision = "catalog_8"


def upgrade() -> None:
    """Add the column."""
    op.add_column("tasks", sa.Column("partial", sa.Boolean(), server_default=sa.false(), nullable=False))
