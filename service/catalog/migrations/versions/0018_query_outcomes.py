"""Outcome of each query in the cells of the recall matrix, so that two releases are compared query by query."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; earlier cells have no outcomes, so their losses have no interval."""
    op.add_column("recalls", sa.Column("query_set", sa.String(64), nullable=True))
    op.add_column("recalls", sa.Column("first_hits", sa.LargeBinary(), nullable=True))


def downgrade() -> None:
    """Drop them."""
    for name in ("first_hits", "query_set"):
        op.drop_column("recalls", name)
