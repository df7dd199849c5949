"""A data folder per test, and tasks published in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import numpy as np
import pytest

from cinestrata_client import Client
from index.files.manifest_format import Manifest
from index.shard_store import ShardStore
from models.releases.release_files import write_release
from models.releases.release_state import ParentRelease, ReleaseState, ReleaseTask
from models.routing.routing_profiles import RoutingProfiles
from service.catalog.database import session_scope
from service.catalog.tables import Task, Video
from service.core.settings import Settings
from tests.catalog_rows import add_release_and_shard
from tests.cli.invocation import Answers

DIM = 8


@pytest.fixture(autouse=True)
def same_environment() -> Iterator[None]:
    """Restore environment variables that commands set for their child processes."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    """Answer all of the process's requests, without pauses between retries, and collect them."""
    made = httpx.Client
    monkeypatch.setattr("time.sleep", lambda _: None)

    def install(respond: Callable[[httpx.Request], httpx.Response]) -> list[httpx.Request]:
        requests: list[httpx.Request] = []

        def answer(request: httpx.Request) -> httpx.Response:
            requests.append(request)
            return respond(request)

        transport = httpx.MockTransport(answer)
        for module, name in ((httpx, "Client"), (Client, "_open")):
            monkeypatch.setattr(
                module, name, staticmethod(lambda **how: made(**{**how, "transport": transport}))
            )
        return requests

    return install


@pytest.fixture
def folder(tmp_path: Path, settings_factory: Callable[..., Settings]) -> Settings:
    """The settings of an empty data folder, with a catalog."""
    return settings_factory(tmp_path)


@pytest.fixture
def publish_task(folder: Settings) -> Callable[..., Manifest]:
    """Publish a task ``tsk_<name>`` of some videos like a worker: first the manifest, then the catalog."""

    def make(name: str, videos: int = 4) -> Manifest:
        store = ShardStore(folder.index_dir)
        task, number = f"tsk_{name}", len(store.manifest().shards)
        with session_scope(write=True) as session:
            at = datetime.now(UTC)
            session.add(
                Task(
                    id=task,
                    position=number,
                    name=name,
                    method="zero_shot",
                    state="evaluating",
                    progress={"stage": "ready"},
                    counts={"videos": videos, "accepted": videos},
                    created_at=at,
                )
            )
            session.flush()
            rows = [Video(id=f"{name}-{n}", task_id=task, uri=f"{n}.mp4") for n in range(videos)]
            session.add_all(rows)
            session.flush()
            ids = np.array([row.vector_id for row in rows], np.int64)
        learned = [
            ReleaseTask(other, other, f"encoder {other}") for other in [*store.manifest().shards, task]
        ]
        state = ReleaseState(
            method="zero_shot",
            kind="frozen",
            backbone="tiny",
            backbone_fingerprint="b",
            fingerprint=f"encoder {task}",
            frames=1,
            tasks=learned,
            config={},
            profiles=RoutingProfiles.from_dense(np.zeros((len(learned), 16))),
        )
        staged = store.stage()
        earlier = len(learned) - 1
        write_release(
            staged, state, parent=ParentRelease(str(store.manifest().release), earlier) if earlier else None
        )
        release = store.adopt_release(staged)
        vectors = np.random.default_rng(number).normal(size=(videos, DIM)).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        shard = store.write_shard(
            task=task, release=release.id, fingerprint=state.fingerprint, ids=ids, vectors=vectors
        )
        manifest = store.publish(release=release, shards=[shard])
        add_release_and_shard(task, shard, order=number + 1, kind="frozen", release_bytes=release.bytes)
        with session_scope(write=True) as session:
            row = session.get(Task, task)
            assert row is not None
            row.state, row.learned_order, row.release_id = "ready", number + 1, release.id
        return manifest

    return make


@pytest.fixture
def two(folder: Settings, publish_task: Callable[..., Manifest]) -> ShardStore:
    """The index of a library with the published tasks a and b."""
    publish_task("a", 5)
    publish_task("b", 3)
    return ShardStore(folder.index_dir)
