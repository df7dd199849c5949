"""The whole application over a catalog of its own, and a small library that was really learned."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.app import create_app
from benchmarks.data.world import DOMAINS, write_world
from service.catalog.database import dispose
from service.catalog.migrations import upgrade
from service.celery_worker import probe
from service.core.schemas import TaskSpec
from service.core.settings import Settings, settings
from service.tasks import commands
from service.tasks.lifecycle import lease
from trainer.worker.learning_job import run_learning_job

BASE = "http://127.0.0.1:8000"
QUICK = {"epochs": 1, "rank": 4}


@pytest.fixture(scope="module")
def configured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """Settings of an empty library, shared by the tests of a file. No broker answers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CINESTRATA_DATA_DIR", str(tmp_path_factory.mktemp("data")))
        patch.setattr(lease, "EVENT_SECONDS", 0)
        patch.setenv("CINESTRATA_MEASURED_MODES", "all")
        settings.cache_clear()
        dispose()
        settings().media_root.mkdir(parents=True, exist_ok=True)
        upgrade(settings())
        yield settings()
        dispose()
    settings.cache_clear()


@pytest.fixture(scope="module")
def world(configured: Settings) -> Path:
    """Two small domains of real mp4 files in the media root."""
    write_world(
        configured.media_root,
        domains=list(DOMAINS)[:2],
        seed=3,
        train=3,
        val=0,
        test=3,
        categories=2,
        captions=2,
        workers=1,
    )
    return configured.media_root


@pytest.fixture(scope="module")
def client(configured: Settings) -> Iterator[TestClient]:
    """A client of the running application; errors of the server are answers, not exceptions."""
    with TestClient(create_app(configured), base_url=BASE, raise_server_exceptions=False) as client:
        yield client


def manifest(root: Path, domain: str) -> list[dict[str, Any]]:
    """The videos of a domain as ``POST /tasks`` takes them."""
    lines = (root / domain / "manifest.jsonl").read_text(encoding="utf-8").splitlines()
    videos = [
        TaskSpec.model_validate_json(f'{{"name": "x", "videos": [{line}]}}').videos[0] for line in lines
    ]
    return [{**v.model_dump(exclude_none=True), "uri": f"{domain}/{Path(v.uri).name}"} for v in videos]


def learn(domain: str, videos: list[dict[str, Any]], **fields: Any) -> str:
    """Post a domain and do the workers' part in this process."""
    given = {"name": domain, "method": "ffa_tame", "settings": QUICK, "videos": videos}
    spec = TaskSpec.model_validate(given | fields)
    task = commands.create_task(spec).task
    probe(task.id)
    run_learning_job(task.id)
    return task.id


@pytest.fixture(scope="module")
def library(configured: Settings, world: Path, client: TestClient) -> list[str]:
    """Task ids of two learned domains, served by ``client``."""
    learned = [learn(domain, manifest(world, domain)) for domain in list(DOMAINS)[:2]]
    states = [commands.get_task(task).state for task in learned]
    assert states == ["ready", "ready"], [commands.get_task(task).error for task in learned]
    client.app.state.query_service.refresh()  # type: ignore[attr-defined]
    return learned
