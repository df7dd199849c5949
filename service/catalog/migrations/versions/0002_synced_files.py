"""Let syncs remember their files, and videos that their file was replaced.

The first sync after 1.0 reads all files, and finds the video of each by its content.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "catalog_2"
down_revision = "catalog_1"

_GROWING_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create the table and the column."""
    op.add_column("videos", sa.Column("replaced_at", sa.DateTime(timezone=True), nullable=True))
    op.create_table(
        "synced_files",
        sa.Column("id", _GROWING_ID, autoincrement=True, nullable=False),
        sa.Column("task_id", sa.String(length=128), nullable=False),
        sa.Column("key", sa.String(length=32), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=True),
        sa.Column("bytes", sa.BigInteger(), nullable=True),
        sa.Column("modified", sa.BigInteger(), nullable=True),
        sa.Column("changed", sa.BigInteger(), nullable=True),
        sa.Column("file_id", sa.String(length=64), nullable=True),
        sa.Column("sha256", sa.String(length=64), nullable=True),
        sa.Column("video_id", sa.String(length=128), nullable=True),
        sa.Column("captions", sa.JSON(), nullable=True),
        sa.Column("transcript", sa.String(length=64), nullable=True),
        sa.ForeignKeyConstraint(
            ["task_id"], ["tasks.id"], name=op.f("fk_synced_files_task_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_synced_files")),
        sa.UniqueConstraint("task_id", "key", name=op.f("uq_synced_files_task_id_key")),
    )
    op.create_index("ix_synced_files_sha256", "synced_files", ["sha256"], unique=False)
