"""Keep the leases of requests, syncs, jobs and webhooks in one table.

Leases held during the upgrade end: their work starts again, as after the death of its worker.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "catalog_3"
down_revision = "catalog_2"


def upgrade() -> None:
    """Create the table, and drop the columns that it replaces."""
    op.create_table(
        "leases",
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("id", sa.String(length=384), nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("until", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("kind", "id", name=op.f("pk_leases")),
    )
    op.execute("UPDATE syncs SET next_run_at = started_at WHERE lease_expires_at IS NOT NULL")
    op.drop_column("syncs", "lease_expires_at")
    op.drop_column("syncs", "fencing_token")
    op.drop_column("webhooks", "lease_expires_at")
    op.drop_column("idempotency_keys", "locked_until")
    op.drop_column("maintenance_jobs", "lease_expires_at")
    op.execute("ALTER TABLE maintenance_jobs RENAME COLUMN fencing_token TO attempts")
