"""Method and settings with which a failed task fits its library."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    op.add_column("tasks", sa.Column("remedy", sa.JSON(), nullable=True))


def downgrade() -> None:
    """Drop it."""
    op.drop_column("tasks", "remedy")
