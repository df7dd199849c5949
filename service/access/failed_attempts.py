"""Failed sign-ins, wrong keys, and keys in URLs in the audit log: one entry for the attempts of an address in seconds.

Keys are kept as digests until the entry is written, and no entry contains them.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from service.access.credentials import is_key
from service.audit.actor import Actor
from service.audit.audit_log import record_change
from service.catalog.database import session_scope

__all__ = ["FLUSH_SECONDS", "FailedAttempts"]

FLUSH_SECONDS = 15.0

_MAX_GROUPS = 64  # addresses of one flush; further addresses share an entry
_MAX_NAMES = 5  # names of an entry, and values of each of its facts
_MAX_NAME_CHARS = 80


@dataclass
class _Attempts:
    number: int = 0
    refused: int = 0
    facts: dict[str, list[str]] = field(default_factory=dict)
    keys: list[tuple[str, str | None]] = field(default_factory=list)  # identifiers and digests


class FailedAttempts:
    """Attempts that are not recorded yet."""

    def __init__(self) -> None:
        self._groups: OrderedDict[tuple[str, str], _Attempts] = OrderedDict()
        self._lock = threading.Lock()
        self._flushed = time.monotonic()

    def add(self, action: str, address: str, name: str = "", *, refused: bool = False) -> None:
        """Count an attempt.

        Args:
            action: ``session.fail`` or ``key.fail``.
            address: Network address of the client.
            name: Name of the user, or identifier of the key.
            refused: Whether the attempt was refused by its rate limit, without a check of the credentials.
        """
        with self._lock:
            attempts = self._count(action, address)
            attempts.refused += refused
            _add_facts(attempts, {"names": name})

    def add_exposed_key(
        self, address: str, path: str, parameter: str, key_id: str = "", digest: str | None = None
    ) -> None:
        """Count a request with a key in its URL (``key.exposed``).

        Args:
            address: Network address of the client.
            path: Path of the request, without its query.
            parameter: Name of the parameter.
            key_id: Identifier that the key contains; empty if the parameter has no value in the form of a key.
            digest: Digest of the key. The identifier is recorded if it is that of the key in the catalog, and without a
                digest.
        """
        with self._lock:
            attempts = self._count("key.exposed", address)
            _add_facts(attempts, {"paths": path, "parameters": parameter})
            if key_id and (key_id, digest) not in attempts.keys and len(attempts.keys) < _MAX_NAMES:
                attempts.keys.append((key_id, digest))

    def _count(self, action: str, address: str) -> _Attempts:
        group = (action, address)
        if group not in self._groups and len(self._groups) >= _MAX_GROUPS:
            group = (action, "")
        attempts = self._groups.setdefault(group, _Attempts())
        attempts.number += 1
        return attempts

    def is_due(self) -> bool:
        """Whether attempts wait for longer than ``FLUSH_SECONDS``."""
        return bool(self._groups) and time.monotonic() - self._flushed >= FLUSH_SECONDS

    def flush(self) -> int:
        """Record all waiting attempts, and return the number of entries.

        Raises:
            Unavailable: the catalog cannot be written; the attempts of this flush are lost.
        """
        with self._lock:
            groups, self._groups = self._groups, OrderedDict()
            self._flushed = time.monotonic()
        if not groups:
            return 0
        with session_scope(write=True) as session:
            for (action, address), attempts in groups.items():
                details: dict[str, Any] = {"attempts": attempts.number, **attempts.facts}
                if action == "key.exposed":
                    details["keys"] = [
                        key for key, digest in attempts.keys if digest is None or is_key(session, key, digest)
                    ]
                else:
                    details = {**details, "refused": attempts.refused}
                if not address:
                    details["addresses"] = "various"
                record_change(
                    session, action, "", details, actor=Actor("anonymous", "anonymous", address or None)
                )
        return len(groups)


def _add_facts(attempts: _Attempts, facts: Mapping[str, str]) -> None:
    for name, value in facts.items():
        values, shown = attempts.facts.setdefault(name, []), value[:_MAX_NAME_CHARS]
        if shown and shown not in values and len(values) < _MAX_NAMES:
            values.append(shown)
