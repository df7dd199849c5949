"""Snapshots of a running library, restored on the other database, give the same answers."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import Machine

WORDS = [
    "cell",
    "ciliate",
    "paramecium",
    "filament",
    "snow",
    "seal",
    "snowmobile",
    "berry",
    "night",
    "left",
    "right",
]
QUERIES = [f"{first} {second}" for first in WORDS for second in WORDS if first < second][:50]


@pytest.fixture
def tiny_library(tmp_path: Path) -> Path:
    """Snapshot of a learned library of two domains, see :mod:`tests.tiny_library`."""
    path = tmp_path / "library.tar"
    subprocess.run([sys.executable, "-m", "tests.tiny_library", path], check=True)
    return path


@pytest.mark.slow
def test_snapshots_of_running_libraries_answer_alike_on_both_databases(
    machine: Machine, tiny_library: Path, tmp_path: Path, fresh_postgres_url: str, broker_url: str
) -> None:
    postgresql = {"CINESTRATA_DATABASE_URL": fresh_postgres_url, "CINESTRATA_REDIS_URL": broker_url}
    folders = [tmp_path / name for name in ("first", "second", "third")]
    answers: list[list[Any]] = []
    edits: list[int] = []
    backup = tiny_library
    for number, (folder, environment) in enumerate(zip(folders, ({}, postgresql, {}), strict=True), 1):
        environment = {**environment, "CINESTRATA_DATA_DIR": folder, "CINESTRATA_BACKBONE": "tiny"}
        _require_success(machine.run("restore", backup, env=environment))
        _require_success(machine.run("migrate", env=environment))
        with _served(machine, environment) as client:
            answers.append([_answer(client, query) for query in QUERIES])
            backup = folder.with_suffix(".tar")
            if number < len(folders):
                with _edited(client, edits):
                    snapshot = machine.run("snapshot", backup, env=environment)
                _require_success(snapshot)
        assert (folder / "catalog.sqlite3").exists() == ("CINESTRATA_DATABASE_URL" not in environment)
    assert len(answers[0]) == 50
    assert any(answers[0])
    assert answers[1] == answers[0]
    assert answers[2] == answers[0]
    assert sum(edits) > 0, "the catalog changed during the snapshots"


@contextmanager
def _served(machine: Machine, environment: dict[str, object]) -> Iterator[httpx.Client]:
    port = machine.free_port()
    log = (machine.folder / "serve.log").open("a")
    process = machine.start(
        "serve", env={**environment, "CINESTRATA_PORT": port}, stdout=log, stderr=subprocess.STDOUT
    )
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        machine.until(lambda: machine.answers(f"http://127.0.0.1:{port}/readyz"), "the API is ready")
        yield client
    process.terminate()
    assert process.wait(60) == 0
    log.close()


@contextmanager
def _edited(client: httpx.Client, edits: list[int]) -> Iterator[None]:
    """Edit the metadata of a video all the time."""
    stop = threading.Event()

    def edit() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            response = client.patch("/videos/street-0", json={"metadata": {"number": number}})
            edits.append(response.status_code == 200)

    editor = threading.Thread(target=edit)
    editor.start()
    try:
        yield
    finally:
        stop.set()
        editor.join()


def _answer(client: httpx.Client, query: str) -> list[tuple[str, float]]:
    response = client.get("/search", params={"q": query, "k": 10})
    response.raise_for_status()
    return [(result["video_id"], result["score"]) for result in response.json()["results"]]


def _require_success(process: subprocess.CompletedProcess[str]) -> None:
    assert process.returncode == 0, process.stdout + process.stderr
