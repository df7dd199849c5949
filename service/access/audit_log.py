"""The audit log: who changed what, in pages.

An entry is written in its change's transaction: a change that is rolled back leaves no entry, and none is committed
without one.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from cinestrata_schemas.access import AuditPage, AuditRecord
from cinestrata_schemas.choice_types import ActorKind
from service.catalog.database import now, session_scope
from service.catalog.keyset_paging import KeysetOrders, contains_text
from service.catalog.operation_tables import AuditEntry
from service.catalog.tables import to_response
from service.core.errors import InvalidInput
from service.core.list_parameters import AuditFilters
from service.core.text_rules import storable

MAX_LISTED_IDS = 100  # listed for a change of many resources; ``details`` has the total
_MAX_NAME_CHARS = 255
_MAX_ACTION_CHARS = 64
_MAX_ADDRESS_CHARS = 64
_MAX_REQUEST_ID_CHARS = 128
_MAX_TEXT_CHARS = 2000
_MAX_DEPTH = 8
_ORDERS = KeysetOrders({"time": AuditEntry.id}, unique=AuditEntry.id)


@dataclass(frozen=True)
class Actor:
    """Who made a change."""

    # user (signed in), key (in the catalog or, if ``environment``, in the environment), anonymous (a request without
    # credentials), cli (a command on the data folder), worker, or system (a process without a request)
    kind: ActorKind
    name: str  # of the user or key, the operating system login, or the process
    address: str | None = None
    request_id: str | None = None


_current: ContextVar[Actor | None] = ContextVar("cinestrata_actor", default=None)
_process_actor = Actor("system", "system")


def current_actor() -> Actor:
    """Get the actor of the current context; outside :func:`acting_as`, the process's."""
    return _current.get() or _process_actor


@contextmanager
def acting_as(actor: Actor) -> Iterator[None]:
    """Set the actor of all changes in this context, including threads that copy it."""
    token = _current.set(actor)
    try:
        yield
    finally:
        _current.reset(token)


def set_process_actor(actor: Actor) -> None:
    """Set the actor of all changes by this process and by processes that it forks."""
    global _process_actor
    _process_actor = actor


def command_line_actor() -> Actor:
    """Describe the operating system login as an actor."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container may have no entry for the user
        name = f"uid {os.getuid()}"
    return Actor("cli", name)


def record_change(
    session: Session,
    action: str,
    target: str = "",
    details: Mapping[str, Any] | None = None,
    *,
    actor: Actor | None = None,
) -> None:
    """Add an entry to a change's transaction: its action, the ID of the resource, and JSON values without secrets."""
    actor = actor or current_actor()
    session.add(
        AuditEntry(
            at=now(session),
            actor=_storable(actor.name, _MAX_NAME_CHARS),
            actor_kind=actor.kind,
            action=action[:_MAX_ACTION_CHARS],
            target=_storable(target, _MAX_NAME_CHARS),
            address=_storable(actor.address, _MAX_ADDRESS_CHARS) if actor.address else None,
            request_id=_storable(actor.request_id, _MAX_REQUEST_ID_CHARS) if actor.request_id else None,
            details=_storable_json(details or {}),
        )
    )


def record_event(
    action: str, target: str = "", details: Mapping[str, Any] | None = None, *, actor: Actor | None = None
) -> None:
    """Record a change outside the catalog, in its own transaction. Arguments as for :func:`record_change`."""
    with session_scope(write=True) as session:
        record_change(session, action, target, details, actor=actor)


def list_entries(wanted: AuditFilters) -> AuditPage:
    """List a page of entries, by the parameters of ``GET /audit``; raise InvalidInput."""
    after, before = _in_utc(wanted.after), _in_utc(wanted.before)
    if after is not None and before is not None and after >= before:
        raise InvalidInput.at("after", "The time is not earlier than 'before'.", "Swap the two times.")
    exact = wanted.model_dump(include={"actor", "target", "address", "request_id"}, exclude_none=True)
    query = select(AuditEntry).filter_by(**exact)
    if wanted.kind:
        query = query.where(AuditEntry.actor_kind.in_(wanted.kind))
    if wanted.action:
        of_resource = [AuditEntry.action.startswith(f"{name}.", autoescape=True) for name in wanted.action]
        query = query.where(or_(AuditEntry.action.in_(wanted.action), *of_resource))
    if wanted.text:
        columns = [AuditEntry.actor, AuditEntry.action, AuditEntry.target]
        query = query.where(contains_text(wanted.text, columns, [AuditEntry.details]))
    if after is not None:
        query = query.where(AuditEntry.at >= after)
    if before is not None:
        query = query.where(AuditEntry.at < before)
    with session_scope() as session:
        page = _ORDERS.read_page(session, query, wanted.sort, wanted.cursor, wanted.limit)
    return AuditPage(
        entries=[to_response(AuditRecord, row) for row in page.rows], next_cursor=page.next_cursor
    )


def _in_utc(at: datetime | None) -> datetime | None:
    """Convert a time to UTC, or to the nearest time that UTC can express."""
    if at is None:
        return None
    try:
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC)
    except OverflowError:
        return (datetime.max if at.year > 1 else datetime.min).replace(tzinfo=UTC)


def _storable(text: str, limit: int) -> str:
    return storable(text[:limit])


def _storable_json(value: Any, depth: int = 0) -> Any:
    if isinstance(value, str):
        return _storable(value, _MAX_TEXT_CHARS)
    if depth == _MAX_DEPTH:
        return None
    if isinstance(value, Mapping):
        return {
            _storable(str(name), _MAX_NAME_CHARS): _storable_json(item, depth + 1)
            for name, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_storable_json(item, depth + 1) for item in value]
    return value
