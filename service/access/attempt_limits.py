"""Limits on wrong keys and failed sign-ins, per network address and per name.

The counters are in Redis where the broker answers, so that all API processes share them, and otherwise in this process.
Addresses and names are counted in a fixed number of buckets, which bounds the memory for any number of attempts. An
exhausted address is also remembered in this process: its further attempts cost neither a thread nor a look-up.
"""

from __future__ import annotations

import hashlib
import ipaddress
import threading
import time

import structlog
from cachetools import TTLCache
from limits import RateLimitItem, RateLimitItemPerMinute
from limits.storage import MemoryStorage, RedisStorage, Storage
from limits.strategies import FixedWindowRateLimiter

from service.core.errors import TooManyRequests

__all__ = ["KEY_LIMIT", "SIGN_IN_LIMIT", "AttemptLimits", "address_group"]

SIGN_IN_LIMIT: RateLimitItem = RateLimitItemPerMinute(10, 5, "sign-in")  # failures in five minutes
KEY_LIMIT: RateLimitItem = RateLimitItemPerMinute(60, 1, "key")

_BUCKETS = 2**14
_BLOCKED_ADDRESSES = 2**14
_MIN_BLOCK_SECONDS = 1.0
_REDIS_SECONDS = 0.5  # timeout of the counters
_RETRY_SECONDS = 30.0  # between two attempts to reach Redis

log = structlog.get_logger(__name__)


class AttemptLimits:
    """Counters of failed attempts.

    Args:
        redis_url: URL of the broker, as a Redis client writes it; None counts in this process only.
    """

    def __init__(self, redis_url: str | None) -> None:
        self._memory = FixedWindowRateLimiter(MemoryStorage())
        self._redis_url = redis_url
        self._redis: FixedWindowRateLimiter | None = None
        self._redis_due = 0.0
        self._blocked: TTLCache[str, float] = TTLCache(_BLOCKED_ADDRESSES, SIGN_IN_LIMIT.get_expiry())
        self._lock = threading.Lock()

    def check_address(self, limit: RateLimitItem, address: str) -> None:
        """Refuse an address that this process knows as exhausted. Takes no I/O.

        Raises:
            TooManyRequests: the address has too many failures.
        """
        with self._lock:
            until = self._blocked.get(f"{limit.namespace}:{address_group(address)}", 0.0)
        if (left := until - time.monotonic()) > 0:
            raise _too_many(left)

    def check(self, limit: RateLimitItem, address: str, name: str) -> None:
        """Check the counters before an attempt, of the address only if the name is empty. Accesses Redis.

        Raises:
            TooManyRequests: the address or the name has too many failures.
        """
        self.check_address(limit, address)
        for identifier in _identifiers(address, name):
            left = self._seconds_left(limit, identifier)
            if left is not None:
                if identifier[0] == "address":
                    with self._lock:
                        group = address_group(address)
                        self._blocked[f"{limit.namespace}:{group}"] = time.monotonic() + left
                raise _too_many(left)

    def count_failure(self, limit: RateLimitItem, address: str, name: str) -> None:
        """Count a failed attempt. Accesses Redis."""
        for identifier in _identifiers(address, name):
            self._call("hit", limit, identifier)

    def forget_name(self, limit: RateLimitItem, name: str) -> None:
        """Reset the counter of a name after a successful attempt. Accesses Redis."""
        if name:
            self._call("clear", limit, ("name", _bucket(name)))

    def _seconds_left(self, limit: RateLimitItem, identifier: tuple[str, str]) -> float | None:
        """Seconds until the next attempt; None if it is permitted now."""
        if self._call("test", limit, identifier):
            return None
        reset = float(self._call("get_window_stats", limit, identifier).reset_time)
        return max(reset - time.time(), _MIN_BLOCK_SECONDS)

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
    """Return an IPv4 address, or the /64 network of an IPv6 address: a client has all addresses of it."""
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


def _too_many(seconds: float) -> TooManyRequests:
    retry_after = int(seconds) + 1
    return TooManyRequests(f"Too many failed attempts; try again in {retry_after} seconds.", retry_after)
