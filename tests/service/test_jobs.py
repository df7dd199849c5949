"""Real Celery workers on a real Redis: work is handed over, workers die, nothing is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from service.catalog.database import session_scope
from service.catalog.tables import Task
from service.core.schemas import TaskDetails, TaskSpec
from service.core.settings import Settings
from service.tasks import commands

ROOT = Path(__file__).resolve().parents[2]

# Stands in for the trainer: it learns nothing, slowly, and publishes a shard.
LEARN_SLOWLY = """
import time
import numpy as np
from index.shard_store import ShardStore
from service.library import videos
from service.tasks import lifecycle
from service.celery_worker import LEARN, celery_app, send_due, worker_name
from service.tasks.lifecycle import ReleaseRecord, ShardRecord
from service.core.settings import settings

@celery_app.task(name=LEARN, ignore_result=True)
def learn(task_id):
    claim = lifecycle.claim_training(task_id, worker_name())
    if claim is None:
        return
    with claim:
        steps = claim.task.settings.get("steps", 2)
        for state in ("training", "indexing", "evaluating"):
            claim.advance(state)
            for step in range(steps):
                claim.progress(state, step / steps)
                time.sleep(0.02)
        store = ShardStore(settings().index_dir)
        folder = store.stage()
        (folder / "release.json").write_text(task_id)
        release = store.adopt_release(folder)
        ids = np.array([v.vector_id for v in videos.accepted_videos(task_id)])
        vectors = np.ones((len(ids), 1), np.float32)
        shard = store.write_shard(task=task_id, release=release.id, fingerprint="f", ids=ids, vectors=vectors)
        with claim.publishing() as publication:
            store.publish(release=release, shards=[shard])
            publication.complete(
                release=ReleaseRecord(release.id, "zero_shot", "tiny", "frozen", "f", release.bytes),
                shard=ShardRecord(shard.id, release.id, "f", len(ids), 1, shard.bytes),
                trained=False,
            )
    send_due()
"""

Start = Callable[[str], "subprocess.Popen[bytes]"]


@pytest.fixture(params=["sqlite", "postgresql"])
def running(
    request: pytest.FixtureRequest, tmp_path: Path, settings_factory: Callable[..., Settings], broker_url: str
) -> Settings:
    return settings_factory(tmp_path, request.param, redis_url=broker_url, lease_seconds=2)


@pytest.fixture
def start(running: Settings, tmp_path: Path) -> Iterator[Start]:
    """``start(queues)``: a worker of its own process."""
    (tmp_path / "learn_slowly.py").write_text(LEARN_SLOWLY)
    workers: list[subprocess.Popen[bytes]] = []

    def make(queues: str) -> subprocess.Popen[bytes]:
        with (tmp_path / f"worker-{len(workers)}.log").open("wb") as output:
            workers.append(
                subprocess.Popen(
                    [
                        *(
                            sys.executable,
                            "-m",
                            "celery",
                            "-A",
                            "service.celery_worker",
                            "worker",
                            "--queues",
                            queues,
                        ),
                        *(
                            "--pool",
                            "solo",
                            "--hostname",
                            f"{len(workers)}@test",
                            "--include",
                            "learn_slowly",
                        ),
                    ],
                    cwd=ROOT,
                    env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            )
        return workers[-1]

    yield make
    for worker in workers:
        worker.kill()
        worker.wait()
    for log in sorted(tmp_path.glob("*.log")):
        sys.stdout.write(f"--- {log.name}\n{log.read_text()[-3000:]}\n")


@pytest.fixture
def post_real(running: Settings, write_video: Callable[..., Path]) -> Callable[..., TaskDetails]:
    def make(name: str, **settings: int) -> TaskDetails:
        videos = []
        for number in range(2):
            write_video(running.media_root / name / f"{number}.mp4", seed=hash((name, number)) % 10_000)
            videos.append({"uri": f"{name}/{number}.mp4", "captions": ["noise"]})
        return commands.create_task(
            TaskSpec.model_validate({"name": name, "videos": videos, "settings": settings})
        ).task

    return make


def _wait(task_id: str, *states: str) -> TaskDetails:
    deadline = time.monotonic() + 120
    while (view := commands.get_task(task_id)).state not in states:
        assert view.state not in ("failed", "cancelled"), view.error
        assert time.monotonic() < deadline, f"still {view.state}"
        time.sleep(0.05)
    return view


def test_nothing_that_dies_or_is_lost_keeps_tasks_from_being_learned_in_order(
    running: Settings, start: Start, post_real: Callable[..., TaskDetails]
) -> None:
    first, second = post_real("first", steps=40), post_real("second")
    redis.Redis.from_url(running.redis_client_url).flushall()  # every message is lost
    worker = start("cpu,gpu")
    _wait(first.id, "training")

    worker.kill()  # as the kernel does when memory is short
    worker.wait()
    assert commands.get_task(first.id).state == "training"
    start("cpu,gpu")
    assert _wait(second.id, "ready").learned_order == 2
    assert commands.get_task(first.id).learned_order == 1
    told = [e.data["message"] for e in commands.events_after(first.id) if e.kind == "log"]
    assert sum(message.startswith("Taken by") for message in told) == 3  # to probe, to learn, to learn on
    assert any(message.startswith("Lost its worker") for message in told)


@pytest.mark.parametrize("running", ["sqlite"], indirect=True)
def test_a_worker_that_is_stopped_gives_its_task_back(
    running: Settings, start: Start, post_real: Callable[..., TaskDetails]
) -> None:
    learner = start("cpu,gpu")
    view = post_real("birds", steps=100_000)
    _wait(view.id, "training")
    learner.send_signal(signal.SIGTERM)
    assert learner.wait(timeout=30) == 0
    with session_scope() as session:
        task = session.get_one(Task, view.id)
        assert (task.lease_owner, task.attempts, task.state) == (None, 0, "training")
