"""Tables of access: the audit log."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from service.catalog.tables import Base, GrowingId

__all__ = ["AuditEntry"]


class AuditEntry(Base):
    """A change, or an attempt to sign in. Entries are never changed or deleted."""

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
    details: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
