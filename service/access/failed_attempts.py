"""Limit and record failed sign-ins, wrong keys, and keys in URLs.

The counters are in Redis if the broker responds, so that all API processes share them; otherwise in this process.
Addresses and names are hashed into a fixed number of buckets, which limits the memory.

One audit log entry counts an address's attempts over some seconds. Until it is written, keys are kept as digests; no
entry contains them.
"""

from __future__ import annotations

import hashlib
import ipaddress
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import structlog
from limits import RateLimitItem, RateLimitItemPerMinute
from limits.storage import MemoryStorage, RedisStorage, Storage
from limits.strategies import FixedWindowRateLimiter

from service.access.audit_log import Actor, record_change
from service.access.credentials import is_key
from service.catalog.database import session_scope
from service.core.errors import TooManyRequests

SIGN_IN_LIMIT: RateLimitItem = RateLimitItemPerMinute(10, 5, "sign-in")  # failures in five minutes
KEY_LIMIT: RateLimitItem = RateLimitItemPerMinute(60, 1, "key")
FLUSH_SECONDS = 15.0

_BUCKETS = 2**14
_MIN_BLOCK_SECONDS = 1.0
_REDIS_SECONDS = 0.5  # timeout of a call
_RETRY_SECONDS = 30.0  # between attempts to reach Redis again
_MAX_GROUPS = 64  # addresses per flush; all others share an entry
_MAX_NAMES = 5  # names per entry, and values per fact
_MAX_NAME_CHARS = 80

log = structlog.get_logger(__name__)


class AttemptLimits:
    """Counters of failed attempts, in Redis at a URL as its clients write it, or without one in this process only."""

    def __init__(self, redis_url: str | None) -> None:
        self._memory = FixedWindowRateLimiter(MemoryStorage())
        self._redis_url = redis_url
        self._redis: FixedWindowRateLimiter | None = None
        self._redis_due = 0.0

    def check(self, limit: RateLimitItem, address: str, name: str) -> None:
        """Check the counters before an attempt; raise TooManyRequests. Without a name, only the address counts."""
        for identifier in _identifiers(address, name):
            if not self._call("test", limit, identifier):
                reset = float(self._call("get_window_stats", limit, identifier).reset_time)
                left = int(max(reset - time.time(), _MIN_BLOCK_SECONDS)) + 1
                raise TooManyRequests(f"Too many failed attempts; try again in {left} seconds.", left)

    def count_failure(self, limit: RateLimitItem, address: str, name: str) -> None:
        """Count a failed attempt. Accesses Redis."""
        for identifier in _identifiers(address, name):
            self._call("hit", limit, identifier)

    def forget_name(self, limit: RateLimitItem, name: str) -> None:
        """Reset a name's counter after a successful attempt. Accesses Redis."""
        if name:
            self._call("clear", limit, ("name", _bucket(name)))

    def _call(self, method: str, limit: RateLimitItem, identifier: tuple[str, str]):  # type: ignore[no-untyped-def]
        redis = self._reachable_redis()
        if redis is not None:
            try:
                return getattr(redis, method)(limit, *identifier)
            except Exception as error:
                if not isinstance(error, redis.storage.base_exceptions):
                    raise
                log.warning("attempt_limits_without_redis", error=type(error).__name__)
                self._redis, self._redis_due = None, time.monotonic() + _RETRY_SECONDS
        return getattr(self._memory, method)(limit, *identifier)

    def _reachable_redis(self) -> FixedWindowRateLimiter | None:
        if self._redis is None and self._redis_url and time.monotonic() >= self._redis_due:
            storage: Storage = RedisStorage(
                self._redis_url,
                key_prefix="cinestrata-attempts",
                socket_timeout=_REDIS_SECONDS,
                socket_connect_timeout=_REDIS_SECONDS,
            )
            self._redis = FixedWindowRateLimiter(storage)
        return self._redis


def address_group(address: str) -> str:
    """Group an address for counting: IPv6 by its /64 network, all of which one client owns."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address[:64]
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((int(parsed), 64), strict=False))
    return str(parsed)


def _identifiers(address: str, name: str) -> list[tuple[str, str]]:
    of_address = [("address", _bucket(address_group(address)))]
    return [*of_address, ("name", _bucket(name))] if name else of_address


def _bucket(text: str) -> str:
    hashed = hashlib.sha256(text.encode("utf-8", "replace")).digest()
    return str(int.from_bytes(hashed[:4], "big") % _BUCKETS)


@dataclass
class _Attempts:
    number: int = 0
    refused: int = 0
    facts: dict[str, list[str]] = field(default_factory=dict)
    keys: list[tuple[str, str | None]] = field(default_factory=list)  # identifiers and digests


class FailedAttempts:
    """Collects attempts until they are recorded."""

    def __init__(self) -> None:
        self._groups: OrderedDict[tuple[str, str], _Attempts] = OrderedDict()
        self._lock = threading.Lock()

    def add(
        self,
        action: str,
        address: str,
        *,
        refused: bool = False,
        key: tuple[str, str | None] | None = None,
        **facts: str,
    ) -> None:
        """Count a ``session.fail`` (of a user), ``key.fail`` (of a key's ID) or ``key.exposed`` (in a query).

        The rate limit has ``refused`` the attempt before credentials were checked. An exposed ``key`` is an ID, and a
        digest with which it is recorded only if the catalog has it. ``facts`` are values in the details, by name.
        """
        with self._lock:
            group = (action, address)
            if group not in self._groups and len(self._groups) >= _MAX_GROUPS:
                group = (action, "")
            attempts = self._groups.setdefault(group, _Attempts())
            attempts.number += 1
            attempts.refused += refused
            for name, value in facts.items():
                values, shown = attempts.facts.setdefault(name, []), value[:_MAX_NAME_CHARS]
                if shown and shown not in values and len(values) < _MAX_NAMES:
                    values.append(shown)
            if key and key not in attempts.keys and len(attempts.keys) < _MAX_NAMES:
                attempts.keys.append(key)

    def flush(self) -> int:
        """Record all waiting attempts, and return the number of entries; an error loses the attempts."""
        with self._lock:
            groups, self._groups = self._groups, OrderedDict()
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
