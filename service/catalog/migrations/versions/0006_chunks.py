"""Chunks: parts of a task that several workers process at the same time; and an index of the contents of videos."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create the table and the index."""
    op.create_table(
        "chunks",
        sa.Column("id", _BIG, autoincrement=True, nullable=False),
        sa.Column("task_id", sa.String(length=128), nullable=False),
        sa.Column("stage", sa.String(length=16), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("first_id", _BIG, nullable=False),
        sa.Column("last_id", _BIG, nullable=False),
        sa.Column("videos", sa.Integer(), nullable=False),
        sa.Column("finished", sa.Integer(), nullable=False),
        sa.Column("done_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("run", sa.String(length=64), nullable=True),
        sa.Column("checksum", sa.String(length=64), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("lease_owner", sa.String(length=255), nullable=True),
        sa.Column("lease_expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("fencing_token", sa.BigInteger(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.CheckConstraint("stage IN ('probing', 'indexing')", name=op.f("ck_chunks_stage")),
        sa.ForeignKeyConstraint(
            ["task_id"], ["tasks.id"], name=op.f("fk_chunks_task_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_chunks")),
        sa.UniqueConstraint("task_id", "stage", "number", name=op.f("uq_chunks_task_id_stage_number")),
    )
    op.create_index(op.f("ix_videos_content_hash"), "videos", ["content_hash"], unique=False)


def downgrade() -> None:
    """Drop them. Workers of the former version probe a task from its first pending video."""
    op.drop_index(op.f("ix_videos_content_hash"), table_name="videos")
    op.drop_table("chunks")
