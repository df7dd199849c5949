"""Tables for operating a library: access, audit log, webhooks, alerts, syncs, jobs, leases and worker reports."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from cinestrata_schemas.choice_types import AccessScope
from service.catalog.tables import Base, GrowingId, StoredJson

_SCOPE = "scope IN ('search', 'ingest', 'admin')"


class AuditEntry(Base):
    """A change, or sign-in attempts. Entries are never changed or deleted."""

    __tablename__ = "audit_log"
    __table_args__ = (
        Index("ix_audit_log_actor_id", "actor", "id"),
        Index("ix_audit_log_action_id", "action", "id"),
        Index("ix_audit_log_target_id", "target", "id"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(GrowingId, primary_key=True, autoincrement=True)
    at: Mapped[datetime] = mapped_column(index=True)
    actor: Mapped[str] = mapped_column(String(255))
    actor_kind: Mapped[str] = mapped_column(String(16))
    action: Mapped[str] = mapped_column(String(64))
    target: Mapped[str] = mapped_column(String(255))  # ID of the changed resource; empty if there is none
    address: Mapped[str | None] = mapped_column(String(64))
    request_id: Mapped[str | None] = mapped_column(String(128))
    details: Mapped[dict[str, Any]] = mapped_column(StoredJson(dict), default=dict)


class ApiKey(Base):
    """An API key. Only a hash of its secret is stored; a revoked key keeps its row."""

    __tablename__ = "api_keys"
    __table_args__ = (CheckConstraint(_SCOPE, name="scope"),)

    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    name: Mapped[str] = mapped_column(String(80))
    name_key: Mapped[str] = mapped_column(String(240), index=True)
    secret_hash: Mapped[str] = mapped_column(String(64))  # SHA-256 of the whole key
    scope: Mapped[AccessScope] = mapped_column(String(8))
    created_at: Mapped[datetime]
    created_by: Mapped[str] = mapped_column(String(255))
    expires_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]  # written at most once a minute
    revoked_at: Mapped[datetime | None]


class User(Base):
    """A user of the dashboard, with a password or an OpenID identity."""

    __tablename__ = "users"
    __table_args__ = (CheckConstraint(_SCOPE, name="scope"), UniqueConstraint("issuer", "subject"))

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    name: Mapped[str] = mapped_column(String(80))
    name_key: Mapped[str] = mapped_column(String(240), unique=True)
    password_hash: Mapped[str | None]  # None: signs in at the provider
    issuer: Mapped[str | None] = mapped_column(String(255))
    subject: Mapped[str | None] = mapped_column(String(255))
    scope: Mapped[AccessScope] = mapped_column(String(8))
    created_at: Mapped[datetime]
    last_sign_in_at: Mapped[datetime | None]


class BrowserSession(Base):
    """The session of a signed-in browser: for a user, a key, or the key in the environment."""

    __tablename__ = "browser_sessions"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    token_hash: Mapped[str] = mapped_column(String(64), unique=True)  # SHA-256 of the cookie
    user_id: Mapped[str | None] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    key_id: Mapped[str | None] = mapped_column(ForeignKey("api_keys.id", ondelete="CASCADE"), index=True)
    # HMAC of the environment's key with the session token; when the key changes, the session ends.
    environment_key: Mapped[str | None] = mapped_column(String(64))
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime] = mapped_column(index=True)
    last_seen_at: Mapped[datetime]  # written at most once a minute
    address: Mapped[str | None] = mapped_column(String(64))
    user_agent: Mapped[str] = mapped_column(String(256))


class Webhook(Base):
    """An endpoint that receives events."""

    __tablename__ = "webhooks"

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    url: Mapped[str]
    secret: Mapped[str] = mapped_column(String(128))  # whsec_…; signing needs it in plain
    events: Mapped[list[str]] = mapped_column(StoredJson(list))
    enabled: Mapped[bool]
    reason: Mapped[str | None]  # set: the service disabled the endpoint
    created_at: Mapped[datetime]


class Delivery(Base):
    """An event on its way to an endpoint; afterwards, a log entry."""

    __tablename__ = "deliveries"
    __table_args__ = (
        CheckConstraint("state IN ('pending', 'delivered', 'failed')", name="state"),
        Index("ix_deliveries_webhook_id_state_id", "webhook_id", "state", "id"),
        Index("ix_deliveries_webhook_id_id", "webhook_id", "id"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(GrowingId, primary_key=True, autoincrement=True)
    webhook_id: Mapped[str] = mapped_column(ForeignKey("webhooks.id", ondelete="CASCADE"))
    message_id: Mapped[str] = mapped_column(String(64))  # the same in all attempts
    event: Mapped[str] = mapped_column(String(32))
    payload: Mapped[dict[str, Any]] = mapped_column(StoredJson(dict))
    state: Mapped[str] = mapped_column(String(16), default="pending")
    attempts: Mapped[int] = mapped_column(default=0)
    next_attempt_at: Mapped[datetime | None]  # None: finished
    status: Mapped[int | None]  # HTTP status of the last response
    answer: Mapped[str | None]  # start of its body, or the error; untrusted
    created_at: Mapped[datetime]  # when it was queued; resending queues it anew
    finished_at: Mapped[datetime | None] = mapped_column(index=True)


class Alert(Base):
    """A domain that has lost recall."""

    __tablename__ = "alerts"
    __table_args__ = ({"sqlite_autoincrement": True},)

    id: Mapped[int] = mapped_column(GrowingId, primary_key=True, autoincrement=True)
    kind: Mapped[str] = mapped_column(String(32))
    task_id: Mapped[str | None] = mapped_column(String(128))
    # Kind and task: two processes never raise the same alert.
    open_key: Mapped[str | None] = mapped_column(String(200), unique=True)
    value: Mapped[float]
    threshold: Mapped[float]
    raised_at: Mapped[datetime]


class Sync(Base):
    """A domain that follows a folder of videos, with the last run."""

    __tablename__ = "syncs"
    __table_args__ = (CheckConstraint("vanished IN ('keep', 'delete')", name="vanished"),)

    id: Mapped[str] = mapped_column(String(128), primary_key=True)
    name: Mapped[str] = mapped_column(String(255), unique=True)
    source: Mapped[str]
    every_seconds: Mapped[int]
    vanished: Mapped[str] = mapped_column(String(8))
    captions_from_names: Mapped[bool]
    task_id: Mapped[str | None] = mapped_column(String(128))  # set: the domain existed at the last run
    created_at: Mapped[datetime]

    # In the past during a run, so that one whose worker dies is due when its lease expires.
    next_run_at: Mapped[datetime] = mapped_column(index=True)
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    error: Mapped[str | None]
    counts: Mapped[dict[str, Any] | None] = mapped_column(StoredJson(dict, nullable=True))


class SyncedFile(Base):
    """A file that a domain follows, as the last sync of its source saw it. Equal and renamed files keep their video."""

    __tablename__ = "synced_files"
    __table_args__ = (UniqueConstraint("task_id", "key"), Index("ix_synced_files_sha256", "sha256"))

    id: Mapped[int] = mapped_column(GrowingId, primary_key=True, autoincrement=True)
    task_id: Mapped[str] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"))  # the domain
    key: Mapped[str] = mapped_column(String(32))  # digest of source and path
    source: Mapped[str]
    path: Mapped[str | None]  # relative to the source; NULL: only the key is known
    bytes: Mapped[int | None] = mapped_column(BigInteger)
    modified: Mapped[int | None] = mapped_column(BigInteger)  # nanoseconds since the epoch; NULL: an object
    changed: Mapped[int | None] = mapped_column(BigInteger)  # of the inode
    file_id: Mapped[str | None] = mapped_column(String(64))  # device and inode, or digest of a version
    sha256: Mapped[str | None] = mapped_column(String(64))  # of the content; for an object, of its version
    video_id: Mapped[str | None] = mapped_column(String(128))  # NULL: another command added the video
    captions: Mapped[list[str] | None] = mapped_column(StoredJson(list, nullable=True))  # in the source
    transcript: Mapped[str | None] = mapped_column(String(64))  # digest of the transcript in the source


class IdempotencyKey(Base):
    """A request that runs only once. Without a response, it is still running."""

    __tablename__ = "idempotency_keys"

    caller: Mapped[str] = mapped_column(String(128), primary_key=True)
    key: Mapped[str] = mapped_column(String(255), primary_key=True)
    body_hash: Mapped[str] = mapped_column(String(64))
    task_id: Mapped[str | None] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"))
    response: Mapped[dict[str, Any] | None] = mapped_column(StoredJson(dict, nullable=True))
    created_at: Mapped[datetime] = mapped_column(index=True)


class LeaseRow(Base):
    """The right of one process to work on something, see :mod:`service.catalog.leases`."""

    __tablename__ = "leases"

    kind: Mapped[str] = mapped_column(String(16), primary_key=True)
    id: Mapped[str] = mapped_column(String(384), primary_key=True)  # of what it protects
    token: Mapped[int] = mapped_column(BigInteger)
    until: Mapped[datetime]


class MaintenanceJob(Base):
    """A compaction or a snapshot that an operator started, with its result."""

    __tablename__ = "maintenance_jobs"
    __table_args__ = (
        CheckConstraint("kind IN ('compact', 'snapshot')", name="kind"),
        CheckConstraint("state IN ('queued', 'running', 'done', 'failed')", name="state"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(GrowingId, primary_key=True, autoincrement=True)
    kind: Mapped[str] = mapped_column(String(16))
    task_id: Mapped[str | None] = mapped_column(String(128))  # for a compaction; None: all domains
    state: Mapped[str] = mapped_column(String(16), default="queued", index=True)
    created_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    attempts: Mapped[int] = mapped_column(BigInteger, default=0)
    error: Mapped[str | None]
    result: Mapped[dict[str, Any] | None] = mapped_column(StoredJson(dict, nullable=True))


class WorkerReport(Base):
    """A worker process: when it was last seen, its free disk space and its last error."""

    __tablename__ = "worker_reports"

    name: Mapped[str] = mapped_column(String(255), primary_key=True)  # host:process
    seen_at: Mapped[datetime] = mapped_column(index=True)
    free_bytes: Mapped[int | None] = mapped_column(BigInteger)  # of the data folder
    gpus: Mapped[list[dict[str, int]] | None] = mapped_column(StoredJson(list, nullable=True))
    error: Mapped[str | None]
    error_at: Mapped[datetime | None]


class DamagedRow(Base):
    """A row of an earlier catalog, as it was before a migration replaced values that no version writes."""

    __tablename__ = "damaged_rows"
    __table_args__ = ({"sqlite_autoincrement": True},)

    id: Mapped[int] = mapped_column(GrowingId, primary_key=True, autoincrement=True)
    table: Mapped[str] = mapped_column(String(64))
    content: Mapped[str]  # values by column, as JSON
