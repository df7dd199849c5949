"""Turns of webhook endpoints: a lease and a pause of the whole endpoint, in place of leases of single messages."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns of endpoints, and replace the lease and the index of messages."""
    op.add_column("webhooks", sa.Column("failures", sa.Integer(), server_default="0", nullable=False))
    op.add_column("webhooks", sa.Column("next_attempt_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("webhooks", sa.Column("lease_expires_at", sa.DateTime(timezone=True), nullable=True))
    op.drop_index("ix_deliveries_state_next_attempt_at", table_name="deliveries")
    op.create_index("ix_deliveries_webhook_id_state_id", "deliveries", ["webhook_id", "state", "id"])
    op.drop_column("deliveries", "lease_expires_at")


def downgrade() -> None:
    """Restore leases of messages; no message is leased."""
    op.add_column("deliveries", sa.Column("lease_expires_at", sa.DateTime(timezone=True), nullable=True))
    op.drop_index("ix_deliveries_webhook_id_state_id", table_name="deliveries")
    op.create_index("ix_deliveries_state_next_attempt_at", "deliveries", ["state", "next_attempt_at"])
    for name in ("lease_expires_at", "next_attempt_at", "failures"):
        op.drop_column("webhooks", name)
