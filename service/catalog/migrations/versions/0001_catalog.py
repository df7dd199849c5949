"""The first schema: tasks in a line, their videos, releases, shards, the recall matrix, events."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_GROWING_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create all tables."""
    op.create_table(
        "line",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("last_position", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_line")),
    )
    op.create_table(
        "recalls",
        sa.Column("id", _GROWING_ID, autoincrement=True, nullable=False),
        sa.Column("release_order", sa.Integer(), nullable=False),
        sa.Column("task_order", sa.Integer(), nullable=False),
        sa.Column("mode", sa.String(length=8), nullable=False),
        sa.Column("gallery", sa.String(length=16), nullable=False),
        sa.Column("queries", sa.Integer(), nullable=False),
        sa.Column("r1", sa.Float(), nullable=False),
        sa.Column("r5", sa.Float(), nullable=False),
        sa.Column("r10", sa.Float(), nullable=False),
        sa.Column("medr", sa.Float(), nullable=False),
        sa.Column("meanr", sa.Float(), nullable=False),
        sa.Column("routing1", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_recalls")),
        sa.UniqueConstraint(
            "release_order",
            "task_order",
            "mode",
            "gallery",
            name=op.f("uq_recalls_release_order_task_order_mode_gallery"),
        ),
    )
    op.create_table(
        "tasks",
        sa.Column("id", sa.String(length=128), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.String(length=80), nullable=False),
        sa.Column("method", sa.String(length=64), nullable=False),
        sa.Column("settings", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("progress", sa.JSON(), nullable=False),
        sa.Column("eta_seconds", sa.Float(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("error_hint", sa.Text(), nullable=True),
        sa.Column("counts", sa.JSON(), nullable=False),
        sa.Column("probed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("lease_owner", sa.String(length=255), nullable=True),
        sa.Column("lease_expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("fencing_token", sa.BigInteger(), nullable=False),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("release_id", sa.String(length=64), nullable=True),
        sa.Column("learned_order", sa.Integer(), nullable=True),
        sa.Column("trained", sa.Boolean(), nullable=False),
        sa.Column("held_out", sa.String(length=16), nullable=True),
        sa.CheckConstraint(
            "state IN ('queued', 'probing', 'training', 'indexing', 'evaluating', 'ready', 'failed', 'cancelled')",
            name=op.f("ck_tasks_state"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tasks")),
        sa.UniqueConstraint("learned_order", name=op.f("uq_tasks_learned_order")),
        sa.UniqueConstraint("name", name=op.f("uq_tasks_name")),
        sa.UniqueConstraint("position", name=op.f("uq_tasks_position")),
    )
    op.create_index("ix_tasks_state_position", "tasks", ["state", "position"], unique=False)
    op.create_table(
        "events",
        sa.Column("id", _GROWING_ID, autoincrement=True, nullable=False),
        sa.Column("task_id", sa.String(length=128), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["task_id"], ["tasks.id"], name=op.f("fk_events_task_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_events_task_id_id", "events", ["task_id", "id"], unique=False)
    op.create_table(
        "idempotency_keys",
        sa.Column("caller", sa.String(length=128), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("body_hash", sa.String(length=64), nullable=False),
        sa.Column("task_id", sa.String(length=128), nullable=True),
        sa.Column("response", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("locked_until", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["task_id"], ["tasks.id"], name=op.f("fk_idempotency_keys_task_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("caller", "key", name=op.f("pk_idempotency_keys")),
    )
    op.create_index(op.f("ix_idempotency_keys_created_at"), "idempotency_keys", ["created_at"], unique=False)
    op.create_table(
        "releases",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("task_id", sa.String(length=128), nullable=False),
        sa.Column("learned_order", sa.Integer(), nullable=False),
        sa.Column("method", sa.String(length=64), nullable=False),
        sa.Column("backbone", sa.String(length=255), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("metrics", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["task_id"], ["tasks.id"], name=op.f("fk_releases_task_id"), ondelete="RESTRICT"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_releases")),
        sa.UniqueConstraint("learned_order", name=op.f("uq_releases_learned_order")),
        sa.UniqueConstraint("task_id", name=op.f("uq_releases_task_id")),
    )
    op.create_table(
        "videos",
        sa.Column("vector_id", _GROWING_ID, autoincrement=True, nullable=False),
        sa.Column("id", sa.String(length=128), nullable=False),
        sa.Column("task_id", sa.String(length=128), nullable=False),
        sa.Column("uri", sa.Text(), nullable=False),
        sa.Column("split", sa.String(length=8), nullable=True),
        sa.Column("effective_split", sa.String(length=8), nullable=True),
        sa.Column("captions", sa.JSON(), nullable=False),
        sa.Column("metadata", sa.JSON(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("content_hash", sa.String(length=64), nullable=True),
        sa.Column("bytes", sa.BigInteger(), nullable=True),
        sa.Column("container", sa.String(length=64), nullable=True),
        sa.Column("codec", sa.String(length=64), nullable=True),
        sa.Column("width", sa.Integer(), nullable=True),
        sa.Column("height", sa.Integer(), nullable=True),
        sa.Column("fps", sa.Float(), nullable=True),
        sa.Column("duration", sa.Float(), nullable=True),
        sa.Column("frames", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("status IN ('pending', 'accepted', 'rejected')", name=op.f("ck_videos_status")),
        sa.ForeignKeyConstraint(
            ["task_id"], ["tasks.id"], name=op.f("fk_videos_task_id"), ondelete="RESTRICT"
        ),
        sa.PrimaryKeyConstraint("vector_id", name=op.f("pk_videos")),
        sa.UniqueConstraint("id", name=op.f("uq_videos_id")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_videos_task_id_status", "videos", ["task_id", "status"], unique=False)
    op.create_table(
        "shards",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("task_id", sa.String(length=128), nullable=False),
        sa.Column("release_id", sa.String(length=64), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("dim", sa.Integer(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["release_id"], ["releases.id"], name=op.f("fk_shards_release_id"), ondelete="RESTRICT"
        ),
        sa.ForeignKeyConstraint(
            ["task_id"], ["tasks.id"], name=op.f("fk_shards_task_id"), ondelete="RESTRICT"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_shards")),
        sa.UniqueConstraint("task_id", name=op.f("uq_shards_task_id")),
    )

    op.bulk_insert(
        sa.table("line", sa.column("id", sa.Integer), sa.column("last_position", sa.BigInteger)),
        [{"id": 1, "last_position": 0}],
    )


def downgrade() -> None:
    """Drop them."""
    for table in ("shards", "videos", "releases", "idempotency_keys", "events", "tasks", "recalls", "line"):
        op.drop_table(table)
