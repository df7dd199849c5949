"""A library in Milvus: learning, searching over the API, moves between stores, and loss of the server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select
from typer.testing import CliRunner

from cli.main import app
from service.catalog.database import dispose, session_scope
from service.catalog.migrations import upgrade
from service.catalog.operation_tables import AuditEntry
from service.catalog.tables import Shard
from service.core.settings import Settings, settings
from service.storage import index_manifest
from service.storage.index_manifest import library_store
from tests.api.learned_library import learn_two_domains
from tests.milvus import Milvus

pytest.importorskip("milvus_lite")

QUERIES = ("something moves left", "it spins")

pytestmark = pytest.mark.slow  # each test copies or moves a learned library


@pytest.fixture(scope="module")
def configured(tmp_path_factory: pytest.TempPathFactory, milvus_server: Milvus) -> Iterator[Settings]:
    """Settings of an empty library whose vectors go to Milvus."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "DATA_DIR": str(tmp_path_factory.mktemp("data")),
            "VECTOR_STORE": "milvus",
            "MILVUS__URI": milvus_server.uri,
        }.items():
            patch.setenv(f"CINESTRATA_{name}", value)
        patch.setattr(index_manifest, "MILVUS_TIMEOUT_SECONDS", 30)  # a busy machine answers late
        settings.cache_clear()
        dispose()
        settings().media_root.mkdir(parents=True, exist_ok=True)
        upgrade(settings())
        yield settings()
        dispose()
    settings.cache_clear()


@pytest.fixture(scope="module")
def library(configured: Settings, world: Path, client: TestClient) -> list[str]:
    """Task IDs of two domains that are learned into Milvus, served by ``client``."""
    tasks = learn_two_domains(world)
    client.app.state.query_service.snapshots.refresh()  # type: ignore[attr-defined]
    return tasks


def answers(client: TestClient) -> list[list[tuple[str, float]]]:
    results = [client.get("/search", params={"q": q, "k": 50}).json()["results"] for q in QUERIES]
    return [[(hit["video_id"], hit["score"]) for hit in hits] for hits in results]


def same(one: list[list[tuple[str, float]]], other: list[list[tuple[str, float]]]) -> None:
    """Compare results; their scores may differ by the order of summation."""
    for before, after in zip(one, other, strict=True):
        assert dict(before) == pytest.approx(dict(after), abs=1e-5)
        assert [score for _, score in before] == pytest.approx([score for _, score in after], abs=1e-5)


def refreshed(client: TestClient) -> dict[str, Any]:
    service = client.app.state.query_service  # type: ignore[attr-defined]
    service.snapshots.retry_at = 0  # half a minute later
    service.snapshots.refresh()
    ready: dict[str, Any] = client.get("/readyz").json()
    return ready


# The tests of this file run in order on one library: it is learned, checked, moved, lost and found again.


def test_learned_tasks_are_stored_and_found_in_milvus(
    client: TestClient, library: list[str], configured: Settings
) -> None:
    manifest = library_store(configured).manifest()
    assert {shard.place.split(":")[0] for shard in manifest.shards.values()} == {"milvus"}
    assert not list(configured.index_dir.rglob("*.faiss"))
    assert refreshed(client)["degraded"] == {}
    results = answers(client)
    assert all(len(hits) == 24 for hits in results)
    video, _ = results[0][0]
    near = client.get(f"/videos/{video}/similar", params={"k": 3}).json()
    assert len(near["results"]) == 3
    assert video not in {hit["video_id"] for hit in near["results"]}
    outcome = CliRunner().invoke(app, ["doctor", "--json"])
    index = next(check for check in json.loads(outcome.stdout)["checks"] if check["check"] == "index")
    assert index["ok"], index


def test_moving_between_stores_keeps_results(
    client: TestClient, library: list[str], configured: Settings
) -> None:
    before = answers(client)
    for where, other in (("faiss", "milvus"), ("milvus", "faiss")):
        outcome = CliRunner().invoke(app, ["move", "--to", where, "--data", str(configured.data_dir)])
        assert outcome.exit_code == 0, outcome.output
        assert f"2 domains moved to {where}; 0 were already there" in outcome.output
        assert ("New domains still use the other store" in outcome.output) is (where == "faiss")
        assert refreshed(client)["degraded"] == {}
        same(answers(client), before)
        shards = library_store(configured).manifest().shards
        with session_scope() as session:
            in_catalog = dict(session.execute(select(Shard.task_id, Shard.id)).all())
            in_log = session.scalars(select(AuditEntry).where(AuditEntry.action == "shard.move")).all()
        assert in_catalog == {task: shard.id for task, shard in shards.items()}
        assert {entry.actor_kind for entry in in_log} == {"cli"}
        assert [entry.target for entry in in_log[-2:]] == library
        places = [bool(shard.place) for shard in shards.values()]
        assert places == [where == "milvus"] * 2, other
