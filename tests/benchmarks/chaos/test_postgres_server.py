"""A PostgreSQL server that is killed, started again and stopped."""

from __future__ import annotations

import time

import psycopg
import pytest

from benchmarks.chaos.postgres_server import PostgresServer


@pytest.mark.slow
def test_killed_server_keeps_its_data_and_is_stopped(killable_postgres: PostgresServer) -> None:
    with psycopg.connect(killable_postgres.url) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1 AS number")
    assert killable_postgres.kill()
    while killable_postgres.is_running():
        time.sleep(0.05)
    assert not killable_postgres.kill()
    while (
        not killable_postgres.is_running()
    ):  # the first attempts fail while children of the killed process run
        killable_postgres.start()
    with psycopg.connect(killable_postgres.url) as connection:
        assert connection.execute("SELECT number FROM kept").fetchall() == [(1,)]
    killable_postgres.connect().close()
    killable_postgres.stop()
    assert not killable_postgres.is_running()
    with pytest.raises(OSError, match=r"No such file|refused"):
        killable_postgres.connect()
