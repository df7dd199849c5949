"""A slow catalog: only who needs what is read from it just now waits for it."""

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

SECONDS = 20  # until a test gives up


class _Catalog:
    """Answers for task ``slow`` only once it is let go; says what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.begun, self.go, self.broken = threading.Event(), threading.Event(), False

    def read(self, task: str) -> VideoMetadata:
        self.asked.append(task)
        if task == "slow":
            self.begun.set()
            assert self.go.wait(SECONDS)
        if self.broken:
            raise Unavailable("no")
        return VideoMetadata([(len(self.asked), None, {})])


@pytest.fixture
def catalog(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Catalog]:
    made = _Catalog()
    monkeypatch.setattr(video_metadata_cache, "_read_facts", made.read)
    monkeypatch.setattr(video_metadata_cache, "_read_moments", lambda task: MomentSpans([]))
    yield made
    made.go.set()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as made:
        yield made


def test_who_needs_something_else_does_not_wait(catalog: _Catalog, pool: ThreadPoolExecutor) -> None:
    reader = VideoMetadataCache()
    kept = reader.facts("quick", "1")
    slow = pool.submit(reader.facts, "slow", "1")
    assert catalog.begun.wait(SECONDS)
    others: list[Callable[[], Any]] = [
        lambda: reader.facts("quick", "1"),
        lambda: reader.facts("new", "1"),
        lambda: reader.facts("quick", "2"),
        lambda: reader.moments("slow", "1"),
    ]
    answers = [pool.submit(other).result(SECONDS) for other in others]
    assert answers[0] is kept
    assert not slow.done()
    catalog.go.set()
    assert reader.facts("slow", "1") is slow.result(SECONDS)
    assert catalog.asked == ["quick", "slow", "new", "quick"]


def test_who_needs_the_same_reads_it_no_second_time(catalog: _Catalog, pool: ThreadPoolExecutor) -> None:
    reader = VideoMetadataCache()
    asking = [pool.submit(reader.facts, "slow", "1") for _ in range(6)]
    assert catalog.begun.wait(SECONDS)
    catalog.go.set()
    assert len({id(found.result(SECONDS)) for found in asking}) == 1
    assert catalog.asked == ["slow"]


def test_an_error_is_not_kept(catalog: _Catalog, pool: ThreadPoolExecutor) -> None:
    reader, catalog.broken = VideoMetadataCache(), True
    asking = [pool.submit(reader.facts, "slow", "1") for _ in range(3)]
    assert catalog.begun.wait(SECONDS)
    catalog.go.set()
    assert {type(found.exception(SECONDS)) for found in asking} == {Unavailable}
    catalog.broken = False
    assert len(reader.facts("slow", "1").ids) == 1


def test_arrivals_are_read_beside_each_other(
    catalog: _Catalog, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)

    def read(tasks: list[str]) -> dict[str, datetime]:
        for task in tasks:
            catalog.read(task)
        return {task: at for task in tasks if task != "unknown"}

    monkeypatch.setattr(video_metadata_cache, "_read_arrivals", read)
    reader = VideoMetadataCache()
    slow = pool.submit(reader.arrivals, ["slow"])
    assert catalog.begun.wait(SECONDS)
    assert pool.submit(reader.arrivals, ["quick", "unknown"]).result(SECONDS) == {"quick": at}
    assert pool.submit(reader.facts, "new", "1").result(SECONDS)
    catalog.go.set()
    assert slow.result(SECONDS) == {"slow": at}
    assert reader.arrivals(["slow", "quick"]) == {"slow": at, "quick": at}
    assert catalog.asked == ["slow", "quick", "unknown", "new"]
