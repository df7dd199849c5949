"""Tasks of dead workers, lost messages, and a real Celery worker on a real Redis that gives its task back."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import redis
from sqlalchemy import select

from cinestrata_schemas.tasks import TaskDetails, TaskSpec
from service import celery_worker
from service.catalog.database import now, session_scope
from service.catalog.operation_tables import IdempotencyKey
from service.catalog.tables import Task
from service.celery_worker import worker_name
from service.core.settings import Settings, settings
from service.tasks import broker, commands, lifecycle
from service.tasks.broker import LEARN, celery_app
from service.tasks.lifecycle import state_machine

Post = Callable[..., TaskDetails]


def test_a_locked_task_does_not_delay_the_others(
    tmp_path: Path, settings_factory: Callable[..., Settings], post: Post, expire: Callable
) -> None:
    """On PostgreSQL, the transaction of a lost host locks a row until the server notices."""
    settings_factory(tmp_path, "postgresql", lease_seconds=30)
    locked, other = post("locked"), post("other")
    for view in (locked, other):
        assert lifecycle.claim_probing(view.id, "dies") is not None
        expire(view.id)
    with session_scope(write=True) as session:
        session.execute(select(Task).where(Task.id == locked.id).with_for_update())
        assert lifecycle.reconcile().recovered == (other.id,)
    assert lifecycle.reconcile().recovered == (locked.id,)


def test_attempts_are_limited_and_the_next_task_starts(
    catalog: Settings, post_probed: Post, expire: Callable
) -> None:
    poison, healthy = post_probed("poison"), post_probed("healthy")
    for _ in range(state_machine.MAX_ATTEMPTS):
        claim = lifecycle.claim_training(poison.id, "dies")
        assert claim is not None
        claim.progress("training")
        expire(poison.id)
        done = lifecycle.reconcile()
    assert done.failed == (poison.id,)
    view = commands.get_task(poison.id)
    assert (view.state, "3 times" in (view.error or "")) == ("failed", True)
    assert lifecycle.claim_training(poison.id, "again") is None
    assert lifecycle.claim_training(healthy.id, "worker") is not None


def test_training_that_loses_two_workers_fails_with_its_peak_of_memory(
    sqlite_catalog: Settings, post_probed: Post, expire: Callable
) -> None:
    view = post_probed()
    for attempt in range(state_machine.MAX_LOST_TRAININGS):
        claim = lifecycle.claim_training(view.id, "killed")
        assert claim is not None, attempt
        claim.report_memory(lambda: 20_900_000_000)
        claim.advance("training")
        claim.progress("training", 0.1)
        expire(view.id)
    assert lifecycle.claim_training(view.id, "third") is None, "it would be killed as well"
    assert lifecycle.reconcile().failed == (view.id,)
    failed = commands.get_task(view.id)
    assert failed.progress.peak_memory == 20_900_000_000
    assert "killed 2 times in a row while training" in str(failed.error)
    assert "a peak of 20.9 GB" in str(failed.error)
    assert failed.remedy is not None
    assert failed.remedy.name == "retry_task"


def test_cancellation_is_completed_for_a_dead_worker(
    catalog: Settings, post_probed: Post, expire: Callable
) -> None:
    view = post_probed()
    assert lifecycle.claim_training(view.id, "dies") is not None
    assert commands.cancel_task(view.id).state == "probing"
    expire(view.id)
    assert lifecycle.reconcile().cancelled == (view.id,)
    assert commands.get_task(view.id).state == "cancelled"


def test_concurrent_reconcilers_count_an_attempt_once(
    catalog: Settings, post_probed: Post, expire: Callable
) -> None:
    view = post_probed()
    assert lifecycle.claim_training(view.id, "dies") is not None
    expire(view.id)
    with ThreadPoolExecutor(4) as threads:
        reports = list(threads.map(lambda _: lifecycle.reconcile(), range(4)))
    assert [task for report in reports for task in report.recovered] == [view.id]


def test_lost_messages_are_sent_again_and_do_not_accumulate(with_broker: redis.Redis, post: Post) -> None:
    first, second = post("first"), post("second")
    assert with_broker.llen("cpu") == 2
    with_broker.flushall()
    assert lifecycle.reconcile().sent == (first.id, second.id)
    for _ in range(5):
        lifecycle.reconcile()
    assert (with_broker.llen("cpu"), with_broker.llen("gpu")) == (2, 0)


def test_only_the_first_unfinished_task_is_sent_to_learning(
    with_broker: redis.Redis, post_probed: Post
) -> None:
    first, second = post_probed("first"), post_probed("second")
    with_broker.flushall()
    assert lifecycle.send_due() == (first.id,)
    lifecycle.reconcile()
    assert (with_broker.llen("cpu"), with_broker.llen("gpu")) == (0, 1)
    with_broker.flushall()
    claim = lifecycle.claim_training(first.id, "worker")
    assert claim is not None
    assert lifecycle.send_due() == ()
    claim.fail("no")
    assert lifecycle.send_due() == (second.id,)
    post_probed("third")
    with_broker.flushall()
    commands.cancel_task(second.id)
    assert with_broker.llen("gpu") == 1, "the next one is sent at once"


def test_tasks_are_accepted_without_a_broker(sqlite_catalog: Settings, post: Post) -> None:
    view = post()
    assert view.state == "queued"
    assert not broker.is_reachable()
    assert broker.queue_length("cpu") is None
    assert lifecycle.reconcile().sent == ()


def test_visibility_timeout_is_equal_in_all_processes() -> None:
    conf = broker.celery_app.conf
    assert (
        conf.broker_transport_options["visibility_timeout"]
        == conf.result_backend_transport_options["visibility_timeout"]
        == conf.visibility_timeout
    )
    assert isinstance(conf.visibility_timeout, int)
    assert conf.task_acks_late
    assert conf.worker_prefetch_multiplier == 1
    assert conf.accept_content == ["json"]


def test_old_idempotency_keys_are_deleted(sqlite_catalog: Settings, post: Post) -> None:
    post()
    with session_scope(write=True) as session:
        old = now(session) - timedelta(hours=25)
        for key, at in (("old", old), ("new", now(session))):
            session.add(IdempotencyKey(caller="c", key=key, body_hash="h", created_at=at))
    lifecycle.reconcile()
    with session_scope() as session:
        assert [k.key for k in session.query(IdempotencyKey)] == ["new"]
        assert session.query(Task).count() == 1


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
            celery_worker.RECONCILE_SECONDS = 0.2
            celery_app.tasks.pop(LEARN, None)  # an earlier test of this process may have imported the trainer
            celery_app.task(learn_slowly, name=LEARN, ignore_result=True)
            options = ["--pool", "solo", "--queues", "cpu,gpu", "--without-mingle", "--without-gossip"]
            hostname = f"{self.log.stem}@test"
            broker_options = ["--broker", settings().redis_url]  # an earlier test of the process read others
            celery_app.worker_main([*broker_options, "worker", *options, "--hostname", hostname])
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
