"""Edits of captions and metadata: counters that version the caches of searches."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_COLUMNS = ("caption_edits", "metadata_edits")


def upgrade() -> None:
    """Add the columns."""
    for name in _COLUMNS:
        op.add_column("tasks", sa.Column(name, sa.BigInteger(), server_default="0", nullable=False))
        op.create_index(op.f(f"ix_tasks_{name}"), "tasks", [name], unique=False)


def downgrade() -> None:
    """Drop them."""
    for name in _COLUMNS:
        op.drop_index(op.f(f"ix_tasks_{name}"), table_name="tasks")
        op.drop_column("tasks", name)
