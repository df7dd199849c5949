"""Create, list and revoke API keys in the catalog."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime, timedelta

from sqlalchemy import delete, or_, select

from cinestrata_schemas.access import KeyDetails, KeySecret, KeySpec
from service.access.audit_log import current_actor, record_change
from service.access.credentials import digest, note_change
from service.catalog.database import now, session_scope
from service.catalog.operation_tables import ApiKey, BrowserSession
from service.core.domain_names import name_key
from service.core.errors import Conflict, InvalidInput, NotFound

_ID_LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz"
_ID_CHARS = 12
_SECRET_BYTES = 32


def create_key(spec: KeySpec) -> KeySecret:
    """Create a key. Only this result contains its secret.

    Raises:
        InvalidInput: The expiry is in the past.
        Conflict: Another active key has the name.
    """
    key_id = "".join(secrets.choice(_ID_LETTERS) for _ in range(_ID_CHARS))
    secret = f"cine_{key_id}_{secrets.token_urlsafe(_SECRET_BYTES)}"
    with session_scope(write=True) as session:
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
        created = KeySecret(**_details(row, at).model_dump(), key=secret)
    note_change()
    return created


def list_keys() -> list[KeyDetails]:
    """List all keys, revoked ones included, newest first."""
    with session_scope() as session:
        at = now(session)
        rows = session.scalars(select(ApiKey).order_by(ApiKey.created_at.desc(), ApiKey.id))
        return [_details(row, at) for row in rows]


def revoke_key(name_or_id: str) -> KeyDetails:
    """Revoke a key and end the sessions that it started. Idempotent.

    Raises:
        NotFound: The key does not exist.
    """
    text = name_or_id.replace("\0", "").encode("utf-8", "replace").decode()
    with session_scope(write=True) as session:
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
        details = _details(row, at)
    note_change()
    return details


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


def _details(row: ApiKey, at: datetime) -> KeyDetails:
    state = "active"
    if row.revoked_at is not None:
        state = "revoked"
    elif row.expires_at is not None and row.expires_at <= at:
        state = "expired"
    return KeyDetails(
        id=row.id,
        name=row.name,
        scope=row.scope,
        state=state,
        created_at=row.created_at,
        created_by=row.created_by,
        expires_at=row.expires_at,
        last_used_at=row.last_used_at,
        revoked_at=row.revoked_at,
    )
