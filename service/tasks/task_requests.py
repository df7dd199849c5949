"""Requests that create a task, and their repetition with the same Idempotency-Key."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO

from sqlalchemy.orm import Session

from cinestrata_schemas.tasks import TaskDetails
from service.tasks import idempotency
from service.tasks.archives.archive_unpacking import archive_digest
from service.tasks.lifecycle.heartbeat import Heartbeat


@dataclass(frozen=True)
class CreateOutcome:
    """The task of a request. ``replayed``: an earlier request with the same Idempotency-Key created it."""

    task: TaskDetails
    replayed: bool


@dataclass(frozen=True)
class TaskRequest:
    """A request for a new task.

    Attributes:
        key: Its ``Idempotency-Key``.
        caller: Identity of the caller; keys of different callers are independent.
        target_id: For an append, the identifier of the domain's task.
    """

    key: str | None
    caller: str
    target_id: str | None = None

    def create_once(
        self, content: Any, create: Callable[[], CreateOutcome], *, archive: BinaryIO | None = None
    ) -> CreateOutcome:
        """Return the outcome of an earlier request with the same key; otherwise create the task.

        Args:
            content: JSON value that identifies the request; the same key with another value is refused.
            create: Function that stores the task and calls :meth:`settle` in the same transaction. If it fails and no
                task is stored, the key can be used again.
            archive: Archive of the videos; a part of the content. It is rewound.

        Raises:
            IdempotencyMismatch, IdempotencyInFlight: see ``service.tasks.idempotency``.
        """
        if self.key is None:
            return create()
        stored = idempotency.reserve(self.caller, self.key, _content_hash(content, archive))
        if stored is not None:
            return CreateOutcome(TaskDetails.model_validate(stored), replayed=True)
        with self._holding(self.key):
            return create()

    @contextmanager
    def _holding(self, key: str) -> Iterator[None]:
        """Hold the reserved key until the end of the ``with`` statement; free it if no task was stored."""
        finished = threading.Event()
        heartbeat = Heartbeat(partial(idempotency.renew, self.caller, key), finished, "idempotency-key")
        heartbeat.start()
        try:
            yield
        except BaseException:
            finished.set()
            heartbeat.join()
            idempotency.drop(self.caller, key)
            raise
        finally:
            finished.set()

    def settle(self, session: Session, task: TaskDetails) -> None:
        """Store the answer under the key, in the transaction that stores the task."""
        if self.key is not None:
            idempotency.settle(session, self.caller, self.key, task.id, task.model_dump(mode="json"))


def _content_hash(content: Any, archive: BinaryIO | None) -> str:
    body = json.dumps(content, sort_keys=True, default=str)
    digest = hashlib.sha256(body.encode("utf-8", "surrogatepass"))  # strings may contain lone surrogates
    if archive is not None:
        digest.update(archive_digest(archive))
    return digest.hexdigest()
