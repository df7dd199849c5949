"""Idempotency keys: run requests with the same key only once.

A running request holds the lease of its key, so that a concurrent second request is refused. The transaction that
stores the task also stores the response under the key, so both exist or neither does. If a lease cannot be renewed and
a second request overlaps the first, only the first one to finish is stored.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, BinaryIO

from sqlalchemy import delete, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from cinestrata_schemas.tasks import TaskDetails
from service.catalog.database import now, session_scope
from service.catalog.leases import Lease, acquire, revoke
from service.catalog.operation_tables import IdempotencyKey
from service.core.errors import IdempotencyInFlight, IdempotencyMismatch, InvalidInput

RETENTION = timedelta(hours=24)  # keys are forgotten after this time


@dataclass(frozen=True)
class CreateOutcome:
    """A request's task. ``replayed``: a previous request with the same Idempotency-Key created it."""

    task: TaskDetails
    replayed: bool


@dataclass(frozen=True)
class TaskRequest:
    """A request for a new task."""

    key: str | None
    caller: str  # identity of the caller, who has their own keys
    target_id: str | None = None  # for an append, the ID of the domain's task

    def create_once(
        self, content: Any, create: Callable[[], CreateOutcome], *, archive: BinaryIO | None = None
    ) -> CreateOutcome:
        """Create the task, or return the outcome of a previous request with the same key.

        Args:
            content: JSON value that identifies the request, besides the archive, which is rewound.
            create: Stores the task and calls :meth:`settle` in the same transaction. If it fails and no task is stored,
                the key can be used again.

        Raises InvalidInput for a key that is not 1 to 255 visible ASCII characters, IdempotencyMismatch for a key of a
        request with other content, or IdempotencyInFlight while the same request is running.
        """
        if self.key is None:
            return create()
        reserved = self.reserve(_content_hash(content, archive))
        if not isinstance(reserved, Lease):
            return CreateOutcome(TaskDetails.model_validate(reserved), replayed=True)
        with reserved:
            try:
                outcome = create()
            except BaseException:
                self._forget()
                raise
            reserved.end()  # settle() revoked it with the task
            return outcome

    def reserve(self, body_hash: str) -> dict[str, Any] | Lease:
        """Reserve the key; return its stored response, or the lease to run under. Errors as :meth:`create_once`."""
        key = self.key or ""
        if not 1 <= len(key) <= 255 or not all(33 <= ord(c) <= 126 for c in key):
            raise InvalidInput.at(
                "Idempotency-Key", "It must be 1 to 255 visible ASCII characters.", "A UUID is a good choice."
            )
        try:
            with session_scope(write=True) as session:
                at = now(session)
                row = session.get(IdempotencyKey, (self._scope, key), with_for_update=True)
                if row is not None and row.created_at < at - RETENTION:
                    session.delete(row)
                    session.flush()
                    row = None
                if row is None:
                    session.add(
                        IdempotencyKey(caller=self._scope, key=key, body_hash=body_hash, created_at=at)
                    )
                    session.flush()
                elif row.body_hash != body_hash:
                    message, hint = "This key belongs to another request.", "Use a new key for a new request."
                    raise IdempotencyMismatch.at("Idempotency-Key", message, hint)
                elif row.response is not None:
                    return row.response
                lease = acquire(session, "request", f"{self._scope} {key}", name="The Idempotency-Key")
                if lease is None:
                    raise _in_flight()
                return lease
        except IntegrityError:  # two concurrent first requests on PostgreSQL
            raise _in_flight() from None

    def settle(self, session: Session, task: TaskDetails) -> None:
        """Store the response under the key, in the transaction that stores the task; raise IdempotencyInFlight."""
        if self.key is None:
            return
        settled = session.execute(
            update(IdempotencyKey)
            .where(*self._is_key, IdempotencyKey.response.is_(None))
            .values(task_id=task.id, response=task.model_dump(mode="json"))
            .returning(IdempotencyKey.key)
        )
        if settled.scalar() is None:
            raise IdempotencyInFlight("Another request with this Idempotency-Key was executed.")
        revoke(session, "request", f"{self._scope} {self.key}")

    @property
    def _scope(self) -> str:
        """Digest of the caller, so that no API key is stored as plain text."""
        return hashlib.sha256(self.caller.encode()).hexdigest()

    @property
    def _is_key(self) -> tuple[Any, Any]:
        return IdempotencyKey.caller == self._scope, IdempotencyKey.key == self.key

    def _forget(self) -> None:
        """Delete a failed request's key: nothing was stored, so a corrected request may reuse it."""
        with session_scope(write=True) as session:
            session.execute(delete(IdempotencyKey).where(*self._is_key, IdempotencyKey.task_id.is_(None)))


def _in_flight() -> IdempotencyInFlight:
    return IdempotencyInFlight("The first request with this Idempotency-Key is still running.")


def _content_hash(content: Any, archive: BinaryIO | None) -> str:
    body = json.dumps(content, sort_keys=True, default=str)
    digest = hashlib.sha256(body.encode("utf-8", "surrogatepass"))  # strings may contain lone surrogates
    if archive is not None:
        archive.seek(0)
        digest.update(hashlib.file_digest(archive, "sha256").digest())  # type: ignore[arg-type]
        archive.seek(0)
    return digest.hexdigest()
