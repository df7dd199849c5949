"""Responses about the audit log."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import Field

from service.core.schemas.model_types import ResponseModel

__all__ = ["AuditPage", "AuditRecord"]


class AuditRecord(ResponseModel):
    """An entry of the audit log: a change, or an attempt to sign in."""

    id: int = Field(description="Number of the entry; later entries have greater numbers.")
    at: datetime
    actor: str = Field(description="Name of the user or key, or of the process.")
    actor_kind: str = Field(
        description="user, key, environment (key of the environment), anonymous, cli, worker or system."
    )
    action: str = Field(description="Resource and verb.", examples=["task.cancel"])
    target: str = Field(description="Identifier of the changed resource; empty if there is none.")
    address: str | None = Field(default=None, description="Network address of the client.")
    request_id: str | None = Field(default=None, description="Identifier of the HTTP request.")
    details: dict[str, Any] = Field(default_factory=dict, description="Further facts about the change.")


class AuditPage(ResponseModel):
    """A page of the audit log."""

    entries: list[AuditRecord]
    next_cursor: str | None = Field(default=None, description="Cursor of the next page; null on the last.")
