"""The metadata cache reads each task once and does not block readers of other tasks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest

from service.core.errors import Unavailable
from service.search import video_metadata_cache
from service.search.video_metadata_cache import MomentSpans, VideoMetadata, VideoMetadataCache

TIMEOUT_SECONDS = 20


class _Catalog:
    """Catalog whose rows of task ``slow`` are returned only after ``release`` is set; records the reads."""

    def __init__(self) -> None:
        self.reads: list[str] = []
        self.started, self.release, self.is_broken = threading.Event(), threading.Event(), False

    def read(self, task: str) -> VideoMetadata:
        self.reads.append(task)
        if task == "slow":
            self.started.set()
            assert self.release.wait(TIMEOUT_SECONDS)
        if self.is_broken:
            raise Unavailable("no")
        return VideoMetadata([(len(self.reads), None, {})])


@pytest.fixture
def catalog(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Catalog]:
    catalog = _Catalog()
    monkeypatch.setattr(video_metadata_cache, "read_metadata", catalog.read)
    monkeypatch.setattr(video_metadata_cache, "read_moments", lambda task: MomentSpans([]))
    yield catalog
    catalog.release.set()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def test_readers_of_other_metadata_do_not_wait_for_a_slow_read(
    catalog: _Catalog, pool: ThreadPoolExecutor
) -> None:
    cache = VideoMetadataCache()
    cached = cache.metadata("quick", "1")
    slow = pool.submit(cache.metadata, "slow", "1")
    assert catalog.started.wait(TIMEOUT_SECONDS)
    other_reads: list[Callable[[], Any]] = [
        lambda: cache.metadata("quick", "1"),
        lambda: cache.metadata("new", "1"),
        lambda: cache.metadata("quick", "2"),
        lambda: cache.moments("slow", "1"),
    ]
    results = [pool.submit(read).result(TIMEOUT_SECONDS) for read in other_reads]
    assert results[0] is cached
    assert not slow.done()
    catalog.release.set()
    assert cache.metadata("slow", "1") is slow.result(TIMEOUT_SECONDS)
    assert catalog.reads == ["quick", "slow", "new", "quick"]


def test_concurrent_readers_of_a_task_share_one_read(catalog: _Catalog, pool: ThreadPoolExecutor) -> None:
    cache = VideoMetadataCache()
    pending = [pool.submit(cache.metadata, "slow", "1") for _ in range(6)]
    assert catalog.started.wait(TIMEOUT_SECONDS)
    catalog.release.set()
    assert len({id(result.result(TIMEOUT_SECONDS)) for result in pending}) == 1
    assert catalog.reads == ["slow"]


def test_errors_are_shared_but_not_cached(catalog: _Catalog, pool: ThreadPoolExecutor) -> None:
    cache, catalog.is_broken = VideoMetadataCache(), True
    pending = [pool.submit(cache.metadata, "slow", "1") for _ in range(3)]
    assert catalog.started.wait(TIMEOUT_SECONDS)
    catalog.release.set()
    assert {type(result.exception(TIMEOUT_SECONDS)) for result in pending} == {Unavailable}
    catalog.is_broken = False
    assert len(cache.metadata("slow", "1").ids) == 1


def test_readers_of_arrivals_do_not_wait_for_each_other(
    catalog: _Catalog, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    created_at = datetime(2026, 1, 1, tzinfo=UTC)

    def read(tasks: list[str]) -> dict[str, datetime]:
        for task in tasks:
            catalog.read(task)
        return {task: created_at for task in tasks if task != "unknown"}

    monkeypatch.setattr(video_metadata_cache, "read_arrivals", read)
    cache = VideoMetadataCache()
    slow = pool.submit(cache.arrivals, ["slow"])
    assert catalog.started.wait(TIMEOUT_SECONDS)
    assert pool.submit(cache.arrivals, ["quick", "unknown"]).result(TIMEOUT_SECONDS) == {"quick": created_at}
    assert pool.submit(cache.metadata, "new", "1").result(TIMEOUT_SECONDS)
    catalog.release.set()
    assert slow.result(TIMEOUT_SECONDS) == {"slow": created_at}
    assert cache.arrivals(["slow", "quick"]) == {"slow": created_at, "quick": created_at}
    assert catalog.reads == ["slow", "quick", "unknown", "new"]
