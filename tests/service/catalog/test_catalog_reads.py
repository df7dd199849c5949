"""The circuit breaker of catalog reads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from service.catalog import catalog_reads
from service.catalog.catalog_reads import CatalogReads
from service.core.errors import Unavailable

WAIT_SECONDS = 60


class _Database:
    """A database that can be unreachable, and that counts reads."""

    def __init__(self) -> None:
        self.is_reachable, self.reads = True, 0

    def read(self) -> int:
        self.reads += 1
        return self.ping()

    def ping(self) -> int:
        if not self.is_reachable:
            raise Unavailable("no route")
        return 7


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> _Database:
    database = _Database()
    monkeypatch.setattr(catalog_reads, "ping", database.ping)
    monkeypatch.setattr(
        catalog_reads, "engine", lambda: SimpleNamespace(dialect=SimpleNamespace(name="postgresql"))
    )
    monkeypatch.setattr(catalog_reads, "_PROBE_SECONDS", 0.01)
    return database


@pytest.fixture
def reads(database: _Database) -> Iterator[CatalogReads]:
    reads = CatalogReads(timeout=0.05)
    yield reads
    reads.close()


def test_reads_fail_at_once_until_the_database_is_reached_again(
    reads: CatalogReads, database: _Database
) -> None:
    assert CatalogReads().read(database.read) == 7
    database.is_reachable, database.reads = False, 0
    for _ in range(5):
        with pytest.raises(Unavailable):
            reads.read(database.read)
        with pytest.raises(Unavailable):
            asyncio.run(reads.read_async(database.read))
    assert (database.reads, reads.is_interrupted) == (1, True)
    database.is_reachable = True
    pause = threading.Event()
    while reads.is_interrupted:
        pause.wait(0.005)
    patient = CatalogReads()
    assert patient.read(database.read) == asyncio.run(patient.read_async(database.read)) == 7


def test_read_that_does_not_return_is_given_up(reads: CatalogReads, database: _Database) -> None:
    database.is_reachable = False  # only for the probe, so that the reads stay interrupted
    never = threading.Event()
    try:
        with pytest.raises(Unavailable, match="does not respond"):
            reads.read(lambda: never.wait(WAIT_SECONDS))
        assert reads.is_interrupted
        other = CatalogReads(timeout=0.05)
        with pytest.raises(Unavailable, match="does not respond"):
            asyncio.run(other.read_async(lambda: never.wait(WAIT_SECONDS)))
        assert other.is_interrupted
        other.close()
    finally:
        never.set()


def test_other_errors_interrupt_nothing(reads: CatalogReads) -> None:
    def fail() -> None:
        raise ValueError("a fault of the caller")

    with pytest.raises(ValueError, match="caller"):
        reads.read(fail)
    assert not reads.is_interrupted
