"""The commands of the container images as local processes, with a real PostgreSQL and a real Redis."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import Machine

ROOT = Path(__file__).resolve().parents[2]
QUEUES = ("cpu", "gpu")
KEY = "key-of-the-production-test"


@pytest.fixture
def environment(machine: Machine, fresh_postgres_url: str, broker_url: str) -> dict[str, object]:
    """Environment that the Compose file and the images set."""
    media = machine.folder / "media"
    media.mkdir(exist_ok=True)
    return {
        "CINESTRATA_DATABASE_URL": fresh_postgres_url.replace("postgresql+psycopg://", "postgresql://"),
        "CINESTRATA_REDIS_URL": broker_url,
        "CINESTRATA_DATA_DIR": machine.folder / "volume",
        "CINESTRATA_MEDIA_ROOT": media,
        "CINESTRATA_HOST": "127.0.0.1",
        "CINESTRATA_PORT": machine.free_port(),
        "CINESTRATA_API_KEY": KEY,
        "CINESTRATA_LOG_FORMAT": "json",
    }


@pytest.fixture
def service(machine: Machine, environment: dict[str, object]) -> Iterator[httpx.Client]:
    """Client of the API; API and both workers run on a migrated catalog."""
    assert machine.run("migrate", env=environment).returncode == 0
    assert machine.run("migrate", env=environment).returncode == 0, "a repeated migration succeeds"
    log = (machine.folder / "service.log").open("w")
    parts = [
        machine.start(*command, env=environment, stdout=log, stderr=log)
        for command in (
            ("serve",),
            *(
                ("worker", "--queue", queue, "--health-file", machine.folder / f"{queue}.json")
                for queue in QUEUES
            ),
        )
    ]
    url = f"http://127.0.0.1:{environment['CINESTRATA_PORT']}"
    with httpx.Client(base_url=url, headers={"X-API-Key": KEY}, timeout=60) as client:
        machine.until(lambda: machine.answers(f"{url}/readyz"), "the API is ready")
        yield client
    for part in parts:
        part.terminate()
    assert [part.wait(60) for part in parts] == [0, 0, 0], "processes end with status 0 on SIGTERM"
    log.close()


@pytest.mark.slow
def test_processes_of_the_images_learn_and_search_a_domain(
    machine: Machine, environment: dict[str, object], service: httpx.Client
) -> None:
    from tests.drawn_videos import write_domains

    media = machine.folder / "media"
    write_domains(media, domains=["sea"], train=4, val=2, test=4)
    manifest = media / "sea" / "manifest.jsonl"
    assert httpx.get(str(service.base_url) + "/tasks").status_code == 401
    settings = {name: str(value) for name, value in environment.items()}
    for part in (("api",), *(("worker", machine.folder / f"{queue}.json") for queue in QUEUES)):
        check = [sys.executable, ROOT / "docker" / "healthy.py", *part]
        machine.until(
            lambda check=check: subprocess.run(check, env=settings, cwd="/", check=False).returncode == 0,
            f"{part} is healthy",
        )

    url = str(service.base_url)
    posted = machine.run(
        *("ingest", manifest, "--name", "cells", "--set", "epochs=3", "--in-place", "--url", url),
        env={"CINESTRATA_API_KEY": KEY},
    )
    assert posted.returncode == 0, posted.stdout + posted.stderr
    task: dict[str, Any] = service.get("/tasks").json()[0]
    assert (task["name"], task["state"], task["trained"]) == ("cells", "ready", True)

    video = json.loads(manifest.read_text().splitlines()[0])
    found = machine.run(
        "search", video["captions"][0], "-k", 3, "--url", url, env={"CINESTRATA_API_KEY": KEY}
    )
    assert found.returncode == 0, found.stderr
    assert video["id"] in found.stdout
    assert service.get("/forgetting").json()["tasks"] == ["cells"]
    stored = str(environment["CINESTRATA_DATA_DIR"])
    assert not (Path(stored) / "catalog.sqlite3").exists(), "the catalog is in PostgreSQL"
    report = machine.run("doctor", env=environment)
    assert report.returncode == 0, report.stdout
    log = (machine.folder / "service.log").read_text()
    assert "cells" in log or "task" in log
    assert KEY not in log, "no process writes the key to its log"
    assert KEY not in report.stdout + report.stderr
