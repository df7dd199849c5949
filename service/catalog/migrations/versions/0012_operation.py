"""Webhooks, alerts, maintenance jobs and reports of workers."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "webhooks",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("secret", sa.String(length=128), nullable=False),
        sa.Column("events", sa.JSON(), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        _time("created_at", nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhooks")),
    )
    op.create_table(
        "deliveries",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("webhook_id", sa.String(length=64), nullable=False),
        sa.Column("message_id", sa.String(length=64), nullable=False),
        sa.Column("event", sa.String(length=32), nullable=False),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        _time("next_attempt_at"),
        _time("lease_expires_at"),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("answer", sa.Text(), nullable=True),
        _time("created_at", nullable=False),
        _time("finished_at"),
        sa.CheckConstraint("state IN ('pending', 'delivered', 'failed')", name=op.f("ck_deliveries_state")),
        sa.ForeignKeyConstraint(
            ["webhook_id"], ["webhooks.id"], name=op.f("fk_deliveries_webhook_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deliveries")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_deliveries_state_next_attempt_at", "deliveries", ["state", "next_attempt_at"])
    op.create_index("ix_deliveries_webhook_id_id", "deliveries", ["webhook_id", "id"])
    op.create_index(op.f("ix_deliveries_finished_at"), "deliveries", ["finished_at"])
    op.create_table(
        "alert_thresholds",
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("value", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("kind", name=op.f("pk_alert_thresholds")),
    )
    op.create_table(
        "alerts",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("task_id", sa.String(length=128), nullable=True),
        sa.Column("open_key", sa.String(length=200), nullable=True),
        sa.Column("value", sa.Float(), nullable=False),
        sa.Column("threshold", sa.Float(), nullable=False),
        _time("raised_at", nullable=False),
        _time("cleared_at"),
        _time("dismissed_at"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alerts")),
        sa.UniqueConstraint("open_key", name=op.f("uq_alerts_open_key")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_alerts_cleared_at"), "alerts", ["cleared_at"])
    op.create_table(
        "maintenance_jobs",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("task_id", sa.String(length=128), nullable=True),
        sa.Column("state", sa.String(length=16), nullable=False),
        _time("created_at", nullable=False),
        _time("started_at"),
        _time("finished_at"),
        _time("lease_expires_at"),
        sa.Column("fencing_token", sa.BigInteger(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("result", sa.JSON(none_as_null=True), nullable=True),
        sa.CheckConstraint("kind IN ('compact', 'snapshot')", name=op.f("ck_maintenance_jobs_kind")),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'done', 'failed')", name=op.f("ck_maintenance_jobs_state")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_maintenance_jobs")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_maintenance_jobs_state"), "maintenance_jobs", ["state"])
    op.create_table(
        "worker_reports",
        sa.Column("name", sa.String(length=255), nullable=False),
        _time("seen_at", nullable=False),
        sa.Column("free_bytes", sa.BigInteger(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        _time("error_at"),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_worker_reports")),
    )
    op.create_index(op.f("ix_worker_reports_seen_at"), "worker_reports", ["seen_at"])


def downgrade() -> None:
    """Drop them."""
    for table in (
        "worker_reports",
        "maintenance_jobs",
        "alerts",
        "alert_thresholds",
        "deliveries",
        "webhooks",
    ):
        op.drop_table(table)


def _time(name: str, *, nullable: bool = True) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)
