"""Supervisor, child processes, the private broker, and the data folder's lock and schema, with real processes."""

from __future__ import annotations

import errno
import itertools
import logging
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import redis
import typer
import uvicorn
from sqlalchemy import text

from cli.embedded.data_folder import (
    BrokerMissing,
    FolderBusy,
    data_folder_settings,
    hold_data_folder,
    quarantine_store,
    read_lock_holder,
    redis_argv,
    socket_path,
    wait_until_up,
)
from cli.embedded.process_supervisor import ChildProcess, StartFailed, Supervisor
from cli.embedded.up_command import run_up
from service.catalog.database import dispose, engine, sqlite_path
from service.celery_worker import celery_app
from service.core.settings import Settings, settings
from tests.cli.invocation import run


def script(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def start(code: str) -> tuple[subprocess.Popen[str], str]:
    """Start a process that runs code, and return it with the first line that it prints."""
    process = subprocess.Popen(script(code), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline()


def until(condition: Callable[[], object], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rsplit(")", 1)[1].split()[0] != "Z"


def test_ended_process_is_restarted(tmp_path: Path) -> None:
    mark = tmp_path / "starts"
    code = (
        f"import pathlib, time\nmark = pathlib.Path({str(mark)!r})\n"
        "with mark.open('a') as file: file.write('x')\n"
        "time.sleep(0 if mark.stat().st_size < 2 else 60)"
    )
    outcome: list[str] = []
    supervisor = Supervisor(on_restart=outcome.append)
    supervisor.start(ChildProcess("part", script(code), tmp_path / "part.log"))
    try:
        assert supervisor.wait_until(lambda: mark.exists() and len(mark.read_text()) == 2, 20)
    finally:
        supervisor.stop()
    assert len(outcome) == 1
    assert "part ended with status 0" in outcome[0]


@pytest.fixture
def start_service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], list[ChildProcess]]]:
    """Returns the processes that a service on a data folder would start."""

    def start(data: Path) -> list[ChildProcess]:
        started: list[ChildProcess] = []
        monkeypatch.setenv("CINESTRATA_DATA_DIR", str(data))
        monkeypatch.setattr(Supervisor, "start", lambda self, *children: started.extend(children))
        monkeypatch.setattr(Supervisor, "wait_until", lambda self, *_: True)
        monkeypatch.setattr(Supervisor, "watch", lambda self: None)
        settings.cache_clear()
        run_up(None, None, 0)
        return started

    yield start
    dispose()
    settings.cache_clear()


@pytest.mark.slow
def test_process_that_never_starts_is_reported_with_its_log(tmp_path: Path) -> None:
    supervisor = Supervisor()
    supervisor.start(
        ChildProcess("part", script("raise SystemExit('no such weights')"), tmp_path / "part.log")
    )
    with pytest.raises(StartFailed, match="no such weights"):
        supervisor.wait_until(lambda: False, 30)
    supervisor.stop()


def test_processes_stop_in_order_and_are_killed_after_the_grace_period(tmp_path: Path) -> None:
    log = tmp_path / "order"
    polite = (
        "import signal, sys, time\n"
        f"signal.signal(signal.SIGTERM, lambda *_: (open({str(log)!r}, 'a').write(sys.argv[1] + ' '), sys.exit()))\n"
        "print('up', flush=True)\ntime.sleep(60)"
    )
    stubborn = (
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('up', flush=True)\ntime.sleep(60)"
    )
    children = [
        ChildProcess("last", [*script(polite), "last"], tmp_path / "last.log", stop_order=2),
        ChildProcess("first", [*script(polite), "first"], tmp_path / "first.log", stop_order=0),
        ChildProcess(
            "stubborn", script(stubborn), tmp_path / "stubborn.log", stop_order=1, grace_seconds=0.3
        ),
    ]
    supervisor = Supervisor()
    supervisor.start(*children)
    until(lambda: all("up" in child.log_tail() for child in children))
    supervisor.stop()
    assert log.read_text().split() == ["first", "last"]
    assert [child.exit_status for child in children] == [0, 0, -signal.SIGKILL]


def test_stop_ends_grandchildren(tmp_path: Path) -> None:
    code = "import subprocess, sys; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); p.wait()"
    child = ChildProcess("part", script(code), tmp_path / "part.log")
    supervisor = Supervisor()
    supervisor.start(child)
    until(lambda: child.log_tail().strip().isdigit())
    grandchild = int(child.log_tail())
    assert alive(grandchild)
    supervisor.stop()
    until(lambda: not alive(grandchild))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills children with their parent")
def test_killed_supervisor_leaves_no_process(tmp_path: Path) -> None:
    code = (
        "import pathlib, time\nfrom cli.embedded.process_supervisor import ChildProcess\n"
        f"child = ChildProcess('part', ['sleep', '60'], pathlib.Path({str(tmp_path / 'part.log')!r}))\n"
        "child.start()\nprint(child.process.pid, flush=True)\ntime.sleep(60)"
    )
    parent, line = start(code)
    orphan = int(line)
    assert alive(orphan)
    parent.kill()
    parent.wait()
    until(lambda: not alive(orphan))


def test_lock_of_a_held_folder_names_the_holder(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert read_lock_holder(run) is None
    with hold_data_folder(run, tmp_path) as lock:
        lock.write_record(url="http://127.0.0.1:1234")
        with (
            pytest.raises(FolderBusy, match=rf"process {os.getpid()} at http://127.0.0.1:1234"),
            hold_data_folder(run, tmp_path),
        ):
            pass
        assert read_lock_holder(run) == {"pid": os.getpid(), "url": "http://127.0.0.1:1234"}
    assert read_lock_holder(run) is None
    with hold_data_folder(run, tmp_path):
        pass


@pytest.fixture
def lax_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("lax_umask")
def test_lock_record_is_readable_only_by_its_owner(tmp_path: Path) -> None:
    """The broker's address in the record may contain a password."""
    path = tmp_path / "run" / "up.lock"
    with hold_data_folder(path.parent, tmp_path) as lock:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        lock.write_record(redis_url="redis://:secret@broker:6379/0")
        assert read_lock_holder(path.parent) == {
            "pid": os.getpid(),
            "redis_url": "redis://:secret@broker:6379/0",
        }


def test_unreadable_lock_record_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    opened = os.open

    def of_another_user(path: str, *how: int) -> int:
        if str(path).endswith("up.lock"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(path, *how)

    monkeypatch.setattr(os, "open", of_another_user)
    monkeypatch.setenv("CINESTRATA_DATA_DIR", str(tmp_path))
    monkeypatch.delenv("CINESTRATA_REDIS_URL", raising=False)
    for operation in (
        lambda: read_lock_holder(tmp_path / "run"),
        lambda: data_folder_settings(tmp_path),
        lambda: _hold(tmp_path),
    ):
        with pytest.raises(typer.Exit):
            operation()
        output = capsys.readouterr().err
        assert "up.lock belongs to another user" in output
        assert "--url" in output
    monkeypatch.setenv("CINESTRATA_REDIS_URL", "redis://broker:6379/0")
    assert data_folder_settings(tmp_path).redis_url == "redis://broker:6379/0", (
        "with a configured broker, the record is not needed"
    )


def _hold(folder: Path) -> None:
    with hold_data_folder(folder / "run", folder):
        pass


def test_lock_is_released_when_its_holder_dies(tmp_path: Path) -> None:
    code = (
        "import pathlib, time\nfrom cli.embedded.data_folder import hold_data_folder\n"
        f"with hold_data_folder(pathlib.Path({str(tmp_path / 'run')!r}), pathlib.Path({str(tmp_path)!r})):\n"
        "    print('held', flush=True)\n    time.sleep(60)"
    )
    holder, line = start(code)
    assert line == "held\n"
    with pytest.raises(FolderBusy), hold_data_folder(tmp_path / "run", tmp_path):
        pass
    holder.kill()
    holder.wait()
    with hold_data_folder(tmp_path / "run", tmp_path):
        pass


@pytest.fixture
def orphan(tmp_path: Path) -> Iterator[int]:
    """A process that inherited a folder's lock from a killed holder."""
    code = (
        "import pathlib, subprocess, time\nfrom cli.embedded.data_folder import hold_data_folder\n"
        f"with hold_data_folder(pathlib.Path({str(tmp_path / 'run')!r}), pathlib.Path({str(tmp_path)!r})) as lock:\n"
        "    child = subprocess.Popen(['sleep', '60'], pass_fds=(lock.descriptor,), stdout=subprocess.DEVNULL)\n"
        "    lock.write_record(url='http://127.0.0.1:9', redis_url='redis://127.0.0.1:9')\n"
        "    print(child.pid, flush=True)\n    time.sleep(60)"
    )
    holder, line = start(code)
    pid = int(line)
    holder.kill()
    holder.wait()
    yield pid
    if alive(pid):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def ending_orphan(orphan: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """The orphan, which ends when a process first waits for the lock."""

    def end_orphan(_seconds: float) -> None:
        if alive(orphan):
            os.kill(orphan, signal.SIGKILL)
            until(lambda: not alive(orphan))

    clock = SimpleNamespace(monotonic=time.monotonic, sleep=end_orphan)
    monkeypatch.setattr("cli.embedded.data_folder.time", clock)
    return orphan


def test_lock_waits_for_the_processes_of_a_killed_holder(tmp_path: Path, ending_orphan: int) -> None:
    with hold_data_folder(tmp_path / "run", tmp_path):
        assert not alive(ending_orphan)


def test_service_after_a_killed_one_has_a_broker_of_its_own(
    tmp_path: Path,
    ending_orphan: int,
    monkeypatch: pytest.MonkeyPatch,
    start_service: Callable[[Path], list[ChildProcess]],
) -> None:
    monkeypatch.delenv("CINESTRATA_REDIS_URL", raising=False)
    monkeypatch.setattr("cli.embedded.data_folder.wait_until_up", lambda *_: True)
    started = {child.name: child for child in start_service(tmp_path)}
    assert "redis" in started
    assert started["worker-gpu"].env["CINESTRATA_REDIS_URL"].startswith("redis+socket://")


def test_processes_of_a_killed_holder_that_stay_are_named(
    tmp_path: Path, orphan: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(monotonic=itertools.count(step=5.0).__next__, sleep=lambda _seconds: None)
    monkeypatch.setattr("cli.embedded.data_folder.time", clock)
    with (
        pytest.raises(FolderBusy, match=r"^Process \d+ was killed, but .* are still running\.$"),
        hold_data_folder(tmp_path / "run", tmp_path),
    ):
        pass


def test_new_data_folder_is_closed_to_other_users(tmp_path: Path) -> None:
    new, existing = tmp_path / "above" / "new", tmp_path / "existing"
    existing.mkdir(mode=0o750)
    for data in (new, existing):
        with hold_data_folder(data / "run", data):
            pass
    assert [stat.S_IMODE(data.stat().st_mode) for data in (new, existing)] == [0o700, 0o750]


@contextmanager
def broker(run: Path) -> Iterator[redis.Redis]:
    path = socket_path(run)
    process = subprocess.Popen(redis_argv(run, path), stdout=subprocess.DEVNULL)
    try:
        assert wait_until_up(path, 10)
        yield redis.Redis(unix_socket_path=str(path), decode_responses=True)
    finally:
        process.terminate()
        process.wait(10)


def test_broker_listens_only_on_a_private_socket_without_eviction(tmp_path: Path) -> None:
    with broker(tmp_path) as client:
        settings = client.config_get("*")
        assert settings["port"] == "0"
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
    quarantine = quarantine_store(tmp_path)
    assert (quarantine / "appendonly.aof").exists()
    with broker(tmp_path) as client:
        assert client.llen("cpu") == 0


def test_missing_server_is_reported_with_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.embedded.data_folder.os.access", lambda *_: False)
    monkeypatch.setattr("cli.embedded.data_folder.shutil.which", lambda _: None)
    with pytest.raises(BrokerMissing, match="CINESTRATA_REDIS_URL"):
        redis_argv(tmp_path, tmp_path / "redis.sock")


NAMES = (
    *("What now?", "Clips #1", "my%20clips", "100%", "50%2F50", "me@home", "C:clips", "a+b&c=d", "x;y,z~"),
    *("[2024] Clips", "Vide\u0301os", "動画", "🎬 clips", "Anna's", 'say "hi"', "back\\slash", " a b "),
    "$HOME `x` {y}",
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


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str]]:
    """The processes that would run."""
    monkeypatch.setenv("CINESTRATA_DATA_DIR", str(tmp_path))
    # A started process changes these for its whole life.
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    monkeypatch.setenv("MALLOC_ARENA_MAX", "2")
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    started: list[str] = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda *_, **__: started.append("serve"))
    monkeypatch.setattr(celery_app, "worker_main", lambda *_: started.append("worker"))
    settings.cache_clear()
    yield started
    dispose()
    settings.cache_clear()


@pytest.mark.parametrize("command", [("serve",), ("worker", "--queue", "cpu")])
def test_process_starts_only_with_its_own_schema(starts: list[str], command: tuple[str, ...]) -> None:
    result = run(*command)
    assert (result.exit_code, starts) == (1, [])
    assert "Run: cinestrata migrate" in result.output
    assert run("migrate").exit_code == 0
    assert run(*command).exit_code == 0
    assert starts == [command[0]]
    with engine().begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = 'next'"))
    result = run(*command)
    assert (result.exit_code, starts) == (1, [command[0]])
    assert "A newer version of Cinestrata has upgraded the catalog: its schema is next" in " ".join(
        result.output.split()
    )


@pytest.mark.parametrize("command", [("serve",), ("worker", "--queue", "cpu")])
def test_process_waits_for_a_database_that_does_not_answer(
    starts: list[str], command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CINESTRATA_DATABASE_URL", "postgresql+psycopg://nobody@127.0.0.1:1/none")
    assert run(*command).exit_code == 0
    assert starts == [command[0]]
