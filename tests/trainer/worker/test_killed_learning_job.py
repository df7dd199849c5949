"""``kill -9`` of the learning worker at every stage: the next worker resumes and produces the same vectors."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import func, select

from index.index_snapshot import IndexSnapshot
from index.shard_store import ShardStore
from index.vector_ids import FIRST_MOMENT_ID
from media import VideoDecoder
from service.catalog.database import session_scope
from service.catalog.tables import Moment, Recall, Release, Shard
from service.core.settings import settings
from service.library.deletion import delete_videos
from service.library.recall_matrix import read_recall_matrix
from service.tasks import commands, lifecycle
from service.tasks.lifecycle import Claim, state_machine
from service.tasks.task_events import events_after
from tests.measured_library import figures_without_ids
from tests.trainer.worker.killed_worker import die, die_after, die_before, expire_leases, run_in_process
from trainer.worker import learning_job, video_decoding

Post = Callable[..., str]

pytestmark = pytest.mark.usefixtures("library")


def _die_in_epoch(number: int) -> None:
    """Die after the first step of an epoch."""
    original = Claim.progress

    def progress(self: Claim, stage: str, *args: Any, **fields: Any) -> None:
        original(self, stage, *args, **fields)
        if stage == "training" and fields.get("epoch") == number:
            die()

    Claim.progress = progress  # type: ignore[method-assign]


# Points at which the worker dies, in the order in which a job reaches them.
POINTS: dict[str, Callable[[], None]] = {
    "claimed": die_before(learning_job, "load_task"),
    "in the first epoch": lambda: _die_in_epoch(1),
    "in the second epoch": lambda: _die_in_epoch(2),
    "trained": die_after(learning_job, "train_task"),
    "release written": die_after(ShardStore, "adopt_release"),
    "shard written": die_after(ShardStore, "write_shard"),
    "moments planned": die_after(video_decoding, "plan_moments"),
    "moments decoded": die_after(VideoDecoder, "sample"),
    "indexed": die_after(learning_job, "index_task"),
    "evaluating": die_before(learning_job, "evaluate_release"),
    "evaluated": die_after(learning_job, "evaluate_task"),
    "manifest replaced": die_after(ShardStore, "publish"),
    "committed": die_before(learning_job, "clean_up"),
}
TWO_EPOCHS = {"epochs": 2, "batch_size": 3, "experts": 2, "rank": 2}  # two optimizer steps per epoch


def _run(task: str, point: str | None = None) -> int:
    """Exit code of a process that runs the learning job of a task, and dies at ``point``."""
    return run_in_process(learning_job.run_learning_job, task, POINTS[point] if point else None)


def _sorted_vectors(task: str) -> np.ndarray:
    store = ShardStore(settings().index_dir)
    shard = IndexSnapshot.open(store).shard(task, fingerprint=store.manifest().shards[task].fingerprint)
    return shard.vectors(np.sort(shard.ids))


def _published_moments(task: str) -> list[tuple[float, float]]:
    """Start and end of the published moments, ordered by vector ID."""
    store = ShardStore(settings().index_dir)
    ids = IndexSnapshot.open(store).shard(task, fingerprint=store.manifest().shards[task].fingerprint).ids
    with session_scope() as session:
        rows = session.execute(select(Moment.vector_id, Moment.start_seconds, Moment.end_seconds)).all()
    assert sorted(ids[ids >= FIRST_MOMENT_ID].tolist()) == sorted(vector_id for vector_id, _, _ in rows)
    return [(start, end) for _, start, end in sorted(rows)]


@pytest.mark.slow
def test_job_killed_at_every_point_ends_with_the_same_vectors(
    post_videos: Post,
    tmp_path: Path,
    settings_factory: Callable[..., object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A task whose job is killed at each point in turn ends like a task whose job runs undisturbed."""
    fields = {"frames": 2, "torch_threads": 1, "lease_seconds": 600}
    monkeypatch.setattr(state_machine, "MAX_ATTEMPTS", 20)
    monkeypatch.setattr(state_machine, "MAX_LOST_TRAININGS", 20)
    settings_factory(tmp_path / "killed", **fields)
    first, killed = post_videos("day"), post_videos("night", seconds={0: 30, 3: 45}, settings=TWO_EPOCHS)
    assert _run(first) == 0
    for point in POINTS:
        assert _run(killed, point) == -signal.SIGKILL, point
        published = ShardStore(settings().index_dir).manifest().shards
        assert (killed in published) == (point in ("manifest replaced", "committed")), point
        if point == "committed":
            break
        assert commands.get_task(killed).state in ("probing", "training", "indexing", "evaluating"), point
        assert commands.get_task(first).state == "ready"
        expire_leases(killed)
    assert commands.get_task(killed).state == "ready"
    with session_scope() as session:
        counts = [
            session.scalar(select(func.count()).select_from(table)) for table in (Release, Shard, Recall)
        ]
    assert counts == [2, 2, 4 + 8 + 2]
    assert _published_moments(killed) == [
        (0, 20),
        (10, 30),
        *[(start, start + 18) for start in (0, 9, 18, 27)],
    ]
    # Decoded moments are in the folder of the checkpoints, which the next task removes.
    temporary = {
        path.relative_to(settings().data_dir).parts[:2] for path in settings().data_dir.rglob("moments*.npy")
    }
    assert temporary <= {("checkpoints", killed)}
    # Every attempt resumed from the last checkpoint: two steps per epoch, and no saved epoch is repeated.
    epochs = [e.data["epoch"] for e in events_after(killed) if "epoch" in e.data]
    assert epochs == [1, 1, 1, 2, 2, 2]
    vectors, figures = _sorted_vectors(killed), read_recall_matrix()

    settings_factory(tmp_path / "alone", **fields)
    other, alone = post_videos("day"), post_videos("night", seconds={0: 30, 3: 45}, settings=TWO_EPOCHS)
    assert [_run(task) for task in (other, alone)] == [0, 0]
    assert commands.get_task(alone).state == "ready"
    assert np.array_equal(_sorted_vectors(alone), vectors)
    assert len(vectors) == 6 + 6
    assert figures_without_ids(read_recall_matrix()) == figures_without_ids(figures)


@pytest.mark.slow
@pytest.mark.parametrize("max_attempts", [1, 3])
def test_published_task_becomes_ready_if_every_evaluation_kills_its_worker(
    max_attempts: int, post_videos: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_machine, "MAX_ATTEMPTS", max_attempts)
    task, next_one = post_videos("day"), post_videos("night")
    assert _run(task, "manifest replaced") == -signal.SIGKILL
    expire_leases(task)
    for _ in range(1, max_attempts - 1):
        assert _run(task, "evaluating") == -signal.SIGKILL
        expire_leases(task)
    assert _run(task, "evaluating") == 0, "the last attempt skips the evaluation"
    view = commands.get_task(task)
    assert (view.state, view.error, view.learned_order) == ("ready", None, 1)
    assert "several times" in str(view.progress.unmeasured)
    assert any("could not be measured" in e.data.get("message", "") for e in events_after(task))
    assert read_recall_matrix().after == []
    assert _run(next_one) == 0
    assert commands.get_task(next_one).progress.unmeasured is None
    assert read_recall_matrix().after == ["night"]
    assert read_recall_matrix().tasks == ["day", "night"], "the next row evaluates both tasks"


@pytest.mark.slow
def test_published_task_becomes_ready_if_all_its_videos_are_deleted(post_videos: Post) -> None:
    task = post_videos("day")
    assert _run(task, "manifest replaced") == -signal.SIGKILL
    delete_videos(f"day-{number}" for number in range(6))
    expire_leases(task)
    assert _run(task) == 0
    view = commands.get_task(task)
    assert (view.state, view.error, view.learned_order, view.counts.videos) == ("ready", None, 1, 0)


@pytest.mark.slow  # as many processes as attempts
def test_published_task_has_unlimited_attempts(post_videos: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last attempt may be killed as well; the reconciler then allows another one."""
    monkeypatch.setattr(state_machine, "MAX_ATTEMPTS", 2)
    task = post_videos("day")
    assert _run(task, "manifest replaced") == -signal.SIGKILL
    for _ in range(2):
        expire_leases(task)
        assert lifecycle.reconcile().recovered == ()
        assert _run(task, "claimed") == -signal.SIGKILL
        assert commands.get_task(task).state == "evaluating"
    expire_leases(task)
    assert _run(task) == 0
    assert commands.get_task(task).state == "ready"


@pytest.mark.slow
def test_task_that_kills_every_worker_fails_and_the_next_one_is_learned(post_videos: Post) -> None:
    fatal, next_one = post_videos("day"), post_videos("night")
    for _ in range(state_machine.MAX_LOST_TRAININGS):
        assert _run(fatal, "in the first epoch") == -signal.SIGKILL
        expire_leases(fatal)
    view = commands.get_task(fatal)
    assert view.state == "failed"
    assert "killed 2 times" in str(view.error)
    assert _run(next_one) == 0
    assert commands.get_task(next_one).state == "ready"
