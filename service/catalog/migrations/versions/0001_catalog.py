"""Create the catalog's tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "catalog_1"
down_revision = None

_GROWING_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create all tables, and the counters' rows."""
    op.create_table(
        "alerts",
        sa.Column("id", _GROWING_ID, autoincrement=True, nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("task_id", sa.String(length=128), nullable=True),
        sa.Column("open_key", sa.String(length=200), nullable=True),
        sa.Column("value", sa.Float(), nullable=False),
        sa.Column("threshold", sa.Float(), nullable=False),
        sa.Column("raised_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("cleared_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("dismissed_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alerts")),
        sa.UniqueConstraint("open_key", name=op.f("uq_alerts_open_key")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_alerts_cleared_at"), "alerts", ["cleared_at"], unique=False)
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=80), nullable=False),
        sa.Column("name_key", sa.String(length=240), nullable=False),
        sa.Column("secret_hash", sa.String(length=64), nullable=False),
        sa.Column("scope", sa.String(length=8), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(length=255), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("scope IN ('search', 'ingest', 'admin')", name=op.f("ck_api_keys_scope")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
    )
    op.create_index(op.f("ix_api_keys_name_key"), "api_keys", ["name_key"], unique=False)
    op.create_table(
        "audit_log",
        sa.Column("id", _GROWING_ID, autoincrement=True, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("actor", sa.String(length=255), nullable=False),
        sa.Column("actor_kind", sa.String(length=16), nullable=False),
        sa.Column("action", sa.String(length=64), nullable=False),
        sa.Column("target", sa.String(length=255), nullable=False),
        sa.Column("address", sa.String(length=64), nullable=True),
        sa.Column("request_id", sa.String(length=128), nullable=True),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_log")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_audit_log_action_id", "audit_log", ["action", "id"], unique=False)
    op.create_index("ix_audit_log_actor_id", "audit_log", ["actor", "id"], unique=False)
    op.create_index(op.f("ix_audit_log_at"), "audit_log", ["at"], unique=False)
    op.create_index("ix_audit_log_target_id", "audit_log", ["target", "id"], unique=False)
    op.create_table(
        "edits",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("last_edit", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_edits")),
    )
    op.create_table(
        "file_removals",
        sa.Column("id", _GROWING_ID, autoincrement=True, nullable=False),
        sa.Column("video_id", sa.String(length=128), nullable=False),
        sa.Column("uri", sa.Text(), nullable=False),
        sa.Column("content_hash", sa.String(length=64), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_file_removals")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "line",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("last_position", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_line")),
    )
    op.create_table(
        "maintenance_jobs",
        sa.Column("id", _GROWING_ID, autoincrement=True, nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("task_id", sa.String(length=128), nullable=True),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("lease_expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("fencing_token", sa.BigInteger(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("result", sa.JSON(), nullable=True),
        sa.CheckConstraint("kind IN ('compact', 'snapshot')", name=op.f("ck_maintenance_jobs_kind")),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'done', 'failed')", name=op.f("ck_maintenance_jobs_state")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_maintenance_jobs")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_maintenance_jobs_state"), "maintenance_jobs", ["state"], unique=False)
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
        sa.Column("query_set", sa.String(length=64), nullable=True),
        sa.Column("first_hits", sa.LargeBinary(), nullable=True),
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
        "syncs",
        sa.Column("id", sa.String(length=128), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("every_seconds", sa.Integer(), nullable=False),
        sa.Column("vanished", sa.String(length=8), nullable=False),
        sa.Column("captions_from_names", sa.Boolean(), nullable=False),
        sa.Column("task_id", sa.String(length=128), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("next_run_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("lease_expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("fencing_token", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("counts", sa.JSON(), nullable=True),
        sa.CheckConstraint("vanished IN ('keep', 'delete')", name=op.f("ck_syncs_vanished")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_syncs")),
        sa.UniqueConstraint("name", name=op.f("uq_syncs_name")),
    )
    op.create_index(op.f("ix_syncs_next_run_at"), "syncs", ["next_run_at"], unique=False)
    op.create_table(
        "tasks",
        sa.Column("id", sa.String(length=128), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.String(length=80), nullable=False),
        sa.Column("name_key", sa.String(length=240), nullable=False),
        sa.Column("slug", sa.String(length=80), nullable=True),
        sa.Column("method", sa.String(length=64), nullable=False),
        sa.Column("settings", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("progress", sa.JSON(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("error_hint", sa.Text(), nullable=True),
        sa.Column("remedy", sa.JSON(), nullable=True),
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
        sa.Column("request_id", sa.String(length=64), nullable=True),
        sa.Column("release_id", sa.String(length=64), nullable=True),
        sa.Column("learned_order", sa.Integer(), nullable=True),
        sa.Column("trained", sa.Boolean(), nullable=False),
        sa.Column("held_out", sa.String(length=16), nullable=True),
        sa.Column("target_id", sa.String(length=128), nullable=True),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("relearns_id", sa.String(length=128), nullable=True),
        sa.Column("caption_edits", sa.BigInteger(), nullable=False),
        sa.Column("metadata_edits", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "state IN ('queued', 'probing', 'training', 'indexing', 'evaluating', 'ready', 'failed', 'cancelled')",
            name=op.f("ck_tasks_state"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tasks")),
        sa.UniqueConstraint("learned_order", name=op.f("uq_tasks_learned_order")),
        sa.UniqueConstraint("name", name=op.f("uq_tasks_name")),
        sa.UniqueConstraint("position", name=op.f("uq_tasks_position")),
    )
    op.create_index(op.f("ix_tasks_caption_edits"), "tasks", ["caption_edits"], unique=False)
    op.create_index(op.f("ix_tasks_metadata_edits"), "tasks", ["metadata_edits"], unique=False)
    op.create_index(op.f("ix_tasks_name_key"), "tasks", ["name_key"], unique=False)
    op.create_index(op.f("ix_tasks_relearns_id"), "tasks", ["relearns_id"], unique=False)
    op.create_index(op.f("ix_tasks_slug"), "tasks", ["slug"], unique=True)
    op.create_index("ix_tasks_state_position", "tasks", ["state", "position"], unique=False)
    op.create_index(op.f("ix_tasks_target_id"), "tasks", ["target_id"], unique=False)
    op.create_table(
        "users",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=80), nullable=False),
        sa.Column("name_key", sa.String(length=240), nullable=False),
        sa.Column("password_hash", sa.Text(), nullable=True),
        sa.Column("issuer", sa.String(length=255), nullable=True),
        sa.Column("subject", sa.String(length=255), nullable=True),
        sa.Column("scope", sa.String(length=8), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_sign_in_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("scope IN ('search', 'ingest', 'admin')", name=op.f("ck_users_scope")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_users")),
        sa.UniqueConstraint("issuer", "subject", name=op.f("uq_users_issuer_subject")),
        sa.UniqueConstraint("name_key", name=op.f("uq_users_name_key")),
    )
    op.create_table(
        "webhooks",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("secret", sa.String(length=128), nullable=False),
        sa.Column("events", sa.JSON(), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("lease_expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhooks")),
    )
    op.create_table(
        "worker_reports",
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("free_bytes", sa.BigInteger(), nullable=True),
        sa.Column("gpus", sa.JSON(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("error_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_worker_reports")),
    )
    op.create_index(op.f("ix_worker_reports_seen_at"), "worker_reports", ["seen_at"], unique=False)
    op.create_table(
        "browser_sessions",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("token_hash", sa.String(length=64), nullable=False),
        sa.Column("user_id", sa.String(length=32), nullable=True),
        sa.Column("key_id", sa.String(length=16), nullable=True),
        sa.Column("environment_key", sa.String(length=64), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("address", sa.String(length=64), nullable=True),
        sa.Column("user_agent", sa.String(length=256), nullable=False),
        sa.ForeignKeyConstraint(
            ["key_id"], ["api_keys.id"], name=op.f("fk_browser_sessions_key_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_browser_sessions_user_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_browser_sessions")),
        sa.UniqueConstraint("token_hash", name=op.f("uq_browser_sessions_token_hash")),
    )
    op.create_index(op.f("ix_browser_sessions_expires_at"), "browser_sessions", ["expires_at"], unique=False)
    op.create_index(op.f("ix_browser_sessions_key_id"), "browser_sessions", ["key_id"], unique=False)
    op.create_index(op.f("ix_browser_sessions_user_id"), "browser_sessions", ["user_id"], unique=False)
    op.create_table(
        "calibrations",
        sa.Column("id", _GROWING_ID, autoincrement=True, nullable=False),
        sa.Column("task_id", sa.String(length=128), nullable=False),
        sa.Column("release_id", sa.String(length=64), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("model", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["task_id"], ["tasks.id"], name=op.f("fk_calibrations_task_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_calibrations")),
    )
    op.create_index(op.f("ix_calibrations_release_id"), "calibrations", ["release_id"], unique=False)
    op.create_index(op.f("ix_calibrations_task_id"), "calibrations", ["task_id"], unique=False)
    op.create_table(
        "chunks",
        sa.Column("id", _GROWING_ID, autoincrement=True, nullable=False),
        sa.Column("task_id", sa.String(length=128), nullable=False),
        sa.Column("stage", sa.String(length=16), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("first_id", _GROWING_ID, nullable=False),
        sa.Column("last_id", _GROWING_ID, nullable=False),
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
    op.create_table(
        "deliveries",
        sa.Column("id", _GROWING_ID, autoincrement=True, nullable=False),
        sa.Column("webhook_id", sa.String(length=64), nullable=False),
        sa.Column("message_id", sa.String(length=64), nullable=False),
        sa.Column("event", sa.String(length=32), nullable=False),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_attempt_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("answer", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("state IN ('pending', 'delivered', 'failed')", name=op.f("ck_deliveries_state")),
        sa.ForeignKeyConstraint(
            ["webhook_id"], ["webhooks.id"], name=op.f("fk_deliveries_webhook_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deliveries")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_deliveries_finished_at"), "deliveries", ["finished_at"], unique=False)
    op.create_index("ix_deliveries_webhook_id_id", "deliveries", ["webhook_id", "id"], unique=False)
    op.create_index(
        "ix_deliveries_webhook_id_state_id", "deliveries", ["webhook_id", "state", "id"], unique=False
    )
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
        sa.Column("response", sa.JSON(), nullable=True),
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
        sa.Column("added_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("copy_of", _GROWING_ID, nullable=True),
        sa.Column("last_edit", sa.BigInteger(), nullable=True),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("is_rejection_final", sa.Boolean(), nullable=False),
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
    op.create_index("ix_videos_content_hash", "videos", ["content_hash"], unique=False)
    op.create_index(op.f("ix_videos_copy_of"), "videos", ["copy_of"], unique=False)
    op.create_index(
        "ix_videos_last_edit",
        "videos",
        ["last_edit"],
        unique=False,
        sqlite_where=sa.text("last_edit IS NOT NULL"),
        postgresql_where=sa.text("last_edit IS NOT NULL"),
    )
    op.create_index("ix_videos_task_id_status", "videos", ["task_id", "status"], unique=False)
    op.create_table(
        "feedback",
        sa.Column("id", _GROWING_ID, autoincrement=True, nullable=False),
        sa.Column("video_vector_id", _GROWING_ID, nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("words_key", sa.String(length=64), nullable=False),
        sa.Column("verdict", sa.String(length=8), nullable=False),
        sa.Column("caller", sa.String(length=255), nullable=False),
        sa.Column("caller_kind", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("verdict IN ('right', 'wrong')", name=op.f("ck_feedback_verdict")),
        sa.ForeignKeyConstraint(
            ["video_vector_id"],
            ["videos.vector_id"],
            name=op.f("fk_feedback_video_vector_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_feedback")),
        sa.UniqueConstraint(
            "video_vector_id",
            "words_key",
            "caller_kind",
            "caller",
            name=op.f("uq_feedback_video_vector_id_words_key_caller_kind_caller"),
        ),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_feedback_caller_id", "feedback", ["caller", "id"], unique=False)
    op.create_table(
        "moments",
        sa.Column("vector_id", _GROWING_ID, autoincrement=False, nullable=False),
        sa.Column("video_vector_id", _GROWING_ID, nullable=False),
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
    op.create_table(
        "passages",
        sa.Column("video_vector_id", _GROWING_ID, autoincrement=False, nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("cues", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["video_vector_id"],
            ["videos.vector_id"],
            name=op.f("fk_passages_video_vector_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("video_vector_id", "number", name=op.f("pk_passages")),
    )
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

    op.execute("INSERT INTO line (id, last_position) VALUES (1, 0)")
    op.execute("INSERT INTO edits (id, last_edit) VALUES (1, 0)")
