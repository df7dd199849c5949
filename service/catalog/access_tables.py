"""Tables of access: API keys, users, sessions of browsers, and the audit log."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from service.catalog.tables import Base, GrowingId, StoredJson

_SCOPE = "scope IN ('search', 'ingest', 'admin')"


class AuditEntry(Base):
    """A change, or attempts to sign in. Entries are never changed or deleted."""

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
    target: Mapped[str] = mapped_column(String(255))  # id of the changed resource; empty if there is none
    address: Mapped[str | None] = mapped_column(String(64))
    request_id: Mapped[str | None] = mapped_column(String(128))
    details: Mapped[dict[str, Any]] = mapped_column(StoredJson(dict), default=dict)


class ApiKey(Base):
    """An API key. Its secret is stored as a hash only; a revoked key keeps its row."""

    __tablename__ = "api_keys"
    __table_args__ = (CheckConstraint(_SCOPE, name="scope"),)

    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    name: Mapped[str] = mapped_column(String(80))
    name_key: Mapped[str] = mapped_column(String(240), index=True)
    secret_hash: Mapped[str] = mapped_column(String(64))  # SHA-256 of the whole key
    scope: Mapped[str] = mapped_column(String(8))
    created_at: Mapped[datetime]
    created_by: Mapped[str] = mapped_column(String(255))
    expires_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]  # written at most once a minute
    revoked_at: Mapped[datetime | None]


class User(Base):
    """A user of the dashboard, with a password or an identity of an OpenID provider."""

    __tablename__ = "users"
    __table_args__ = (CheckConstraint(_SCOPE, name="scope"), UniqueConstraint("issuer", "subject"))

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    name: Mapped[str] = mapped_column(String(80))
    name_key: Mapped[str] = mapped_column(String(240), unique=True)
    password_hash: Mapped[str | None] = mapped_column(Text)  # None: signs in at the provider
    issuer: Mapped[str | None] = mapped_column(String(255))
    subject: Mapped[str | None] = mapped_column(String(255))
    scope: Mapped[str] = mapped_column(String(8))
    created_at: Mapped[datetime]
    last_sign_in_at: Mapped[datetime | None]


class BrowserSession(Base):
    """A session of a signed-in browser: of a user, of a key, or of the key of the environment."""

    __tablename__ = "browser_sessions"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    token_hash: Mapped[str] = mapped_column(String(64), unique=True)  # SHA-256 of the cookie
    user_id: Mapped[str | None] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    key_id: Mapped[str | None] = mapped_column(ForeignKey("api_keys.id", ondelete="CASCADE"), index=True)
    # HMAC of the key of the environment with the token of the session, which ends when the key changes.
    environment_key: Mapped[str | None] = mapped_column(String(64))
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime] = mapped_column(index=True)
    last_seen_at: Mapped[datetime]  # written at most once a minute
    address: Mapped[str | None] = mapped_column(String(64))
    user_agent: Mapped[str] = mapped_column(String(256))
