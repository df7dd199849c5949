"""docker/healthy.py, the health check of the containers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest


@pytest.fixture
def health_file(tmp_path: Path) -> Path:
    """Path of a worker's health file, not written yet."""
    return tmp_path / "health.json"


def status(*arguments: str, root: Path, **environment: str) -> int:
    """Exit status of the health check in a clean process."""
    command = [sys.executable, "-S", str(root / "docker" / "healthy.py"), *arguments]
    done = subprocess.run(command, env={**os.environ, **environment}, stderr=subprocess.DEVNULL, check=False)
    return done.returncode


def test_api_check_ignores_the_proxy_of_the_container(root: Path) -> None:
    class Ready(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/readyz" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    proxy = {"http_proxy": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9", "no_proxy": ""}
    with HTTPServer(("127.0.0.1", 0), Ready) as server:
        environment = proxy | {"CINESTRATA_PORT": str(server.server_port)}
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        assert status("api", root=root, **environment) == 0
        server.shutdown()
    thread.join()
    assert status("api", root=root, **environment) == 1


@pytest.mark.parametrize(
    ("content", "age_seconds", "expected", "expected_alive"),
    [
        ({"catalog": "ok", "broker": "ok"}, 5, 0, 0),
        ({"catalog": "connection refused", "broker": "ok"}, 5, 1, 0),
        ({"catalog": "ok", "broker": "ok"}, 3600, 1, 1),
        (None, 0, 1, 1),
    ],
    ids=["healthy", "catalog unreachable", "hanging worker", "no file"],
)
def test_worker_check_reads_the_health_file(
    root: Path,
    health_file: Path,
    content: dict[str, str] | None,
    age_seconds: float,
    expected: int,
    expected_alive: int,
) -> None:
    if content is not None:
        health_file.write_text(json.dumps(content))
        written = time.time() - age_seconds
        os.utime(health_file, (written, written))
    assert status("worker", str(health_file), root=root) == expected
    assert status("worker", str(health_file), "--alive", root=root) == expected_alive
