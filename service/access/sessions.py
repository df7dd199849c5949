"""Start, list and end browser sessions."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from datetime import timedelta

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from cinestrata_schemas.access import SessionDetails
from cinestrata_schemas.choice_types import ActorKind
from cinestrata_schemas.domain_names import normalize_name
from service.access.audit_log import Actor, current_actor, record_change
from service.access.credentials import digest, environment_key_code, note_change
from service.catalog.database import now, session_scope
from service.catalog.operation_tables import ApiKey, BrowserSession, User
from service.core.domain_names import name_key
from service.core.errors import NotFound

SESSION_SECONDS = 7 * 24 * 3600
_MAX_USER_AGENT_CHARS = 256
_MAX_ADDRESS_CHARS = 64


@dataclass(frozen=True)
class SessionOwner:
    """The identity that signs in; exactly one attribute is set.

    Attributes:
        environment_key: The key in the environment.
    """

    user_id: str | None = None
    key_id: str | None = None
    environment_key: str | None = field(default=None, repr=False)


def find_password_hash(name: str) -> tuple[str | None, str | None]:
    """Look up a user's ID and password hash by name; None for each if unknown."""
    text = name.replace("\0", "").encode("utf-8", "replace").decode()
    with session_scope() as session:
        row = session.scalars(
            select(User).where(User.name_key == name_key(normalize_name(text)))
        ).one_or_none()
        return (row.id, row.password_hash) if row else (None, None)


def start_session(
    owner: SessionOwner, method: str, user_agent: str, previous_token: str | None = None
) -> str:
    """Start a session and return its token. The browser's previous session ends.

    Args:
        owner: The identity that signed in.
        method: ``password``, ``key`` or ``oidc``, for the audit log.
        user_agent: Header ``User-Agent`` of the browser.
        previous_token: Cookie that the browser sent; its session is never continued.
    """
    token = secrets.token_urlsafe(32)
    origin = current_actor()
    with session_scope(write=True) as session:
        at = now(session)
        session.execute(delete(BrowserSession).where(BrowserSession.expires_at <= at))
        if previous_token:
            session.execute(delete(BrowserSession).where(BrowserSession.token_hash == digest(previous_token)))
        kind: ActorKind = "environment"
        name = "CINESTRATA_API_KEY"
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
            user_agent=_storable(user_agent),
        )
        session.add(row)
        actor = Actor(kind, name, origin.address, origin.request_id)
        record_change(session, "session.start", row.id, {"method": method}, actor=actor)
    note_change()
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
        SessionDetails(
            id=row.id,
            user=user,
            key=key or (None if user else "CINESTRATA_API_KEY"),
            created_at=row.created_at,
            expires_at=row.expires_at,
            last_seen_at=row.last_seen_at,
            address=row.address,
            user_agent=row.user_agent,
            current=row.id == current,
        )
        for row, user, key in rows
    ]


def end_session(session_id: str) -> None:
    """End a session.

    Raises:
        NotFound: The session does not exist, or has ended.
    """
    text = session_id.replace("\0", "").encode("utf-8", "replace").decode()
    with session_scope(write=True) as session:
        ended = session.execute(
            delete(BrowserSession).where(BrowserSession.id == text).returning(BrowserSession.id)
        ).scalar_one_or_none()
        if ended is None:
            raise NotFound(f"There is no session {session_id[:100]!r}; it may have ended.")
        record_change(session, "session.end", text)
    note_change()


def end_sessions_of_identity(issuer: str, subject: str) -> None:
    """End all sessions of an OpenID user whose identity has lost its role.

    The user is kept, and can sign in again once the identity has a role.

    Args:
        issuer, subject: The identity, unique as a pair.
    """
    with session_scope(write=True) as session:
        user = session.scalars(
            select(User).where(User.issuer == issuer, User.subject == subject)
        ).one_or_none()
        if user is None:
            return
        if ended := _delete_sessions(session, user):
            details = {"user": user.name, "number": ended, "reason": "no role at the provider"}
            record_change(session, "session.end", user.id, details)
    note_change()


def _delete_sessions(session: Session, user: User) -> int:
    ended = session.execute(
        delete(BrowserSession).where(BrowserSession.user_id == user.id).returning(BrowserSession.id)
    )
    return len(ended.all())


def _storable(text: str) -> str:
    printable = "".join(c if c.isprintable() else " " for c in text[:_MAX_USER_AGENT_CHARS])
    return printable.encode("utf-8", "replace").decode()
