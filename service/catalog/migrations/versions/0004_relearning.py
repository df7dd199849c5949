"""Relearning: domains that take over the appended videos of another domain."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns."""
    vector_id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.add_column("tasks", sa.Column("relearns_id", sa.String(length=128), nullable=True))
    op.create_index(op.f("ix_tasks_relearns_id"), "tasks", ["relearns_id"], unique=False)
    op.add_column("videos", sa.Column("copy_of", vector_id, nullable=True))
    op.create_index(op.f("ix_videos_copy_of"), "videos", ["copy_of"], unique=False)


def downgrade() -> None:
    """Drop them. The copies of an unfinished relearning then are videos of their own."""
    op.drop_index(op.f("ix_videos_copy_of"), table_name="videos")
    op.drop_column("videos", "copy_of")
    op.drop_index(op.f("ix_tasks_relearns_id"), table_name="tasks")
    op.drop_column("tasks", "relearns_id")
