"""API and workers start only on a catalog with their own schema."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from sqlalchemy import text

from service.catalog.database import dispose, engine
from service.celery_worker import celery_app
from service.core.settings import settings
from tests.cli.invocation import run


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
