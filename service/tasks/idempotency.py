"""Idempotency keys: run requests with the same key only once.

A running request holds the lease of its key, so that a concurrent second request is refused. The transaction that
stores the task also stores the response under the key, so both exist or neither does. If a lease cannot be renewed and
a second request overlaps the first, only the first one to finish is stored.
"""

from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import Any

from sqlalchemy import delete, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from service.catalog.column_types import is_damaged
from service.catalog.database import now, session_scope
from service.catalog.leases import Lease, acquire, revoke
from service.catalog.tables import IdempotencyKey
from service.core.errors import CatalogDamaged, IdempotencyInFlight, IdempotencyMismatch, InvalidInput

RETENTION = timedelta(hours=24)  # keys are forgotten after this time


def check_key(key: str) -> None:
    """Validate a key.

    Raises:
        InvalidInput: The key is not 1 to 255 visible ASCII characters.
    """
    if not 1 <= len(key) <= 255 or not all(33 <= ord(c) <= 126 for c in key):
        raise InvalidInput.at(
            "Idempotency-Key", "It must be 1 to 255 visible ASCII characters.", "A UUID is a good choice."
        )


def caller_scope(caller: str) -> str:
    """Hash a caller's identity, under which their keys are stored: API keys are never stored as plain text."""
    return hashlib.sha256(caller.encode()).hexdigest()


def reserve(caller: str, key: str, body_hash: str) -> dict[str, Any] | Lease:
    """Reserve a key for a request.

    Args:
        caller: Identity of the caller, who has their own keys.

    Returns:
        The stored response if the same request ran before; otherwise the lease under which it must run now.

    Raises:
        IdempotencyMismatch: The key belongs to a request with another body.
        IdempotencyInFlight: The same request is running.
    """
    check_key(key)
    caller = caller_scope(caller)
    try:
        with session_scope(write=True) as session:
            return _reserve(session, caller, key, body_hash)
    except IntegrityError:  # two concurrent first requests on PostgreSQL
        raise IdempotencyInFlight("The first request with this Idempotency-Key is still running.") from None


def settle(session: Session, caller: str, key: str, task_id: str, response: dict[str, Any]) -> None:
    """Store the response under the key, in the transaction that stores the task.

    Raises:
        IdempotencyInFlight: Another request with the same key has stored its response.
    """
    caller = caller_scope(caller)
    settled = session.execute(
        update(IdempotencyKey)
        .where(IdempotencyKey.caller == caller, IdempotencyKey.key == key, IdempotencyKey.response.is_(None))
        .values(task_id=task_id, response=response)
        .returning(IdempotencyKey.key)
    )
    if settled.scalar() is None:
        raise IdempotencyInFlight("Another request with this Idempotency-Key was executed.")
    revoke(session, "request", _lease_key(caller, key))


def drop(caller: str, key: str) -> None:
    """Delete a failed request's key: nothing was stored, so a corrected request may reuse it."""
    with session_scope(write=True) as session:
        session.execute(
            delete(IdempotencyKey).where(
                IdempotencyKey.caller == caller_scope(caller),
                IdempotencyKey.key == key,
                IdempotencyKey.task_id.is_(None),
            )
        )


def _reserve(session: Session, caller: str, key: str, body_hash: str) -> dict[str, Any] | Lease:
    at = now(session)
    row = session.get(IdempotencyKey, (caller, key), with_for_update=True)
    if row is not None and row.created_at < at - RETENTION:
        session.delete(row)
        session.flush()
        row = None
    if row is None:
        session.add(IdempotencyKey(caller=caller, key=key, body_hash=body_hash, created_at=at))
        session.flush()
    else:
        if row.body_hash != body_hash:
            raise IdempotencyMismatch.at(
                "Idempotency-Key",
                "This key belongs to another request.",
                "Use a new key for a new request.",
            )
        if is_damaged(row.response):
            raise CatalogDamaged("the stored response to this Idempotency-Key cannot be read")
        if row.response is not None:
            return row.response
    lease = acquire(session, "request", _lease_key(caller, key), name="The Idempotency-Key")
    if lease is None:
        raise IdempotencyInFlight("The first request with this Idempotency-Key is still running.")
    return lease


def _lease_key(caller: str, key: str) -> str:
    return f"{caller} {key}"
