"""Syncs: domains that follow a folder of videos."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "syncs",
        sa.Column("id", sa.String(length=128), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("every_seconds", sa.Integer(), nullable=False),
        sa.Column("vanished", sa.String(length=8), nullable=False),
        sa.Column("captions_from_names", sa.Boolean(), nullable=False),
        sa.Column("task_id", sa.String(length=128), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("next_run_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("lease_expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("fencing_token", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("counts", sa.JSON(none_as_null=True), nullable=True),
        sa.CheckConstraint("vanished IN ('keep', 'delete')", name=op.f("ck_syncs_vanished")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_syncs")),
        sa.UniqueConstraint("name", name=op.f("uq_syncs_name")),
    )
    op.create_index(op.f("ix_syncs_next_run_at"), "syncs", ["next_run_at"], unique=False)


def downgrade() -> None:
    """Drop it."""
    op.drop_index(op.f("ix_syncs_next_run_at"), table_name="syncs")
    op.drop_table("syncs")
