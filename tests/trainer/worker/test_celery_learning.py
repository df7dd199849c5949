"""Learning in a deployed Celery worker: solo pool, real Redis, and a catalog in PostgreSQL."""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from index.index_snapshot import IndexSnapshot
from index.shard_store import ShardStore
from service.core.settings import settings
from service.tasks import commands
from service.tasks.broker import celery_app, send_learn
from service.tasks.task_events import events_after
from trainer.methods.ffa_tame import FfaTame

THREE_EPOCHS = {"epochs": 3, "batch_size": 4, "experts": 2, "rank": 2}  # one optimizer step per epoch


@pytest.fixture
def start_worker(library: Any) -> Iterator[Callable[..., int]]:
    """``start_worker(pause=0)``: process id of a worker on the gpu queue that pauses in every training step (s)."""
    started: list[int] = []

    def start(pause: float = 0) -> int:
        child = os.fork()
        if child:
            started.append(child)
            return child
        code = 1
        try:
            original = FfaTame.loss

            def loss(self: FfaTame, *args: Any) -> Any:
                time.sleep(pause)
                return original(self, *args)

            FfaTame.loss = loss  # type: ignore[method-assign]
            options = ["--pool", "solo", "--queues", "gpu", "--without-mingle", "--without-gossip"]
            # Passed explicitly, because the app keeps the settings of the first test that used it.
            celery_app.worker_main(["--broker", settings().redis_url, "worker", *options])
            code = 0
        except SystemExit as error:
            code = int(error.code or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    yield start
    for child in started:
        try:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        except (ProcessLookupError, ChildProcessError):
            continue


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, [
            (t.name, t.state, t.progress, t.error) for t in commands.list_tasks()
        ]
        time.sleep(0.1)


@pytest.mark.slow
def test_killed_worker_is_replaced_and_the_next_task_is_learned(
    library: Any,
    post_videos: Callable[..., str],
    start_worker: Callable[..., int],
    settings_factory: Callable[..., Any],
    broker_url: str,
    tmp_path: Path,
) -> None:
    settings_factory(tmp_path / "celery", "postgresql", redis_url=broker_url, lease_seconds=2)
    one, two = post_videos("day", settings=THREE_EPOCHS), post_videos("night")
    send_learn(two)  # no effect: an earlier task is not learned yet
    send_learn(one)
    first = start_worker(pause=0.3)
    _wait(lambda: any(e.data.get("epoch") == 2 for e in events_after(one)))
    os.kill(first, signal.SIGKILL)
    os.waitpid(first, 0)
    assert commands.get_task(one).state == "training"

    second = start_worker()
    _wait(lambda: all(commands.get_task(task).state == "ready" for task in (one, two)))
    assert [commands.get_task(task).learned_order for task in (one, two)] == [1, 2]
    epochs = [e.data["epoch"] for e in events_after(one) if "epoch" in e.data]
    assert epochs[-1] == 3
    assert 1 not in epochs[epochs.index(2) :]  # the second worker resumed from the checkpoint of the first
    os.kill(second, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(second, 0)[1]) == 0

    store = ShardStore(settings().index_dir)
    snapshot = IndexSnapshot.open(store)
    for task in (one, two):
        shard = snapshot.shard(task, fingerprint=store.manifest().shards[task].fingerprint)
        norms = np.linalg.norm(shard.vectors(shard.ids), axis=1)
        np.testing.assert_allclose(norms, np.ones(6), atol=1e-3)  # stored in half precision


@pytest.mark.slow
def test_stopped_worker_releases_its_task(
    library: Any,
    post_videos: Callable[..., str],
    start_worker: Callable[..., int],
    settings_factory: Callable[..., Any],
    broker_url: str,
    tmp_path: Path,
) -> None:
    settings_factory(tmp_path / "celery", redis_url=broker_url, lease_seconds=600)
    task = post_videos("day", settings=THREE_EPOCHS)
    send_learn(task)
    worker = start_worker(pause=0.3)
    _wait(lambda: any("epoch" in e.data for e in events_after(task)))
    os.kill(worker, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) == 0
    view = commands.get_task(task)
    assert (view.state, view.attempts) == ("training", 0)
    start_worker()
    _wait(lambda: commands.get_task(task).state == "ready")
