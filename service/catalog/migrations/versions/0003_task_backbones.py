"""Let each task name its backbone; that of a learned domain is the one of its shard's release."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "catalog_5"
down_revision = "catalog_4"


def upgrade() -> None:
    """Add the column."""
    op.add_column("tasks", sa.Column("backbone", sa.String(255).with_variant(sa.Text(), "sqlite")))
    op.execute(
        "UPDATE tasks SET backbone = (SELECT releases.backbone FROM shards JOIN releases "
        "ON releases.id = shards.release_id WHERE shards.task_id = tasks.id)"
    )
