"""The migration waits for a database that starts later."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Connection, event, make_url, text

from service.catalog import migrations
from service.catalog.database import dispose, engine, ping, session_scope
from service.core.errors import Unavailable
from service.core.settings import Settings


def _forward(listener: socket.socket, target: Path) -> None:
    """Connect every client of ``listener`` to a database server's Unix socket."""

    def copy(source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
        except OSError:
            pass
        finally:
            sink.close()

    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        server = socket.socket(socket.AF_UNIX)
        server.connect(str(target))
        for pair in ((client, server), (server, client)):
            threading.Thread(target=copy, args=pair, daemon=True).start()


def test_migration_waits_until_the_port_opens(
    tmp_path: Path,
    settings_factory: Callable[..., Settings],
    fresh_postgres_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = Path(str(make_url(fresh_postgres_url).query["host"]))
    (target,) = [path for path in folder.glob(".s.PGSQL.*") if not path.name.endswith(".lock")]
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        url = make_url(fresh_postgres_url).set(query={}, host="127.0.0.1", port=listener.getsockname()[1])
        configured = settings_factory(
            tmp_path, database_url=url.render_as_string(hide_password=False), upgraded=False
        )
        attempts: list[float] = []

        def sleep(seconds: float) -> None:
            attempts.append(seconds)
            if len(attempts) == 2:
                listener.listen()
                threading.Thread(target=_forward, args=(listener, target), daemon=True).start()

        monkeypatch.setattr(migrations.time, "sleep", sleep)
        migrations.upgrade_when_reachable(configured)
        ping()
        dispose()
    assert len(attempts) == 2


def test_migration_gives_up_after_a_bounded_time(
    tmp_path: Path, settings_factory: Callable[..., Settings]
) -> None:
    url = "postgresql://nobody@127.0.0.1:1/none"
    configured = settings_factory(tmp_path, database_url=url, upgraded=False)
    with pytest.raises(Unavailable, match=r"can't be reached .*CINESTRATA_DATABASE_URL. Gave up after 0.5 s"):
        migrations.upgrade_when_reachable(configured, wait_seconds=0.5)


def test_migration_waits_for_that_of_another_process_without_a_limit(
    tmp_path: Path, settings_factory: Callable[..., Settings], fresh_postgres_url: str
) -> None:
    settings_factory(tmp_path, database_url=fresh_postgres_url, upgraded=False)
    limits: list[str] = []

    def read_limit(connection: Connection, _cursor: object, statement: str, *_: object) -> None:
        if "pg_advisory_xact_lock" in statement:
            limits.append(connection.exec_driver_sql("SHOW lock_timeout").scalar_one())

    event.listen(engine(), "before_cursor_execute", read_limit)
    migrations.upgrade()
    assert limits == ["0"]
    with session_scope() as session:
        assert session.scalar(text("SHOW lock_timeout")) == "30s"
