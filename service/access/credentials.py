"""API keys and browser sessions: create, list and end them, and look up the one that a request presents.

Secrets have 256 random bits, so a SHA-256 of them is safe to store; only passwords need a slow hash. The environment's
key, which a person may have chosen, is stored only as an HMAC with a session's token, and tokens are not stored.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import string
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

from sqlalchemy import ColumnElement, delete, exists, or_, select, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from cinestrata_schemas.access import KeyDetails, KeySecret, KeySpec, SessionDetails
from cinestrata_schemas.choice_types import AccessScope, ActorKind
from service.access.audit_log import Actor, current_actor, record_change
from service.catalog.database import now, session_scope
from service.catalog.operation_tables import ApiKey, BrowserSession, User
from service.catalog.tables import to_response
from service.core.errors import Conflict, InvalidInput, NotFound
from service.core.text_rules import name_key, storable

SCOPES: tuple[AccessScope, ...] = get_args(AccessScope)

KEY_PATTERN = re.compile(r"cine_([0-9a-z]{12})_[0-9A-Za-z_-]{43}")
_USE_INTERVAL = timedelta(minutes=1)  # between updates of the last use
_UNKNOWN_HASH = hashlib.sha256(b"unknown").hexdigest()
_ID_LETTERS = string.digits + string.ascii_lowercase
_ENVIRONMENT_KEY = "CINESTRATA_API_KEY"  # name of the environment's key in the audit log
SESSION_SECONDS = 7 * 24 * 3600
_MAX_USER_AGENT_CHARS = 256
_MAX_ADDRESS_CHARS = 64
change_count = 0  # calls of note_change


@dataclass(frozen=True)
class Principal:
    """The authenticated sender of a request."""

    kind: ActorKind  # with the name, the actor in the audit log
    name: str
    scope: AccessScope
    caller: str  # separates the idempotency keys of different callers
    session_id: str | None = None  # of the browser session; None for a key
    expires_at: datetime | None = None  # end of the key or session


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
    _store_use(ApiKey.last_used_at, row.last_used_at, ApiKey.id == row.id, at)
    return _key_principal(row, row.expires_at)


def find_session(token: str, environment_key: str | None) -> Principal | None:
    """Find the sender by session cookie; None if the session has ended."""
    with session_scope() as session:
        at = now(session)
        row = session.scalars(
            select(BrowserSession).where(BrowserSession.token_hash == digest(token))
        ).one_or_none()
        code = None if environment_key is None else environment_key_code(token, environment_key)
        principal = _session_principal(session, row, at, code) if row else None
        if row is None or principal is None:
            return None
    _store_use(BrowserSession.last_seen_at, row.last_seen_at, BrowserSession.id == row.id, at)
    return principal


def _store_use(
    column: InstrumentedAttribute[Any], last: datetime | None, is_row: ColumnElement[bool], at: datetime
) -> None:
    """Store when a key or session was last used, unless that is stored for less than a minute."""
    due = at - _USE_INTERVAL
    if last is None or last <= due:
        with session_scope(write=True) as session:
            is_due = or_(column.is_(None), column <= due)
            session.execute(update(column.class_).where(is_row, is_due).values({column: at}))


def has_credentials() -> bool:
    """Check whether the catalog has a user or an active key."""
    with session_scope() as session:
        has_key = exists().where(ApiKey.revoked_at.is_(None))
        return bool(session.scalar(select(exists(select(User.id)) | has_key)))


def has_admin() -> bool:
    """Check whether the catalog has a user or valid key with the scope ``admin``."""
    with session_scope() as session:
        at = now(session)
        if session.scalar(select(exists().where(User.scope == "admin"))):
            return True
        return any(
            _is_valid(key, at) for key in session.scalars(select(ApiKey).where(ApiKey.scope == "admin"))
        )


def note_change() -> None:
    """Invalidate this process's cached credentials; other processes drop theirs within seconds."""
    global change_count
    change_count += 1


@contextmanager
def change_credentials() -> Iterator[Session]:
    """Open a transaction that changes credentials, and invalidate the cached ones after it."""
    with session_scope(write=True) as session:
        yield session
    note_change()


def _is_valid(row: ApiKey, at: datetime) -> bool:
    return row.revoked_at is None and (row.expires_at is None or row.expires_at > at)


def _key_principal(row: ApiKey, expires_at: datetime | None, session_id: str | None = None) -> Principal:
    return Principal("key", row.name, row.scope, f"key:{row.id}", session_id, expires_at)


def _session_principal(
    session: Session, row: BrowserSession, at: datetime, environment_code: str | None
) -> Principal | None:
    if row.expires_at <= at:
        return None
    if row.user_id is not None:
        user = session.get(User, row.user_id)
        if user is None:
            return None
        return Principal("user", user.name, user.scope, f"user:{user.id}", row.id, row.expires_at)
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
    return Principal("environment", _ENVIRONMENT_KEY, "admin", "environment", row.id, row.expires_at)


def create_key(spec: KeySpec) -> KeySecret:
    """Create a key, whose secret only this result has; raise InvalidInput (expiry) or Conflict (name)."""
    key_id = "".join(secrets.choice(_ID_LETTERS) for _ in range(12))
    secret = f"cine_{key_id}_{secrets.token_urlsafe(32)}"
    with change_credentials() as session:
        at = now(session)
        expires_at = _expiry(spec, at)
        taken = select(ApiKey.id).where(ApiKey.name_key == name_key(spec.name), ApiKey.revoked_at.is_(None))
        if session.scalars(taken.limit(1)).first() is not None:
            raise Conflict(
                f"name: A key {spec.name!r} already exists. Choose another name, or revoke the key."
            )
        row = ApiKey(
            id=key_id,
            name=spec.name,
            name_key=name_key(spec.name),
            secret_hash=digest(secret),
            scope=spec.scope,
            created_at=at,
            created_by=current_actor().name[:255],
            expires_at=expires_at,
        )
        session.add(row)
        expiry = expires_at.isoformat() if expires_at else None
        details = {"name": spec.name, "scope": spec.scope, "expires_at": expiry}
        record_change(session, "key.create", key_id, details)
        session.flush()
        return to_response(KeySecret, row, key=secret, state="active")


def list_keys() -> list[KeyDetails]:
    """List all keys, revoked ones included, newest first."""
    with session_scope() as session:
        at = now(session)
        rows = session.scalars(select(ApiKey).order_by(ApiKey.created_at.desc(), ApiKey.id))
        return [_key_details(row, at) for row in rows]


def revoke_key(name_or_id: str) -> KeyDetails:
    """Revoke a key and end the sessions that it started; raise NotFound. Idempotent."""
    text = storable(name_or_id)
    with change_credentials() as session:
        at = now(session)
        row = session.scalars(
            select(ApiKey)
            .where(or_(ApiKey.id == text, ApiKey.name_key == name_key(text)))
            .order_by((ApiKey.id == text).desc(), ApiKey.revoked_at.is_not(None))
            .limit(1)
        ).first()
        if row is None:
            raise NotFound(f"There is no key {name_or_id[:100]!r}.")
        if row.revoked_at is None:
            row.revoked_at = at
            record_change(session, "key.revoke", row.id, {"name": row.name})
        session.execute(delete(BrowserSession).where(BrowserSession.key_id == row.id))
        return _key_details(row, at)


def _expiry(spec: KeySpec, at: datetime) -> datetime | None:
    if spec.expires_in_days is not None and spec.expires_at is not None:
        raise InvalidInput.at(
            "expires_at", "The expiry is given twice.", "Omit expires_in_days or expires_at."
        )
    if spec.expires_in_days is not None:
        return at + timedelta(days=spec.expires_in_days)
    if spec.expires_at is None:
        return None
    try:
        expires_at = spec.expires_at if spec.expires_at.tzinfo else spec.expires_at.replace(tzinfo=UTC)
        expires_at = expires_at.astimezone(UTC)
    except OverflowError:
        raise InvalidInput.at(
            "expires_at", "The time is out of range.", "Omit it for a key that does not expire."
        ) from None
    if expires_at <= at:
        raise InvalidInput.at("expires_at", "The time is in the past.", "Send a later time.")
    return expires_at


def _key_details(row: ApiKey, at: datetime) -> KeyDetails:
    state = "revoked" if row.revoked_at is not None else "active" if _is_valid(row, at) else "expired"
    return to_response(KeyDetails, row, state=state)


@dataclass(frozen=True)
class SessionOwner:
    """The identity that signs in; exactly one attribute is set."""

    user_id: str | None = None
    key_id: str | None = None
    environment_key: str | None = field(default=None, repr=False)


def start_session(
    owner: SessionOwner, method: str, user_agent: str, previous_token: str | None = None
) -> str:
    """Start a session by ``password``, ``key`` or ``oidc``, and return its token. The browser's previous one ends."""
    token = secrets.token_urlsafe(32)
    origin = current_actor()
    with change_credentials() as session:
        at = now(session)
        session.execute(delete(BrowserSession).where(BrowserSession.expires_at <= at))
        if previous_token:
            session.execute(delete(BrowserSession).where(BrowserSession.token_hash == digest(previous_token)))
        kind: ActorKind = "environment"
        name = _ENVIRONMENT_KEY
        if owner.user_id is not None:
            user = session.get_one(User, owner.user_id)
            user.last_sign_in_at = at
            kind, name = "user", user.name
        elif owner.key_id is not None:
            kind, name = "key", session.get_one(ApiKey, owner.key_id).name
        row = BrowserSession(
            id=f"ses_{secrets.token_hex(8)}",
            token_hash=digest(token),
            user_id=owner.user_id,
            key_id=owner.key_id,
            environment_key=(
                None if owner.environment_key is None else environment_key_code(token, owner.environment_key)
            ),
            created_at=at,
            expires_at=at + timedelta(seconds=SESSION_SECONDS),
            last_seen_at=at,
            address=(origin.address or "")[:_MAX_ADDRESS_CHARS] or None,
            user_agent=storable(
                "".join(c if c.isprintable() else " " for c in user_agent[:_MAX_USER_AGENT_CHARS])
            ),
        )
        session.add(row)
        actor = Actor(kind, name, origin.address, origin.request_id)
        record_change(session, "session.start", row.id, {"method": method}, actor=actor)
    return token


def list_sessions(current: str | None = None) -> list[SessionDetails]:
    """List the active sessions, newest first."""
    with session_scope() as session:
        rows = session.execute(
            select(BrowserSession, User.name, ApiKey.name)
            .outerjoin(User, User.id == BrowserSession.user_id)
            .outerjoin(ApiKey, ApiKey.id == BrowserSession.key_id)
            .where(BrowserSession.expires_at > now(session))
            .order_by(BrowserSession.created_at.desc(), BrowserSession.id)
        ).all()
    return [
        to_response(
            SessionDetails,
            row,
            user=user,
            key=key or (None if user else _ENVIRONMENT_KEY),
            current=row.id == current,
        )
        for row, user, key in rows
    ]


def end_session(session_id: str) -> None:
    """End a session; raise NotFound."""
    text = storable(session_id)
    with change_credentials() as session:
        ended = session.execute(
            delete(BrowserSession).where(BrowserSession.id == text).returning(BrowserSession.id)
        ).scalar_one_or_none()
        if ended is None:
            raise NotFound(f"There is no session {session_id[:100]!r}; it may have ended.")
        record_change(session, "session.end", text)


def end_sessions_of_identity(issuer: str, subject: str) -> None:
    """End all sessions of an OpenID user whose identity has lost its role, but may get one again."""
    with change_credentials() as session:
        user = session.scalars(
            select(User).where(User.issuer == issuer, User.subject == subject)
        ).one_or_none()
        if user is None:
            return
        sessions = delete(BrowserSession).where(BrowserSession.user_id == user.id)
        if ended := len(session.execute(sessions.returning(BrowserSession.id)).all()):
            details = {"user": user.name, "number": ended, "reason": "no role at the provider"}
            record_change(session, "session.end", user.id, details)
