"""GPU memory in the reports of workers."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; reports before it have no GPUs."""
    op.add_column("worker_reports", sa.Column("gpus", sa.JSON(), nullable=True))


def downgrade() -> None:
    """Drop it."""
    op.drop_column("worker_reports", "gpus")
