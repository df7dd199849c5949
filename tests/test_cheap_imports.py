"""Settings, health checks, compiled towers and commands over HTTP import neither torch nor faiss nor transformers."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXPENSIVE = ("torch", "faiss", "transformers")
# `--help` needs none of these either, nor does any completion of the shell.
EXPENSIVE_FOR_HELP = (*EXPENSIVE, "celery", "fastapi", "numpy", "sqlalchemy")


def _expensive_imports(code: str, expensive: tuple[str, ...] = EXPENSIVE) -> str:
    """Return the names of expensive modules that a fresh interpreter has imported after running ``code``."""
    report = f"import sys; sys.stderr.write(' '.join(m for m in {expensive} if m in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.fixture
def empty_service() -> Iterator[str]:
    """URL of an HTTP server whose every response is an empty JSON list."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(b"[]")

        def log_message(self, *_: object) -> None:
            """Write nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    "module",
    [
        "service.core.settings",
        "models.backbones.engine.bert_engine",
        "models.backbones.engine.efficientnet_engine",
        "service.core.logging",
        "cinestrata_schemas.library",
        "service.catalog.database",
        "service.catalog.migrations",
        "service.tasks.broker",
        "cli.main",
        "cli.service_client",
        "cli.commands.ingest_command",
        "cli.commands.search_commands",
        "cli.commands.deletion_commands",
    ],
)
def test_module_imports_are_cheap(module: str) -> None:
    assert _expensive_imports(f"import {module}; {module}") == ""


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["tasks", "--help"], ["search", "--help"], ["up", "--help"], ["bench", "--help"]],
)
def test_help_is_cheap(arguments: list[str]) -> None:
    code = f"from cli.main import app\ntry:\n    app({arguments!r})\nexcept SystemExit:\n    pass"
    assert _expensive_imports(code, EXPENSIVE_FOR_HELP) == ""


@pytest.mark.parametrize("module", ["api.app", "cli.main"])
def test_libraries_of_rare_requests_are_not_imported_before_these(module: str) -> None:
    # Agents, drawn videos, and sign-in at an OpenID provider.
    assert _expensive_imports(f"import {module}", ("mcp", "av", "PIL", "authlib")) == ""


def test_command_over_http_is_cheap(empty_service: str) -> None:
    arguments = ["tasks", "list", "--url", empty_service]
    code = f"from cli.main import app\ntry:\n    app({arguments!r})\nexcept SystemExit as end:\n    assert not end.code"
    assert _expensive_imports(code) == ""
