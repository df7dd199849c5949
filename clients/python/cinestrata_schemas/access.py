"""Requests and responses about API keys, users, sessions and the audit log."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import Field, PlainSerializer, SecretStr

from cinestrata_schemas.choice_types import AccessScope
from cinestrata_schemas.model_types import Name, RequestModel, ResponseModel, optional

# Masked in output, and sent in plain text.
Password = Annotated[
    SecretStr, PlainSerializer(SecretStr.get_secret_value, return_type=str, when_used="json")
]


class KeySpec(RequestModel):
    """A new API key."""

    name: Name = Field(description="Name of the key, as shown in the audit log; unique among active keys.")
    scope: AccessScope = Field(description="search: read; ingest: also change the library; admin: all.")
    expires_in_days: int | None = Field(default=None, ge=1, le=3660, description="Days until it expires.")
    expires_at: datetime | None = optional("Expiry time; UTC unless it has a time zone.")


class KeyDetails(ResponseModel):
    """An API key, without its secret."""

    id: str = Field(description="ID; the second part of the key.")
    name: str
    scope: str
    state: str = Field(description="active, expired or revoked.")
    created_at: datetime
    created_by: str = Field(description="Actor that created the key.")
    expires_at: datetime | None = None
    last_used_at: datetime | None = optional("Accurate to a minute.")
    revoked_at: datetime | None = None


class KeySecret(KeyDetails):
    """A new API key with its secret, which is returned only once."""

    key: str = Field(description="The key: `cine_`, its ID, and a random 256-bit secret.")


class UserSpec(RequestModel):
    """A new user of the dashboard."""

    name: Name = Field(description="Name for signing in; unique regardless of case.")
    password: Password = Field(description="10 to 1024 characters.")
    scope: AccessScope = Field(default="search", description="Role of the user: a scope, as for keys.")


class UserPatch(RequestModel):
    """Changes to a user; omitted fields stay unchanged."""

    password: Password | None = optional("New password. Ends all of the user's sessions.")
    scope: AccessScope | None = optional("New role, effective at once.")


class UserDetails(ResponseModel):
    """A user of the dashboard."""

    id: str
    name: str
    scope: str
    provider: str | None = optional("The user's OpenID provider; null: signs in with a password.")
    created_at: datetime
    last_sign_in_at: datetime | None = None
    sessions: int = Field(default=0, description="Number of active sessions.")


class SessionDetails(ResponseModel):
    """A session of a signed-in browser."""

    id: str
    user: str | None = optional("Name of the user; null: signed in with a key.")
    key: str | None = optional("Name of the key; null: signed in as a user.")
    created_at: datetime
    expires_at: datetime
    last_seen_at: datetime = Field(description="Accurate to a minute.")
    address: str | None = optional("Network address at sign-in.")
    user_agent: str = Field(description="User agent of the browser.")
    current: bool = Field(default=False, description="Whether this request uses the session.")


class CurrentAccess(ResponseModel):
    """The sender of a request, as the service sees it."""

    kind: str = Field(description="user, key, environment, or anonymous (a service without keys and users).")
    name: str
    scope: str


class AuditRecord(ResponseModel):
    """An audit log entry: a change, or a sign-in attempt."""

    id: int = Field(description="Entry number; later entries have greater numbers.")
    at: datetime
    actor: str = Field(description="Name of the user, key or process.")
    actor_kind: str = Field(description="user, key, environment (its key), anonymous, cli, worker or system.")
    action: str = Field(examples=["task.cancel"], description="Resource and verb.")
    target: str = Field(description="ID of the changed resource; empty if there is none.")
    address: str | None = optional("Network address of the client.")
    request_id: str | None = optional("ID of the HTTP request.")
    details: dict[str, Any] = Field(default_factory=dict, description="Details of the change.")


class AuditPage(ResponseModel):
    """A page of the audit log."""

    entries: list[AuditRecord]
    next_cursor: str | None = optional("Cursor of the next page; null on the last.")
