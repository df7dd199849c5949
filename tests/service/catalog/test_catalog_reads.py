"""The circuit breaker of catalog reads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from sqlalchemy.exc import DatabaseError

from service.catalog.database import CatalogReads
from service.core.errors import Unavailable

WAIT_SECONDS = 60


class _Database:
    """A database that can be unreachable, and that counts reads."""

    def __init__(self) -> None:
        self.is_reachable, self.reads = True, 0
        self.failures: list[Exception] = []  # of the next probes

    def read(self) -> int:
        self.reads += 1
        return self.ping()

    def ping(self) -> int:
        if self.failures:
            raise self.failures.pop()
        if not self.is_reachable:
            raise Unavailable("no route")
        return 7


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> _Database:
    database, module = _Database(), "service.catalog.database"
    engine = SimpleNamespace(dialect=SimpleNamespace(name="postgresql"))
    monkeypatch.setattr(f"{module}.ping", database.ping)
    monkeypatch.setattr(f"{module}.engine", lambda: engine)
    monkeypatch.setattr(f"{module}._PROBE_SECONDS", 0.01)
    return database


@pytest.fixture
def reads(database: _Database) -> Iterator[CatalogReads]:
    reads = CatalogReads()
    reads.timeout = 0.05
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
        other = CatalogReads()
        other.timeout = 0.05
        with pytest.raises(Unavailable, match="does not respond"):
            asyncio.run(other.read_async(lambda: never.wait(WAIT_SECONDS)))
        assert other.is_interrupted
        other.close()
    finally:
        never.set()


@pytest.mark.parametrize(
    "failure", [OSError(24, "Too many open files"), DatabaseError("SELECT 1", None, Exception("malformed"))]
)
def test_reads_resume_after_any_error_of_the_probe(
    failure: Exception, reads: CatalogReads, database: _Database
) -> None:
    def unreachable() -> None:
        raise Unavailable("no route")

    database.failures, reads.timeout = [failure, failure], WAIT_SECONDS
    with pytest.raises(Unavailable):
        reads.read(unreachable)
    for thread in threading.enumerate():
        if thread.name == "catalog-probe":
            thread.join(WAIT_SECONDS)
    assert (reads.is_interrupted, database.failures) == (False, [])
    assert reads.read(database.read) == 7


def test_reads_are_not_interrupted_without_a_thread_for_the_probe(
    reads: CatalogReads, database: _Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert reads.read(database.read) == 7  # its thread exists now
    database.failures = [Unavailable("no route")]

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(Unavailable):
            reads.read(database.read)
    assert reads.read(database.read) == 7


def test_other_errors_interrupt_nothing(reads: CatalogReads) -> None:
    def fail() -> None:
        raise ValueError("a fault of the caller")

    with pytest.raises(ValueError, match="caller"):
        reads.read(fail)
    assert not reads.is_interrupted
