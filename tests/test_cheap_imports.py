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
# Libraries of agents, drawn videos, and sign-in at an OpenID provider.
RARE = ("mcp", "av", "PIL", "authlib")
# `--help` needs none of these either, nor does any completion of the shell.
EXPENSIVE_FOR_HELP = (*EXPENSIVE, *RARE, "celery", "fastapi", "numpy", "sqlalchemy")
CHEAP_MODULES = (
    "service.core.settings",
    "models.adapters",
    "models.backbones.compiled_towers",
    "models.encoders",
    "models.errors",
    "models.forgetting_measures",
    "models.releases.release_files",
    "models.routing.confidence_model",
    "service.core.process_setup",
    "cinestrata_schemas.library",
    "service.catalog.database",
    "service.catalog.migrations",
    "service.tasks.broker",
    "cli.main",
    "cli.service_client",
    "cli.commands.video_sources",
    "cli.commands.search_commands",
    "cli.commands.maintenance_commands",
)
HELP = (["--help"], ["tasks", "--help"], ["search", "--help"], ["up", "--help"], ["bench", "--help"])


def _expensive_imports(*steps: str, expensive: tuple[str, ...] = EXPENSIVE) -> list[str]:
    """Run steps in a fresh interpreter, and return each with an expensive module imported by then, and the modules."""
    code = f"""
import sys
for step in {steps!r}:
    exec(step, {{}})
    if found := [module for module in {expensive!r} if module in sys.modules]:
        print(step, *found, sep="\\n", file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()


def _command(arguments: list[str]) -> str:
    return f"""
from cli.main import app
try:
    app({arguments!r})
except SystemExit as end:
    assert not end.code
"""


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


def test_module_imports_are_cheap() -> None:
    assert _expensive_imports(*(f"import {module}" for module in CHEAP_MODULES)) == []


def test_help_is_cheap() -> None:
    assert _expensive_imports(*map(_command, HELP), expensive=EXPENSIVE_FOR_HELP) == []


@pytest.mark.slow
def test_libraries_of_rare_requests_are_not_imported_before_these() -> None:
    assert _expensive_imports("import api.app", expensive=RARE) == []


def test_command_over_http_is_cheap(empty_service: str) -> None:
    assert _expensive_imports(_command(["tasks", "list", "--url", empty_service])) == []
