"""Log lines in both formats, processes that write nothing but JSON lines, and memory arenas."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog

from service.catalog.migrations import upgrade
from service.core.process_setup import configure_logging
from service.core.settings import Settings
from service.core.tracing import use_request_id


@pytest.fixture
def own_logging() -> Any:
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    yield
    root.handlers[:], level = before
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.mark.usefixtures("own_logging")
def test_json_logs_are_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("json", "INFO")
    with use_request_id("req-1"):
        structlog.get_logger("product").info("shard_published", task="tsk_1")
        logging.getLogger("library").warning("from %s", "elsewhere")
    try:
        raise ValueError("broken")
    except ValueError:
        structlog.get_logger("product").exception("failed")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert (lines[0]["event"], lines[0]["task"], lines[0]["level"]) == ("shard_published", "tsk_1", "info")
    assert (lines[1]["event"], lines[1]["logger"]) == ("from elsewhere", "library")
    assert lines[2]["exception"][0]["exc_value"] == "broken"
    assert [line.get("request_id") for line in lines] == ["req-1", "req-1", None]


ROOT = Path(__file__).resolve().parents[3]
TIMEOUT_SECONDS = 120


def _events(text: str) -> list[dict[str, Any]]:
    """Parse every line; a line that is not a JSON object with an event and a level fails the test."""
    events = [json.loads(line) for line in text.splitlines()]
    assert all({"event", "level", "timestamp"} <= event.keys() for event in events)
    return events


def _start(log: Path, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
    path = f"{ROOT}{os.pathsep}{ROOT / 'clients' / 'python'}"
    environment = {**os.environ, "CINESTRATA_LOG_FORMAT": "json", "PYTHONPATH": path, **environment}
    command = [sys.executable, "-m", "cli.main", *arguments]
    with log.open("wb") as output:
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)


def _stop_after(process: subprocess.Popen[bytes], log: Path, text: str) -> list[dict[str, Any]]:
    """Stop a process once its log contains a text; returns its events."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    try:
        while text not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        process.wait(TIMEOUT_SECONDS)
    finally:
        process.kill()
        process.wait()
    return _events(log.read_text())


@pytest.mark.slow
def test_api_and_worker_write_json_lines_from_start_to_stop(
    tmp_path: Path, settings_factory: Callable[..., Settings], broker_url: str
) -> None:
    settings_factory(tmp_path, redis_url=broker_url)
    upgrade()
    logs = [tmp_path / "api.log", tmp_path / "worker.log"]
    api = _start(logs[0], "serve", "--port", "0", PYTHONWARNINGS="always")
    worker = _start(logs[1], "worker", "--queue", "cpu")
    worker_events = _stop_after(worker, logs[1], "ready.")
    api_events = _stop_after(api, logs[0], "Application startup complete")
    assert any("Uvicorn running" in event["event"] for event in api_events)
    assert any("shutdown" in event["event"] for event in worker_events)


def test_invalid_setting_is_one_json_line(tmp_path: Path) -> None:
    wrong = {"CINESTRATA_DATA_DIR": str(tmp_path), "CINESTRATA_METHOD": "magic"}
    process = _start(tmp_path / "log", "worker", "--queue", "cpu", **wrong)
    assert process.wait(TIMEOUT_SECONDS) == 1
    (event,) = _events((tmp_path / "log").read_text())
    assert event["event"] == "start_failed"
    assert "CINESTRATA_METHOD" in event["hint"]


def test_migration_names_a_database_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as closed:  # bound, not listening: connections are refused
        closed.bind(("127.0.0.1", 0))
        url = f"postgresql+psycopg://nobody@127.0.0.1:{closed.getsockname()[1]}/none"
        log = tmp_path / "log"
        process = _start(log, "migrate", CINESTRATA_DATA_DIR=str(tmp_path), CINESTRATA_DATABASE_URL=url)
        events = _stop_after(process, log, "waiting_for_database")
    assert "can't be reached" in events[-1]["reason"]


_COUNT_ARENAS = """
import ctypes, sys, threading
from pathlib import Path
from service.core.process_setup import share_memory_arenas

if "share" in sys.argv:
    share_memory_arenas()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.fopen.restype = ctypes.c_void_p
together = threading.Barrier(6)


def allocate():
    together.wait()
    assert libc.malloc(ctypes.c_size_t(1000))
    together.wait()


threads = [threading.Thread(target=allocate) for _ in range(6)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
file = ctypes.c_void_p(libc.fopen(sys.argv[1].encode(), b"w"))
assert libc.malloc_info(0, file) == 0
libc.fclose(file)
print(Path(sys.argv[1]).read_text().count("<heap nr="))
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="only glibc has arenas")
@pytest.mark.parametrize(
    ("arguments", "environment", "expected"),
    [
        ([], {}, range(3, 8)),
        (["share"], {}, range(2, 3)),
        (["share"], {"MALLOC_ARENA_MAX": "4"}, range(4, 5)),
    ],
    ids=["default", "shared", "set by the operator"],
)
def test_threads_share_two_arenas(
    tmp_path: Path, arguments: list[str], environment: dict[str, str], expected: range
) -> None:
    inherited = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"}
    done = subprocess.run(
        [sys.executable, "-c", _COUNT_ARENAS, str(tmp_path / "arenas.xml"), *arguments],
        env=inherited | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) in expected
