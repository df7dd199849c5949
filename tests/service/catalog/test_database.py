"""The catalog's database: schema, IDs that are never reused, transactions, and the circuit breaker of its reads."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import delete, select, text, update
from sqlalchemy.exc import DatabaseError

from benchmarks.chaos.faulty_resources import DataVolume, PostgresServer
from cinestrata_schemas.tasks import TaskDetails
from service.catalog import database
from service.catalog.database import (
    CatalogReads,
    dispose,
    engine,
    now,
    open_engine,
    ping,
    session_scope,
    sqlite_path,
)
from service.catalog.migrations import upgrade
from service.catalog.tables import PositionCounter, Task, Video
from service.core.errors import Unavailable
from service.core.settings import Settings
from service.tasks.lifecycle.state_machine import lock_positions


def test_processes_that_start_together_create_one_schema(
    tmp_path: Path, settings_factory: Callable[..., Settings]
) -> None:
    settings_factory(tmp_path, upgraded=False)
    with ThreadPoolExecutor(4) as threads:
        for started in [threads.submit(upgrade) for _ in range(4)]:
            started.result()
    with session_scope() as session:
        assert session.scalars(select(PositionCounter.last_position)).all() == [0]


def test_processes_can_open_a_new_file_at_the_same_time(tmp_path: Path) -> None:
    """SQLite occasionally refuses one of the connections, regardless of its timeout."""
    together = threading.Barrier(4)

    def connect(url: str) -> None:
        engine = database.open_engine(url)  # as each process has one
        together.wait()
        try:
            engine.connect().close()
        finally:
            engine.dispose()

    with ThreadPoolExecutor(4) as threads:
        for number in range(60):
            url = f"sqlite:///{tmp_path / str(number)}.sqlite3"
            for opened in [threads.submit(connect, url) for _ in range(4)]:
                opened.result()


def test_vector_ids_are_never_reused(catalog: Settings, post: Callable[..., TaskDetails]) -> None:
    view = post(videos=3)
    with session_scope(write=True) as session:
        last = session.scalars(select(Video.vector_id).order_by(Video.vector_id.desc()).limit(1)).one()
        session.delete(session.get_one(Video, last))
    with session_scope(write=True) as session:
        session.add(Video(id="again", task_id=view.id, uri="x", captions=[], extra={}, status="pending"))
    with session_scope() as session:
        assert session.scalars(select(Video.vector_id).where(Video.id == "again")).one() > last


def test_failed_transaction_is_rolled_back(catalog: Settings) -> None:
    def fail_halfway() -> None:
        with session_scope(write=True) as session:
            session.get_one(PositionCounter, 1).last_position = 99
            session.flush()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_halfway()
    with session_scope() as session:
        assert session.get_one(PositionCounter, 1).last_position == 0


def test_concurrent_writers_lose_no_updates(catalog: Settings) -> None:
    def count() -> None:
        for _ in range(10):
            with session_scope(write=True) as session:
                line = session.scalars(select(PositionCounter).with_for_update()).one()
                line.last_position += 1

    with ThreadPoolExecutor(4) as threads:
        for counted in [threads.submit(count) for _ in range(4)]:
            counted.result()
    with session_scope() as session:
        assert session.get_one(PositionCounter, 1).last_position == 40


def test_deleted_rows_are_erased_from_the_file(
    sqlite_catalog: Settings, post: Callable[..., TaskDetails]
) -> None:
    task, secret = post("birds", 2), "a heron by the weir"
    with session_scope(write=True) as session:
        session.execute(update(Video).where(Video.task_id == task.id).values(captions=[secret]))
    file = sqlite_path(sqlite_catalog.database_url)
    assert file is not None
    dispose()  # the last connection writes the log into the file
    assert secret.encode() in file.read_bytes()
    with session_scope(write=True) as session:
        session.execute(delete(Video).where(Video.task_id == task.id))
    dispose()
    assert secret.encode() not in file.read_bytes()


def test_full_disk_raises_unavailable_and_stores_nothing(
    catalog: Settings, post: Callable[..., TaskDetails]
) -> None:
    task = post("birds", 1)

    def fill() -> None:
        with session_scope(write=True) as session:
            session.execute(update(Task).values(name="cars"))
            if session.get_bind().dialect.name == "sqlite":
                # The current number of pages, so that no page can be added.
                session.execute(text("PRAGMA max_page_count = 1"))
                session.execute(update(Video).values(captions=["long " * 100_000]))
            else:
                session.execute(text("DO $$ BEGIN RAISE SQLSTATE '53100'; END $$"))

    with pytest.raises(Unavailable, match="catalog database's disk is full; nothing was stored") as caught:
        fill()
    assert type(caught.value) is Unavailable  # the commit is not in doubt
    dispose()
    with session_scope() as session:
        assert session.scalars(select(Task.name)).all() == [task.name]


def change() -> None:
    with session_scope(write=True) as session:
        session.execute(update(PositionCounter).values(last_position=7))


def test_connections_that_cannot_write_are_replaced(
    tmp_path: Path, settings_factory: Callable[..., Settings]
) -> None:
    """A connection of the pool refuses a change, as after an error of the disk."""
    settings_factory(tmp_path)
    with engine().connect() as connection:  # returns to the pool
        connection.exec_driver_sql("PRAGMA query_only = ON")
    with pytest.raises(Unavailable):
        change()
    change()
    with session_scope() as session:
        assert session.scalars(select(PositionCounter.last_position)).all() == [7]


@contextmanager
def read_only_volume(
    folder: Path, settings_factory: Callable[..., Settings], **options: Any
) -> Iterator[ExitStack]:
    """The catalog on a read-only volume, while another process has it open. Closing the stack permits changes again."""
    volume = DataVolume(folder / "volume")
    try:
        if os.geteuid() == 0 and not volume.is_limited:
            pytest.skip("A superuser without the right to mount cannot make a folder read-only.")
        configured = settings_factory(volume.path, **options)
        ping()  # creates the write-ahead log
        dispose()
        with another_process(sqlite_path(configured.database_url)), ExitStack() as stack:
            stack.enter_context(volume.read_only())
            yield stack
            dispose()
    finally:
        volume.close()


@contextmanager
def another_process(file: Path | None) -> Iterator[None]:
    """Keep the file open in another process, which keeps its write-ahead log."""
    read = "c = sqlite3.connect(sys.argv[1]); c.execute('SELECT * FROM sqlite_master')"
    script = f"import sqlite3, sys; {read}; print(); input()"
    command = [sys.executable, "-u", "-c", script, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield
        process.communicate("\n")


def test_read_only_catalog_is_read_and_changes_succeed_once_it_is_writable_again(
    tmp_path: Path, settings_factory: Callable[..., Settings]
) -> None:
    """SQLite opens a file that cannot be written for reading only; a refused change closes these connections."""
    errors = []  # with the frames and cursors that their tracebacks refer to
    with read_only_volume(tmp_path, settings_factory) as volume:
        upgrade()
        ping()
        for _ in range(3):
            with pytest.raises(Unavailable, match=r"catalog\.sqlite3 cannot be written; nothing") as caught:
                change()
            errors.append(caught.value)
            with engine().connect() as one, engine().connect() as other:  # both return to the pool
                for connection in (one, other):
                    connection.execute(select(PositionCounter))
        volume.close()
        with pytest.raises(Unavailable):
            change()
        change()
        with session_scope() as session:
            assert session.scalars(select(PositionCounter.last_position)).all() == [7]


def test_read_only_catalog_of_another_version_is_not_upgraded(
    tmp_path: Path, settings_factory: Callable[..., Settings]
) -> None:
    catalog = read_only_volume(tmp_path, settings_factory, upgraded=False)
    with catalog, pytest.raises(Unavailable, match="readonly database"):
        upgrade()


def test_times_are_read_with_a_time_zone(catalog: Settings, post: Callable[..., TaskDetails]) -> None:
    with session_scope() as session:
        assert now(session).utcoffset() is not None
    assert post().created_at.utcoffset() is not None


def test_unreachable_database_raises_unavailable(
    tmp_path: Path, settings_factory: Callable[..., Settings]
) -> None:
    settings_factory(tmp_path, database_url="postgresql://nobody@127.0.0.1:1/none", upgraded=False)
    with pytest.raises(Unavailable) as caught, session_scope() as session:
        session.execute(select(1))
    assert caught.value.headers["Retry-After"]
    with pytest.raises(Unavailable, match="CINESTRATA_DATABASE_URL"):
        upgrade()


def test_connections_to_postgresql_notice_a_network_that_drops_packets(postgres_url: str) -> None:
    for url, timeout in ((postgres_url, "5"), (f"{postgres_url}&connect_timeout=3", "3")):
        opened = open_engine(url)
        with opened.connect() as connection:
            options = connection.connection.driver_connection.info.get_parameters()  # type: ignore[union-attr]
        opened.dispose()
        assert options["connect_timeout"] == timeout
        assert options["tcp_user_timeout"] == "10000"
        assert options["keepalives_idle"] == "10"


def test_server_frees_the_locks_of_lost_hosts(killable_postgres: PostgresServer) -> None:
    """Settings of TCP do not apply to connections through Unix sockets, so the server listens to TCP here."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    killable_postgres.stop()
    killable_postgres.start(port)
    base = f"postgresql+psycopg://postgres@127.0.0.1:{port}/postgres"
    for url, idle, lock in (
        (base, "10", "30s"),
        (f"{base}?options=-c tcp_keepalives_idle=60 -c lock_timeout=70s", "60", "70s"),
    ):
        opened = open_engine(url)
        with opened.connect() as connection:
            connection.rollback()  # does not take the settings back
            names = ("tcp_keepalives_idle", "lock_timeout", "tcp_keepalives_count", "tcp_user_timeout")
            shown = [connection.execute(text(f"SHOW {name}")).scalar() for name in names]
        opened.dispose()
        assert shown == [idle, lock, "3", "20000"]


def test_writer_does_not_wait_for_a_lock_without_a_limit(
    tmp_path: Path, settings_factory: Callable[..., Settings], fresh_postgres_url: str
) -> None:
    settings_factory(tmp_path, database_url=f"{fresh_postgres_url}&options=-c lock_timeout=100ms")
    with session_scope(write=True) as holder:
        lock_positions(holder)
        with pytest.raises(Unavailable) as caught, session_scope(write=True) as session:
            lock_positions(session)
        assert caught.value.headers["Retry-After"]
        assert type(caught.value) is Unavailable
    with session_scope(write=True) as session:
        assert lock_positions(session).last_position == 0


WAIT_SECONDS = 60


class _Database:
    """A server that can be unreachable, and that counts reads."""

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
def server(monkeypatch: pytest.MonkeyPatch) -> _Database:
    server, module = _Database(), "service.catalog.database"
    engine = SimpleNamespace(dialect=SimpleNamespace(name="postgresql"))
    monkeypatch.setattr(f"{module}.ping", server.ping)
    monkeypatch.setattr(f"{module}.engine", lambda: engine)
    monkeypatch.setattr(f"{module}._PROBE_SECONDS", 0.01)
    return server


@pytest.fixture
def reads(server: _Database) -> Iterator[CatalogReads]:
    reads = CatalogReads()
    reads.timeout = 0.05
    yield reads
    reads.close()


def test_reads_fail_at_once_until_the_database_is_reached_again(
    reads: CatalogReads, server: _Database
) -> None:
    assert CatalogReads().read(server.read) == 7
    server.is_reachable, server.reads = False, 0
    for _ in range(5):
        with pytest.raises(Unavailable):
            reads.read(server.read)
        with pytest.raises(Unavailable):
            asyncio.run(reads.read_async(server.read))
    assert (server.reads, reads.is_interrupted) == (1, True)
    server.is_reachable = True
    pause = threading.Event()
    while reads.is_interrupted:
        pause.wait(0.005)
    patient = CatalogReads()
    assert patient.read(server.read) == asyncio.run(patient.read_async(server.read)) == 7


def test_read_that_does_not_return_is_given_up(reads: CatalogReads, server: _Database) -> None:
    server.is_reachable = False  # only for the probe, so that the reads stay interrupted
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
    failure: Exception, reads: CatalogReads, server: _Database
) -> None:
    def unreachable() -> None:
        raise Unavailable("no route")

    server.failures, reads.timeout = [failure, failure], WAIT_SECONDS
    with pytest.raises(Unavailable):
        reads.read(unreachable)
    for thread in threading.enumerate():
        if thread.name == "catalog-probe":
            thread.join(WAIT_SECONDS)
    assert (reads.is_interrupted, server.failures) == (False, [])
    assert reads.read(server.read) == 7


def test_reads_are_not_interrupted_without_a_thread_for_the_probe(
    reads: CatalogReads, server: _Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert reads.read(server.read) == 7  # its thread exists now
    server.failures = [Unavailable("no route")]

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(Unavailable):
            reads.read(server.read)
    assert reads.read(server.read) == 7


def test_other_errors_interrupt_nothing(reads: CatalogReads) -> None:
    def fail() -> None:
        raise ValueError("a fault of the caller")

    with pytest.raises(ValueError, match="caller"):
        reads.read(fail)
    assert not reads.is_interrupted
