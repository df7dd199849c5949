"""The cache computes each value once, and blocks no reader of another one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from service.core.errors import Unavailable
from service.search.single_flight_cache import SingleFlightCache

TIMEOUT_SECONDS = 20


class _Source:
    """Returns the number of the read; reads of ``slow`` wait until ``release`` is set."""

    def __init__(self) -> None:
        self.cache: SingleFlightCache[str, int] = SingleFlightCache(2)
        self.reads: list[str] = []
        self.started, self.release, self.is_broken = threading.Event(), threading.Event(), False

    def get(self, key: str, version: int = 1, *, is_outdated: bool = False) -> int:
        def compute(previous: int | None) -> int:
            self.reads.append(f"{key} {version} {previous}")
            number = len(self.reads)
            if key == "slow":
                self.started.set()
                assert self.release.wait(TIMEOUT_SECONDS)
            if self.is_broken:
                raise Unavailable("no")
            return number

        return self.cache.get(key, version, compute, is_outdated=is_outdated)


@pytest.fixture
def source() -> Iterator[_Source]:
    source = _Source()
    yield source
    source.release.set()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def test_values_are_replaced_by_version_and_the_least_recently_used_are_evicted(source: _Source) -> None:
    assert [source.get("a"), source.get("a"), source.get("a", 2)] == [1, 1, 2]
    assert source.get("a", 2, is_outdated=True) == 3
    assert source.reads == ["a 1 None", "a 2 1", "a 2 2"]
    source.get("b")
    source.get("a", 2)
    source.get("c")
    assert [source.get("a", 2), source.get("c"), source.get("b")] == [3, 5, 6]


def test_readers_of_other_values_do_not_wait(source: _Source, pool: ThreadPoolExecutor) -> None:
    slow = pool.submit(source.get, "slow")
    assert source.started.wait(TIMEOUT_SECONDS)
    assert pool.submit(source.get, "quick").result(TIMEOUT_SECONDS) == 2
    assert not slow.done()
    source.release.set()
    assert slow.result(TIMEOUT_SECONDS) == 1


@pytest.mark.parametrize("is_broken", [False, True])
def test_readers_of_a_value_share_its_computation_or_error(
    source: _Source, pool: ThreadPoolExecutor, is_broken: bool
) -> None:
    source.is_broken = is_broken
    readers = [pool.submit(source.get, "slow") for _ in range(6)]
    assert source.started.wait(TIMEOUT_SECONDS)
    source.release.set()
    errors = {type(reader.exception(TIMEOUT_SECONDS)) for reader in readers}
    assert errors == {Unavailable if is_broken else type(None)}
    source.is_broken = False
    assert source.get("slow") == (len(source.reads) if is_broken else 1), "errors are not cached"
