"""Failed sign-ins and wrong keys in the audit log: one entry for all attempts of an address within a minute."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field

from service.audit.actor import Actor
from service.audit.audit_log import record_change
from service.catalog.database import session_scope

__all__ = ["FLUSH_SECONDS", "FailedAttempts"]

FLUSH_SECONDS = 15.0

_MAX_GROUPS = 64  # addresses of one flush; further addresses share an entry
_MAX_NAMES = 5  # names of an entry
_MAX_NAME_CHARS = 80


@dataclass
class _Attempts:
    number: int = 0
    refused: int = 0
    names: list[str] = field(default_factory=list)


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
            group = (action, address)
            if group not in self._groups and len(self._groups) >= _MAX_GROUPS:
                group = (action, "")
            attempts = self._groups.setdefault(group, _Attempts())
            attempts.number += 1
            attempts.refused += refused
            shown = name[:_MAX_NAME_CHARS]
            if shown and shown not in attempts.names and len(attempts.names) < _MAX_NAMES:
                attempts.names.append(shown)

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
                details = {"attempts": attempts.number, "refused": attempts.refused, "names": attempts.names}
                if not address:
                    details["addresses"] = "various"
                record_change(
                    session, action, "", details, actor=Actor("anonymous", "anonymous", address or None)
                )
        return len(groups)
