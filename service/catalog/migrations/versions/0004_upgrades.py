"""Let a task upgrade a domain: learn its videos again, with another backbone or method."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "catalog_6"
down_revision = "catalog_5"


def upgrade() -> None:
    """Add the column."""
    op.add_column("tasks", sa.Column("upgrades", sa.Boolean(), server_default=sa.false(), nullable=False))
