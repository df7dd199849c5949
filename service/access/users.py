"""Users of the dashboard and their passwords (argon2id)."""

from __future__ import annotations

import secrets
import unicodedata
from functools import cache

from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, InvalidHashError
from sqlalchemy import delete, func, or_, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from cinestrata_schemas.access import UserDetails, UserPatch, UserSpec
from cinestrata_schemas.choice_types import AccessScope
from cinestrata_schemas.domain_names import MAX_NAME_CHARS, name_problem, normalize_name
from service.access.audit_log import record_change
from service.access.credentials import change_credentials
from service.catalog.database import now, session_scope
from service.catalog.operation_tables import BrowserSession, User
from service.catalog.tables import to_response
from service.core.errors import Conflict, InvalidInput, NotFound
from service.core.text_rules import name_key, storable

MIN_PASSWORD_CHARS = 10
MAX_PASSWORD_CHARS = 1024  # hashing time grows with the length

_hasher = PasswordHasher()  # the second recommendation of RFC 9106: 3 passes over 64 MiB


def create_user(spec: UserSpec) -> UserDetails:
    """Create a user with a password; raise InvalidInput for the password, or Conflict for the name."""
    # Before the transaction, which would block other writers.
    hashed = hash_password(spec.password.get_secret_value())
    try:
        with change_credentials() as session:
            row = _new_user(session, spec.name, spec.scope)
            row.password_hash = hashed
            record_change(session, "user.create", row.id, {"name": row.name, "scope": row.scope})
            session.flush()
            return _details(row, 0)
    except IntegrityError as error:
        raise _taken(spec.name) from error


def list_users() -> list[UserDetails]:
    """List all users by name."""
    with session_scope() as session:
        counted = (
            select(BrowserSession.user_id, func.count())
            .where(BrowserSession.expires_at > now(session))
            .group_by(BrowserSession.user_id)
        )
        sessions = {user: number for user, number in session.execute(counted)}
        rows = session.scalars(select(User).order_by(User.name_key))
        return [_details(row, sessions.get(row.id, 0)) for row in rows]


def edit_user(name_or_id: str, patch: UserPatch) -> UserDetails:
    """Change a user's role, or password, which ends their sessions; raise NotFound, InvalidInput, Conflict."""
    hashed = hash_password(patch.password.get_secret_value()) if patch.password is not None else None
    with change_credentials() as session:
        row = _require_user(session, name_or_id)
        changed = []
        if hashed is not None:
            if row.issuer is not None:
                raise Conflict(
                    f"password: The user {row.name!r} signs in at {row.issuer} and has no password."
                )
            row.password_hash = hashed
            session.execute(delete(BrowserSession).where(BrowserSession.user_id == row.id))
            changed.append("password")
        if patch.scope is not None and patch.scope != row.scope:
            row.scope = patch.scope
            changed.append("scope")
        if changed:
            details = {"name": row.name, "fields": changed, "scope": row.scope}
            record_change(session, "user.edit", row.id, details)
        sessions = session.scalar(select(func.count()).where(BrowserSession.user_id == row.id)) or 0
        return _details(row, sessions)


def remove_user(name_or_id: str) -> UserDetails:
    """Remove a user and all of their sessions; raise NotFound."""
    with change_credentials() as session:
        row = _require_user(session, name_or_id)
        session.execute(delete(BrowserSession).where(BrowserSession.user_id == row.id))
        session.delete(row)
        record_change(session, "user.remove", row.id, {"name": row.name})
        return _details(row, 0)


def adopt_provider_user(issuer: str, subject: str, name: str, scope: AccessScope) -> str:
    """Create or update the user for an OpenID identity, and return their ID.

    A user with a password is never adopted, because anyone can choose a name at a provider. If the preferred name is
    taken, it gets a number; characters that names cannot have are dropped. The scope replaces the previous one.
    """
    with change_credentials() as session:
        row = session.scalars(
            select(User).where(User.issuer == issuer, User.subject == subject).with_for_update()
        ).one_or_none()
        if row is None:
            row = _new_user(session, _unused_name(session, _valid_name(name)), scope)
            row.issuer, row.subject = issuer, subject
            details = {"name": row.name, "scope": scope, "issuer": issuer, "subject": subject}
            record_change(session, "user.create", row.id, details)
        elif row.scope != scope:
            row.scope = scope
            change = {"name": row.name, "fields": ["scope"], "scope": scope}
            record_change(session, "user.edit", row.id, change)
        return row.id


def _new_user(session: Session, name: str, scope: AccessScope) -> User:
    if session.scalars(select(User.id).where(User.name_key == name_key(name))).first() is not None:
        raise _taken(name)
    row = User(
        id=f"usr_{secrets.token_hex(8)}",
        name=name,
        name_key=name_key(name),
        scope=scope,
        created_at=now(session),
    )
    session.add(row)
    return row


def _taken(name: str) -> Conflict:
    return Conflict(f"name: A user {name!r} already exists. Choose another name.")


def _require_user(session: Session, name_or_id: str) -> User:
    text = storable(name_or_id)
    row = session.scalars(
        select(User)
        .where(or_(User.id == text, User.name_key == name_key(normalize_name(text))))
        .order_by((User.id == text).desc())
        .limit(1)
    ).first()
    if row is None:
        raise NotFound(f"There is no user {name_or_id[:100]!r}.")
    return row


def _valid_name(name: str) -> str:
    allowed = "".join(c for c in normalize_name(name) if name_problem(f"a{c}a") is None)
    allowed = normalize_name(allowed)[: MAX_NAME_CHARS - 8].strip()
    return allowed if allowed and name_problem(allowed) is None else "user"


def _unused_name(session: Session, name: str) -> str:
    for number in range(1, 10_000):
        candidate = name if number == 1 else f"{name} {number}"
        if session.scalars(select(User.id).where(User.name_key == name_key(candidate))).first() is None:
            return candidate
    raise InvalidInput.at("name", f"Too many users are named {name!r}.")


def _details(row: User, sessions: int) -> UserDetails:
    return to_response(UserDetails, row, provider=row.issuer, sessions=sessions)


def find_password_hash(name: str) -> tuple[str | None, str | None]:
    """Look up a user's ID and password hash by name; None for each if unknown."""
    text = storable(name)
    with session_scope() as session:
        row = session.scalars(
            select(User).where(User.name_key == name_key(normalize_name(text)))
        ).one_or_none()
        return (row.id, row.password_hash) if row else (None, None)


def hash_password(password: str) -> str:
    """Hash a new password with a salt; raise InvalidInput if it is too short or too long."""
    if not MIN_PASSWORD_CHARS <= len(unicodedata.normalize("NFC", password)) <= MAX_PASSWORD_CHARS:
        raise InvalidInput.at(
            "password",
            f"A password has {MIN_PASSWORD_CHARS} to {MAX_PASSWORD_CHARS} characters.",
            "Several words are easier to remember than a short mix of characters.",
        )
    return _hasher.hash(_encode(password))


def verify_password(password: str, stored: str | None) -> bool:
    """Verify a password against its stored hash. Without one, return False after the same time."""
    if len(password) > MAX_PASSWORD_CHARS:
        return False
    try:
        return _hasher.verify(stored or _unknown_hash(), _encode(password)) and stored is not None
    except (Argon2Error, InvalidHashError):
        return False


@cache
def _unknown_hash() -> str:
    return _hasher.hash("the password of no user")


def _encode(password: str) -> bytes:
    # Keyboards send either composed or decomposed characters for the same password.
    return unicodedata.normalize("NFC", password).encode("utf-8", "surrogatepass")
