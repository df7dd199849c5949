"""The private broker: only a socket, nothing evicted, nothing lost in a restart."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from cli.embedded.data_folder import (
    BrokerMissing,
    quarantine_store,
    redis_argv,
    socket_path,
    wait_until_up,
)
from service.catalog.database import sqlite_path
from service.core.settings import Settings


@contextmanager
def broker(run: Path) -> Iterator[redis.Redis]:
    path = socket_path(run)
    process = subprocess.Popen(redis_argv(run, path), stdout=subprocess.DEVNULL)
    try:
        assert wait_until_up(path, 10)
        yield redis.Redis(unix_socket_path=str(path))
    finally:
        process.terminate()
        process.wait(10)


def test_broker_listens_only_on_a_private_socket_without_eviction(tmp_path: Path) -> None:
    with broker(tmp_path) as client:
        assert client.config_get("port") == {"port": "0"} or client.config_get("port") == {b"port": b"0"}
        settings = {_text(k): _text(v) for k, v in client.config_get("*").items()}
        assert settings["maxmemory-policy"] == "noeviction"
        assert settings["appendonly"] == "yes"
        assert socket_path(tmp_path).stat().st_mode & 0o077 == 0


def test_long_path_uses_a_temporary_socket_folder(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60) / "run"
    deep.mkdir(parents=True)
    path = socket_path(deep)
    assert len(os.fsencode(path)) < 104
    assert path.parent.stat().st_mode & 0o077 == 0
    assert path == socket_path(deep)
    with broker(deep) as client:
        assert client.ping()
    path.parent.rmdir()


def test_socket_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    deep = tmp_path / ("d" * 110)
    socket_path(deep).parent.chmod(0o777)
    with pytest.raises(BrokerMissing, match="belongs to another user"):
        socket_path(deep)


def test_unreadable_message_store_is_quarantined(tmp_path: Path) -> None:
    with broker(tmp_path) as client:
        client.lpush("cpu", "tsk_1")
    (tmp_path / "redis" / "appendonly.aof").write_bytes(b"*not what redis writes\r\n")
    process = subprocess.Popen(redis_argv(tmp_path, socket_path(tmp_path)), stdout=subprocess.DEVNULL)
    assert process.wait(10) != 0
    kept = quarantine_store(tmp_path)
    assert (kept / "appendonly.aof").exists()
    with broker(tmp_path) as client:
        assert client.llen("cpu") == 0


def test_missing_server_is_reported_with_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.embedded.data_folder.os.access", lambda *_: False)
    monkeypatch.setattr("cli.embedded.data_folder.shutil.which", lambda _: None)
    with pytest.raises(BrokerMissing, match="CINESTRATA_REDIS_URL"):
        redis_argv(tmp_path, tmp_path / "redis.sock")


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


NAMES = (
    *("What now?", "Clips #1", "my%20clips", "100%", "50%2F50", "me@home", "C:clips", "a+b&c=d", "x;y,z~"),
    *(
        "[2024] Clips",
        "Vide\u0301os",
        "動画",
        "🎬 clips",
        "Anna's",
        'say "hi"',
        "back\\slash",
        " a b ",
        "$HOME `x` {y}",
    ),
)


@pytest.mark.parametrize("name", NAMES)
def test_catalog_and_socket_are_in_a_folder_of_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("CINESTRATA_DATA_DIR", str(tmp_path / name / "lib"))
    settings = Settings()
    assert sqlite_path(settings.database_url) == tmp_path / name / "lib" / "catalog.sqlite3"
    socket = tmp_path / name / "lib" / "run" / "redis.sock"
    assert redis.connection.parse_url(settings.redis_client_url)["path"] == str(socket)
