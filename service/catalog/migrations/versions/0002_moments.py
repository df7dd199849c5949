"""Moments: parts of long videos that have vectors of their own."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "moments",
        sa.Column("vector_id", _BIG, autoincrement=False, nullable=False),
        sa.Column("video_vector_id", _BIG, nullable=False),
        sa.Column("start_seconds", sa.Float(), nullable=False),
        sa.Column("end_seconds", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(
            ["video_vector_id"],
            ["videos.vector_id"],
            name=op.f("fk_moments_video_vector_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("vector_id", name=op.f("pk_moments")),
    )
    op.create_index(op.f("ix_moments_video_vector_id"), "moments", ["video_vector_id"], unique=False)


def downgrade() -> None:
    """Drop it. Vectors of moments stay in the index, and videos are found by them still."""
    op.drop_table("moments")
