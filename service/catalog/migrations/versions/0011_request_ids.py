"""Identifiers of the HTTP requests that created tasks."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; requests before it are unknown."""
    op.add_column("tasks", sa.Column("request_id", sa.String(length=64), nullable=True))


def downgrade() -> None:
    """Drop it."""
    op.drop_column("tasks", "request_id")
