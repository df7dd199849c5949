"""``kill -9`` of the learning worker at every stage: the next one goes on, and ends with the same vectors."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import func, select

from index.index_snapshot import IndexSnapshot
from index.shard_store import ShardStore
from index.vector_ids import FIRST_MOMENT_ID
from media import VideoDecoder
from service.catalog.database import now, session_scope
from service.catalog.tables import Moment, Recall, Release, Shard, Task
from service.core.schemas import RecallMatrix
from service.core.settings import settings
from service.library.deletion import delete_videos
from service.library.recall_matrix import read_recall_matrix
from service.tasks import commands, lifecycle
from service.tasks.lifecycle import Claim
from service.tasks.task_events import events_after
from trainer.worker import learning_job, release_metrics, video_decoding

Post = Callable[..., str]

pytestmark = pytest.mark.usefixtures("library")


def _die(*_: Any, **__: Any) -> None:
    """What no ``finally`` and no ``except`` survives."""
    os.kill(os.getpid(), signal.SIGKILL)


def _before(owner: Any, name: str) -> None:
    setattr(owner, name, _die)


def _after(owner: Any, name: str) -> None:
    original = getattr(owner, name)

    def call(*args: Any, **fields: Any) -> None:
        original(*args, **fields)
        _die()

    setattr(owner, name, call)


def _in_epoch(number: int) -> None:
    """After the first step of an epoch."""
    original = Claim.progress

    def progress(self: Claim, stage: str, *args: Any, **fields: Any) -> None:
        original(self, stage, *args, **fields)
        if stage == "training" and fields.get("epoch") == number:
            _die()

    Claim.progress = progress  # type: ignore[method-assign]


# In the order in which a worker comes past them.
POINTS: dict[str, Callable[[], None]] = {
    "claimed": lambda: _before(learning_job, "load_task"),
    "in the first epoch": lambda: _in_epoch(1),
    "in the third epoch": lambda: _in_epoch(3),
    "trained": lambda: _after(learning_job, "train_task"),
    "release written": lambda: _after(ShardStore, "adopt_release"),
    "shard written": lambda: _after(ShardStore, "write_shard"),
    "moments settled": lambda: _after(video_decoding, "plan_moments"),
    "moments decoded": lambda: _after(VideoDecoder, "sample"),
    "moments written": lambda: _after(learning_job, "index_task"),
    "measuring": lambda: _before(release_metrics, "evaluate_release"),
    "measured": lambda: _after(learning_job, "evaluate_task"),
    "manifest replaced": lambda: _after(ShardStore, "publish"),
    "committed": lambda: _before(learning_job, "save_ledger"),
}


def _run(task: str, point: str | None = None) -> int:
    """Learn in a process of its own, which dies at a point. The exit code; negative: the signal."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if point:
                POINTS[point]()
            learning_job.run_learning_job(task)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _expire(task: str) -> None:
    """As if the dead worker's lease had run out."""
    with session_scope(write=True) as session:
        session.get_one(Task, task).lease_expires_at = now(session) - timedelta(seconds=1)
    lifecycle.reconcile()


def _vectors(task: str) -> np.ndarray:
    store = ShardStore(settings().index_dir)
    shard = IndexSnapshot.open(store).shard(task, fingerprint=store.manifest().shards[task].fingerprint)
    return shard.vectors(np.sort(shard.ids))


def _moments(task: str) -> list[tuple[float, float]]:
    """Those that are published, by their ids."""
    store = ShardStore(settings().index_dir)
    ids = IndexSnapshot.open(store).shard(task, fingerprint=store.manifest().shards[task].fingerprint).ids
    with session_scope() as session:
        rows = session.execute(select(Moment.vector_id, Moment.start_seconds, Moment.end_seconds)).all()
    assert sorted(ids[ids >= FIRST_MOMENT_ID].tolist()) == sorted(vector_id for vector_id, _, _ in rows)
    return [(start, end) for _, start, end in sorted(rows)]


def _comparable(view: RecallMatrix) -> dict[str, object]:
    return view.model_dump(exclude={"task_ids", "releases"})


def test_killed_anywhere_it_ends_with_the_same_vectors(
    post_videos: Post, tmp_path: Path, settings_factory: Callable[..., object]
) -> None:
    """One task is killed at every point there is, in the order in which they come; another is left alone."""
    fields = {"frames": 2, "torch_threads": 1, "lease_seconds": 600, "max_attempts": 8}
    settings_factory(tmp_path / "killed", **fields)
    first, killed = post_videos("day"), post_videos("night", seconds={0: 30, 3: 45})
    assert _run(first) == 0
    for point in POINTS:
        assert _run(killed, point) == -signal.SIGKILL, point
        published = ShardStore(settings().index_dir).manifest().shards
        assert (killed in published) == (point in ("manifest replaced", "committed")), point
        if point == "committed":
            break
        assert commands.get_task(killed).state in ("probing", "training", "indexing", "evaluating"), point
        assert commands.get_task(first).state == "ready"
        _expire(killed)
    assert commands.get_task(killed).state == "ready"
    with session_scope() as session:
        counts = [
            session.scalar(select(func.count()).select_from(table)) for table in (Release, Shard, Recall)
        ]
    assert counts == [2, 2, 4 + 8 + 2]
    assert _moments(killed) == [(0, 20), (10, 30), *[(start, start + 18) for start in (0, 9, 18, 27)]]
    # What moments were decoded into goes with the checkpoints, which the next task removes.
    left = {
        path.relative_to(settings().data_dir).parts[:2] for path in settings().data_dir.rglob("moments*.npy")
    }
    assert left <= {("checkpoints", killed)}
    # Every attempt went on from the last checkpoint: two steps an epoch, and none twice once it was saved.
    steps = [e.data["epoch"] for e in events_after(killed) if "epoch" in e.data]
    assert steps == [1, *(1, 1, 2, 2, 3), *(3, 3)]
    vectors, figures = _vectors(killed), read_recall_matrix()

    settings_factory(tmp_path / "alone", **fields)
    other, alone = post_videos("day"), post_videos("night", seconds={0: 30, 3: 45})
    assert [_run(task) for task in (other, alone)] == [0, 0]
    assert commands.get_task(alone).state == "ready"
    assert np.array_equal(_vectors(alone), vectors)
    assert len(vectors) == 6 + 6
    assert _comparable(read_recall_matrix()) == _comparable(figures)


@pytest.mark.parametrize("most", [1, 3])
def test_what_is_laid_down_is_ready_though_measuring_kills_its_worker_every_time(
    most: int, post_videos: Post, tmp_path: Path, settings_factory: Callable[..., object]
) -> None:
    settings_factory(tmp_path, frames=2, torch_threads=1, lease_seconds=600, max_attempts=most)
    task, next_one = post_videos("day"), post_videos("night")
    assert _run(task, "manifest replaced") == -signal.SIGKILL
    _expire(task)
    for _ in range(1, most - 1):
        assert _run(task, "measuring") == -signal.SIGKILL
        _expire(task)
    assert _run(task, "measuring") == 0, "the last attempt leaves it out"
    view = commands.get_task(task)
    assert (view.state, view.error, view.learned_order) == ("ready", None, 1)
    assert "again and again" in str(view.progress.unmeasured)
    assert any("could not be measured" in e.data.get("message", "") for e in events_after(task))
    assert read_recall_matrix().after == []
    assert _run(next_one) == 0
    assert commands.get_task(next_one).progress.unmeasured is None
    assert read_recall_matrix().after == ["night"]
    assert read_recall_matrix().tasks == ["day", "night"], "the next row measures both"


def test_what_is_laid_down_is_ready_though_all_its_videos_are_deleted(post_videos: Post) -> None:
    task = post_videos("day")
    assert _run(task, "manifest replaced") == -signal.SIGKILL
    delete_videos(f"day-{number}" for number in range(6))
    _expire(task)
    assert _run(task) == 0
    view = commands.get_task(task)
    assert (view.state, view.error, view.learned_order, view.counts.videos) == ("ready", None, 1, 0)


def test_the_last_attempt_at_what_is_laid_down_is_never_the_last(
    post_videos: Post, tmp_path: Path, settings_factory: Callable[..., object]
) -> None:
    """Even that one may be killed; and a round in which nobody is at it repeats itself no more than once."""
    settings_factory(tmp_path, frames=2, torch_threads=1, lease_seconds=600, max_attempts=2)
    task = post_videos("day")
    assert _run(task, "manifest replaced") == -signal.SIGKILL
    for _ in range(4):
        _expire(task)
        assert lifecycle.reconcile().recovered == ()
        assert _run(task, "claimed") == -signal.SIGKILL
        assert commands.get_task(task).state == "evaluating"
    _expire(task)
    assert _run(task) == 0
    assert commands.get_task(task).state == "ready"


def test_a_task_that_kills_its_worker_every_time_fails_and_lets_the_next_one_pass(post_videos: Post) -> None:
    deadly, next_one = post_videos("day"), post_videos("night")
    for _ in range(settings().max_attempts):
        assert _run(deadly, "in the first epoch") == -signal.SIGKILL
        _expire(deadly)
    view = commands.get_task(deadly)
    assert view.state == "failed"
    assert "stopped 3 times" in str(view.error)
    assert _run(next_one) == 0
    assert commands.get_task(next_one).state == "ready"
