"""Look up the API key or session that a request presents.

Secrets have 256 random bits, so a SHA-256 of them is safe to store; only passwords need a slow hash. The environment's
key, which a person may have chosen, is stored only as an HMAC with a session's token, and tokens are not stored.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import get_args

from sqlalchemy import func, or_, select, update
from sqlalchemy.orm import Session

from cinestrata_schemas.choice_types import AccessScope, ActorKind
from service.catalog.database import now, session_scope
from service.catalog.operation_tables import ApiKey, BrowserSession, User

SCOPES: tuple[AccessScope, ...] = get_args(AccessScope)

KEY_PATTERN = re.compile(r"cine_([0-9a-z]{12})_[0-9A-Za-z_-]{43}")
_USE_INTERVAL = timedelta(minutes=1)  # between updates of the last use
_UNKNOWN_HASH = hashlib.sha256(b"unknown").hexdigest()
_changes = 0


def includes_scope(granted: AccessScope, required: AccessScope) -> bool:
    """Check whether a scope permits everything that another one does."""
    return SCOPES.index(granted) >= SCOPES.index(required)


@dataclass(frozen=True)
class Principal:
    """The authenticated sender of a request.

    Attributes:
        kind: Kind of the actor in the audit log.
        name: Name in the audit log.
        scope: The granted scope.
        caller: ID that separates the idempotency keys of different callers.
        session_id: ID of the browser session; None for a key.
        expires_at: When the key or session ends; None if it does not.
    """

    kind: ActorKind
    name: str
    scope: AccessScope
    caller: str
    session_id: str | None = None
    expires_at: datetime | None = None


# While there are no keys and no users, every request on loopback is permitted.
OPEN_PRINCIPAL = Principal("anonymous", "anonymous", "admin", "")


def digest(secret: str) -> str:
    """Hash a key or session token for storage."""
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()


def environment_key_code(token: str, environment_key: str) -> str:
    """Compute the stored form of the environment's key: an HMAC-SHA256 that needs the session token.

    Without the token, which only the browser has, a stolen catalog does not help to guess the key.
    """
    key, message = (text.encode("utf-8", "replace") for text in (token, environment_key))
    return hmac.digest(key, message, hashlib.sha256).hex()


def is_key(session: Session, key_id: str, secret_digest: str) -> bool:
    """Check whether a digest belongs to a key in the catalog, even if that is expired or revoked."""
    row = session.get(ApiKey, key_id)
    return row is not None and hmac.compare_digest(secret_digest, row.secret_hash)


def find_key(text: str) -> Principal | None:
    """Find the sender by API key; None if the key is unknown, expired or revoked."""
    match = KEY_PATTERN.fullmatch(text)
    if match is None:
        return None
    with session_scope() as session:
        at = now(session)
        row = session.get(ApiKey, match[1])
        is_equal = hmac.compare_digest(digest(text), row.secret_hash if row else _UNKNOWN_HASH)
        if row is None or not is_equal or not _is_valid(row, at):
            return None
        is_due = row.last_used_at is None or row.last_used_at <= at - _USE_INTERVAL
    if is_due:
        with session_scope(write=True) as session:
            unused = or_(ApiKey.last_used_at.is_(None), ApiKey.last_used_at <= at - _USE_INTERVAL)
            session.execute(update(ApiKey).where(ApiKey.id == row.id, unused).values(last_used_at=at))
    return _key_principal(row, row.expires_at)


def find_session(token: str, environment_key: str | None) -> Principal | None:
    """Find the sender by session cookie; None if the session has ended.

    Args:
        environment_key: The key in the environment; None if there is none.
    """
    with session_scope() as session:
        at = now(session)
        row = session.scalars(
            select(BrowserSession).where(BrowserSession.token_hash == digest(token))
        ).one_or_none()
        code = None if environment_key is None else environment_key_code(token, environment_key)
        principal = _session_principal(session, row, at, code) if row else None
        if row is None or principal is None:
            return None
        is_due = row.last_seen_at <= at - _USE_INTERVAL
    if is_due:
        with session_scope(write=True) as session:
            unseen = BrowserSession.last_seen_at <= at - _USE_INTERVAL
            session.execute(
                update(BrowserSession).where(BrowserSession.id == row.id, unseen).values(last_seen_at=at)
            )
    return principal


def has_credentials() -> bool:
    """Check whether the catalog has a user or an active key."""
    with session_scope() as session:
        return bool(
            session.scalar(select(func.count()).select_from(User))
            or session.scalar(select(func.count()).select_from(ApiKey).where(ApiKey.revoked_at.is_(None)))
        )


def has_admin() -> bool:
    """Check whether the catalog has a user or valid key with the scope ``admin``."""
    with session_scope() as session:
        keys = session.scalars(select(ApiKey).where(ApiKey.scope == "admin")).all()
        users = session.scalar(select(func.count()).select_from(User).where(User.scope == "admin"))
        at = now(session)
        return bool(users) or any(_is_valid(key, at) for key in keys)


def note_change() -> None:
    """Invalidate this process's cached credentials; other processes drop theirs within seconds."""
    global _changes
    _changes += 1


def change_count() -> int:
    """Count the calls of :func:`note_change`."""
    return _changes


def _is_valid(row: ApiKey, at: datetime) -> bool:
    return row.revoked_at is None and (row.expires_at is None or row.expires_at > at)


def _key_principal(row: ApiKey, expires_at: datetime | None, session_id: str | None = None) -> Principal:
    return Principal("key", row.name, _scope(row.scope), f"key:{row.id}", session_id, expires_at)


def _session_principal(
    session: Session, row: BrowserSession, at: datetime, environment_code: str | None
) -> Principal | None:
    if row.expires_at <= at:
        return None
    if row.user_id is not None:
        user = session.get(User, row.user_id)
        if user is None:
            return None
        return Principal("user", user.name, _scope(user.scope), f"user:{user.id}", row.id, row.expires_at)
    if row.key_id is not None:
        key = session.get(ApiKey, row.key_id)
        if key is None or not _is_valid(key, at):
            return None
        ends = min(row.expires_at, key.expires_at) if key.expires_at else row.expires_at
        return _key_principal(key, ends, row.id)
    if environment_code is None or row.environment_key is None:
        return None
    if not hmac.compare_digest(row.environment_key, environment_code):
        return None
    return Principal("environment", "CINESTRATA_API_KEY", "admin", "environment", row.id, row.expires_at)


def _scope(text: str) -> AccessScope:
    return "admin" if text == "admin" else "ingest" if text == "ingest" else "search"
