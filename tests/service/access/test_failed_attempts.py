"""Limits on failed attempts, and their entries in the audit log."""

from __future__ import annotations

import sys

import pytest
from limits import RateLimitItemPerMinute

from service.access.failed_attempts import SIGN_IN_LIMIT, AttemptLimits, FailedAttempts, address_group
from service.core.errors import TooManyRequests
from service.core.settings import Settings
from tests.audited_changes import audit_entries

LIMIT = RateLimitItemPerMinute(3, 5, "test")


def _fail(limits: AttemptLimits, address: str, name: str, times: int = 1) -> None:
    for _ in range(times):
        limits.check(LIMIT, address, name)
        limits.count_failure(LIMIT, address, name)


def test_address_and_name_are_limited_separately() -> None:
    limits = AttemptLimits(None)
    _fail(limits, "10.0.0.1", "ada", 3)
    with pytest.raises(TooManyRequests) as refused:
        limits.check(LIMIT, "10.0.0.1", "bob")
    assert 1 <= int(refused.value.headers["Retry-After"]) <= 301
    with pytest.raises(TooManyRequests):
        limits.check(LIMIT, "10.0.0.2", "ada")
    limits.check(LIMIT, "10.0.0.2", "bob")
    limits.check(SIGN_IN_LIMIT, "10.0.0.1", "ada")
    _fail(limits, "10.0.0.3", "", 3)  # without a name, only the address counts
    _fail(limits, "10.0.0.4", "", 1)
    limits.forget_name(LIMIT, "ada")
    limits.check(LIMIT, "10.0.0.2", "ada")


def test_processes_share_the_counters_in_redis_which_memory_replaces_if_it_is_down(redis_url: str) -> None:
    url = redis_url.replace("redis+socket://", "unix://", 1)
    _fail(AttemptLimits(url), "10.0.0.1", "shared", 3)
    with pytest.raises(TooManyRequests):
        AttemptLimits(url).check(LIMIT, "10.0.0.9", "shared")
    limits = AttemptLimits("unix:///nonexistent/redis.sock")
    _fail(limits, "10.0.0.1", "ada", 3)
    with pytest.raises(TooManyRequests):
        limits.check(LIMIT, "10.0.0.1", "ada")


def test_networks_of_ipv6_are_one_address() -> None:
    assert address_group("2001:db8:1:2::1") == address_group("2001:db8:1:2:ffff::9") == "2001:db8:1:2::/64"
    assert address_group("2001:db8:1:3::1") != address_group("2001:db8:1:2::1")
    assert address_group("::ffff:10.0.0.1") == address_group("10.0.0.1")
    assert len(address_group("x" * 10**6)) == 64


@pytest.mark.slow
def test_hundred_thousand_attempts_take_bounded_memory() -> None:
    limits, failures = AttemptLimits(None), FailedAttempts()
    _fail(limits, "10.0.0.1", "ada", 3)
    refused = 0
    for number in range(100_000):
        try:
            limits.check(LIMIT, "10.0.0.1", f"name {number}")
        except TooManyRequests:
            refused += 1
    for number in range(10_000):
        failures.add("session.fail", f"10.0.{number >> 8}.{number & 255}", names=f"name {number}")
    assert refused == 100_000
    assert len(limits._memory.storage.storage) <= 4  # type: ignore[attr-defined]
    assert len(failures._groups) <= 65
    assert sys.getsizeof(failures._groups) < 10_000


def test_attempts_of_an_address_are_one_entry(catalog: Settings) -> None:
    failures = FailedAttempts()
    for number in range(1000):
        failures.add("session.fail", "10.0.0.1", names=f"<b>{number}\0\ud800" + "x" * 999, refused=number > 9)
    for number in range(100):
        failures.add("key.fail", f"10.0.1.{number}")
    assert failures.flush() == 65
    assert failures.flush() == 0
    entries = audit_entries(action=["session.fail"])
    assert len(entries) == 1
    assert (entries[0].address, entries[0].actor_kind) == ("10.0.0.1", "anonymous")
    assert (entries[0].details["attempts"], entries[0].details["refused"]) == (1000, 990)
    assert len(entries[0].details["names"]) == 5
    others = [e.details["attempts"] for e in audit_entries(action=["key.fail"]) if not e.address]
    assert others == [37]
