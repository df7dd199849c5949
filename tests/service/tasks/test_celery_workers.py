"""Real Celery workers on a real Redis: tasks are handed over, workers die, and nothing is lost."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import redis

from cinestrata_schemas.tasks import TaskDetails, TaskSpec
from index.shard_store import ShardStore
from service import maintenance
from service.catalog.database import session_scope
from service.catalog.tables import Release, Shard, Task
from service.celery_worker import worker_name
from service.core.settings import Settings, settings
from service.tasks import commands, lifecycle, task_events
from service.tasks.broker import LEARN, celery_app
from tests.catalog_rows import accepted_videos


def learn_slowly(task_id: str) -> None:
    """Return the training job that learns nothing, slowly, and publishes a shard."""
    claim = lifecycle.claim_training(task_id, worker_name())
    if claim is None:
        return
    with claim:
        steps = claim.task.settings.get("max_steps") or 2
        for state in ("training", "indexing", "evaluating"):
            claim.advance(state)  # type: ignore[arg-type]
            for step in range(steps):
                claim.progress(state, step / steps)
                time.sleep(0.02)
        store = ShardStore(settings().index_dir)
        folder = store.stage()
        (folder / "release.json").write_text(task_id)
        release = store.adopt_release(folder)
        ids = np.array([video.vector_id for video in accepted_videos(task_id)])
        vectors = np.ones((len(ids), 1), np.float32)
        shard = store.write_shard(task=task_id, release=release.id, fingerprint="f", ids=ids, vectors=vectors)
        with claim.publishing() as publication:
            store.publish(release=release, shards=[shard])
            publication.complete(
                release=Release(
                    id=release.id,
                    method="zero_shot",
                    backbone="tiny",
                    kind="frozen",
                    fingerprint="f",
                    bytes=release.bytes,
                ),
                shard=Shard(
                    id=shard.id,
                    release_id=release.id,
                    fingerprint="f",
                    count=len(ids),
                    dim=1,
                    bytes=shard.bytes,
                ),
                trained=False,
            )
    lifecycle.send_due()


class WorkerProcess:
    """A Celery worker on both queues, forked from the test process, which has imported everything already."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.exit_status: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            self._run()

    def _run(self) -> None:
        code = 1
        try:
            output = os.open(self.log, os.O_WRONLY | os.O_CREAT)
            os.dup2(output, 1)
            os.dup2(output, 2)
            maintenance.RECONCILE_SECONDS = 0.2
            celery_app.tasks.pop(LEARN, None)  # an earlier test of this process may have imported the trainer
            celery_app.task(learn_slowly, name=LEARN, ignore_result=True)
            options = ["--pool", "solo", "--queues", "cpu,gpu", "--without-mingle", "--without-gossip"]
            hostname = f"{self.log.stem}@test"
            # The app read its settings when an earlier test used it first.
            celery_app.worker_main(
                ["--broker", settings().redis_url, "worker", *options, "--hostname", hostname]
            )
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def stop(self, signal_number: int) -> int:
        """Send a signal, wait, and return the exit status; negative: the signal that killed the process."""
        if self.exit_status is None:
            os.kill(self.pid, signal_number)
            self.exit_status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.exit_status


@pytest.fixture(params=["sqlite", "postgresql"])
def configured(
    request: pytest.FixtureRequest, tmp_path: Path, settings_factory: Callable[..., Settings], broker_url: str
) -> Settings:
    # Long enough that a worker on a busy machine renews its lease in time.
    return settings_factory(tmp_path, request.param, redis_url=broker_url, lease_seconds=6)


@pytest.fixture
def start_worker(configured: Settings, tmp_path: Path) -> Iterator[Callable[[], WorkerProcess]]:
    workers: list[WorkerProcess] = []

    def start() -> WorkerProcess:
        workers.append(WorkerProcess(tmp_path / f"worker-{len(workers)}.log"))
        return workers[-1]

    yield start
    for worker in workers:
        worker.stop(signal.SIGKILL)
        sys.stdout.write(f"--- {worker.log.name}\n{worker.log.read_text()[-3000:]}\n")


@pytest.fixture
def post_videos(configured: Settings, write_video: Callable[..., Path]) -> Callable[..., TaskDetails]:
    """``post_videos(name, **settings)``: a stored task with two real videos."""

    def post(name: str, **method_settings: int) -> TaskDetails:
        videos = []
        for number in range(2):
            write_video(configured.media_root / name / f"{number}.mp4", seed=len(name) + 100 * number)
            videos.append({"uri": f"{name}/{number}.mp4", "captions": ["noise"]})
        spec = TaskSpec.model_validate({"name": name, "videos": videos, "settings": method_settings})
        return commands.create_task(spec).task

    return post


def _wait_for_state(task_id: str, state: str) -> TaskDetails:
    deadline = time.monotonic() + 120
    while (task := commands.get_task(task_id)).state != state:
        assert task.state not in ("failed", "cancelled"), task.error
        assert time.monotonic() < deadline, f"still {task.state}"
        time.sleep(0.05)
    return task


@pytest.mark.slow
def test_tasks_are_learned_in_order_despite_lost_messages_and_a_killed_worker(
    configured: Settings,
    start_worker: Callable[[], WorkerProcess],
    post_videos: Callable[..., TaskDetails],
) -> None:
    first, second = post_videos("first", max_steps=40), post_videos("second")
    redis.Redis.from_url(configured.redis_client_url).flushall()  # every message is lost
    worker = start_worker()
    _wait_for_state(first.id, "training")

    worker.stop(signal.SIGKILL)  # as the kernel does when memory is exhausted
    assert commands.get_task(first.id).state == "training"
    start_worker()
    assert _wait_for_state(second.id, "ready").learned_order == 2
    assert commands.get_task(first.id).learned_order == 1
    messages = [e.data["message"] for e in task_events.events_after(first.id) if e.kind == "log"]
    # Probing, training, and training after the kill.
    assert sum(message.startswith("Taken by") for message in messages) == 3
    assert any(message.startswith("Lost its worker") for message in messages)


@pytest.mark.slow
@pytest.mark.parametrize("configured", ["sqlite"], indirect=True)
def test_stopped_worker_gives_its_task_back(
    start_worker: Callable[[], WorkerProcess], post_videos: Callable[..., TaskDetails]
) -> None:
    worker = start_worker()
    task = post_videos("birds", max_steps=100_000)
    _wait_for_state(task.id, "training")
    assert worker.stop(signal.SIGTERM) == 0
    with session_scope() as session:
        row = session.get_one(Task, task.id)
        assert (row.lease_owner, row.attempts, row.state) == (None, 0, "training")
