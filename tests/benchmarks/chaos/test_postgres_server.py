"""A PostgreSQL server that is killed, started again and stopped."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from benchmarks.chaos.postgres_server import PostgresServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PostgresServer]:
    server = PostgresServer.create(tmp_path / "postgres")
    if server is None:
        pytest.skip("PostgreSQL comes as a wheel only for some Pythons")
    yield server
    server.stop()


@pytest.mark.slow
def test_killed_server_keeps_its_data_and_is_stopped(server: PostgresServer) -> None:
    with psycopg.connect(server.url) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1 AS number")
    assert server.kill()
    while server.is_running():
        time.sleep(0.05)
    assert not server.kill()
    while not server.is_running():  # the first attempts fail while children of the killed process run
        server.start()
    with psycopg.connect(server.url) as connection:
        assert connection.execute("SELECT number FROM kept").fetchall() == [(1,)]
    server.connect().close()
    server.stop()
    assert not server.is_running()
    with pytest.raises(OSError, match=r"No such file|refused"):
        server.connect()
