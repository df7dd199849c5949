"""Calibrations: confidence models that appends fitted again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "calibrations",
        sa.Column(
            "id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("task_id", sa.String(length=128), nullable=False),
        sa.Column("release_id", sa.String(length=64), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("model", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["task_id"], ["tasks.id"], name=op.f("fk_calibrations_task_id_tasks"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_calibrations")),
    )
    for column in ("task_id", "release_id"):
        op.create_index(op.f(f"ix_calibrations_{column}"), "calibrations", [column], unique=False)


def downgrade() -> None:
    """Drop it. Releases then serve the models that they were learned with."""
    for column in ("release_id", "task_id"):
        op.drop_index(op.f(f"ix_calibrations_{column}"), table_name="calibrations")
    op.drop_table("calibrations")
