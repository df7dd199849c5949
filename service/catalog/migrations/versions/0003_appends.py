"""Appends: tasks that add videos to the shard of a learned domain, and times of deletion and addition."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns."""
    op.add_column("tasks", sa.Column("target_id", sa.String(length=128), nullable=True))
    op.add_column("tasks", sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("videos", sa.Column("added_at", sa.DateTime(timezone=True), nullable=True))
    op.create_index(op.f("ix_tasks_target_id"), "tasks", ["target_id"], unique=False)


def downgrade() -> None:
    """Drop them. An unfinished append then appears as a domain."""
    op.drop_index(op.f("ix_tasks_target_id"), table_name="tasks")
    op.drop_column("videos", "added_at")
    op.drop_column("tasks", "deleted_at")
    op.drop_column("tasks", "target_id")
