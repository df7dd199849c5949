"""A real Celery worker on a real Redis: it takes tasks whose messages are lost, and gives them back."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from cinestrata_schemas.tasks import TaskSpec
from service import maintenance
from service.catalog.database import session_scope
from service.catalog.tables import Task
from service.celery_worker import worker_name
from service.core.settings import Settings, settings
from service.tasks import commands, lifecycle
from service.tasks.broker import LEARN, celery_app


def learn_slowly(task_id: str) -> None:
    """A training job that does not end before its worker is stopped."""
    claim = lifecycle.claim_training(task_id, worker_name())
    if claim is not None:
        with claim:
            claim.advance("training")
            while True:
                claim.progress("training")
                time.sleep(0.02)


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


@pytest.fixture
def configured(tmp_path: Path, settings_factory: Callable[..., Settings], broker_url: str) -> Settings:
    # Long enough that a worker on a busy machine renews its lease in time.
    return settings_factory(tmp_path, redis_url=broker_url, lease_seconds=6)


@pytest.mark.slow
def test_worker_learns_a_posted_task_and_gives_it_back_when_it_is_stopped(
    configured: Settings, tmp_path: Path, write_video: Callable[..., Path]
) -> None:
    videos = []
    for number in range(2):
        write_video(configured.media_root / f"{number}.mp4", seed=number)
        videos.append({"uri": f"{number}.mp4", "captions": ["noise"]})
    task = commands.create_task(TaskSpec.model_validate({"name": "birds", "videos": videos})).task
    redis.Redis.from_url(configured.redis_client_url).flushall()  # every message is lost
    worker = WorkerProcess(tmp_path / "worker.log")
    try:
        deadline = time.monotonic() + 120
        while (state := commands.get_task(task.id).state) != "training":
            assert time.monotonic() < deadline, f"still {state}"
            time.sleep(0.05)
        assert worker.stop(signal.SIGTERM) == 0
    finally:
        worker.stop(signal.SIGKILL)
        sys.stdout.write(worker.log.read_text()[-3000:])
    with session_scope() as session:
        row = session.get_one(Task, task.id)
        assert (row.lease_owner, row.attempts, row.state) == (None, 0, "training")
