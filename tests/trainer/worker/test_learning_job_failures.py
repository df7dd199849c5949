"""Failures of the learning job: errors, lost leases, cancellation, and damaged or missing files."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from sqlalchemy import text

from cinestrata_schemas.problems import Action
from cinestrata_schemas.tasks import AppendSpec
from index.shard_store import ShardStore
from service.catalog.database import now, session_scope
from service.catalog.tables import Task
from service.celery_worker import probe
from service.core.settings import settings
from service.tasks import commands, lifecycle
from service.tasks.commands import events_after
from service.tasks.lifecycle import Publication
from tests.index.disk_faults import flip_byte
from tests.trainer.worker.conftest import TWO_EPOCHS, write_video
from tests.trainer.worker.library_state import interrupt, learn, open_store, recall_cells, run_job
from trainer.errors import ReplicaKilled, TrainingDiverged
from trainer.methods.ffa_tame import FfaTame
from trainer.published_library import Library
from trainer.worker import append_job, learning_job

Post = Callable[..., str]

pytestmark = pytest.mark.usefixtures("library")


def test_published_task_becomes_ready_if_evaluation_fails(
    post_videos: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker dies after it replaced the manifest, and the next one has too little memory for the evaluation."""
    task = post_videos("day")
    with monkeypatch.context() as patch:
        patch.setattr(Publication, "complete", interrupt)
        with pytest.raises(KeyboardInterrupt):
            learning_job.run_learning_job(task)
    assert task in open_store().manifest().shards

    def run_out_of_memory(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(learning_job, "evaluate_release", run_out_of_memory)
    assert learn(task).progress.unmeasured == "CUDA out of memory"
    assert recall_cells() == {}
    assert any("could not be measured: CUDA" in e.data.get("message", "") for e in events_after(task))


def test_missing_or_replaced_video_fails_the_task_and_names_it(post_videos: Post) -> None:
    task = post_videos("day")
    shutil.rmtree(settings().cache_dir)
    video = settings().media_root / "day" / "3.mp4"
    content = video.read_bytes()
    video.unlink()
    view = run_job(task)
    assert view.state == "failed"
    assert "'day-3'" in str(view.error)
    assert str(settings().data_dir) not in str(view.error)
    assert view.error_hint
    assert view.remedy == Action(name="retry_task", id=task)
    replaced = post_videos("night")
    shutil.rmtree(settings().cache_dir)
    (settings().media_root / "night" / "2.mp4").write_bytes(content)
    view = run_job(replaced)
    assert view.state == "failed"
    assert "'night-2': the file differs from the accepted one" in str(view.error)


ERRORS = [
    (MemoryError(), "Out of memory", "batch_size"),
    (torch.OutOfMemoryError("CUDA out of memory. Tried"), "Out of memory", "batch_size"),
    (
        torch.AcceleratorError("CUDA error: no CUDA-capable device is detected"),
        "The worker's GPU failed (CUDA error: no",
        "CUDA_VISIBLE_DEVICES",
    ),
    (torch.AcceleratorError("CUDA error: out of memory\nCUDA kernel"), "Out of memory", "batch_size"),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "Out of memory", "batch_size"),
    (RuntimeError("shapes cannot be multiplied"), "RuntimeError: shapes cannot", "worker's log"),
]


def test_unexpected_errors_fail_the_task_with_reason_and_hint(
    post_videos: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, errors = post_videos("day"), [error for error, _, _ in ERRORS]
    monkeypatch.setattr(FfaTame, "loss", Mock(side_effect=errors))
    for error, reason, hint in ERRORS:
        view = run_job(task)
        assert view.state == "failed", error
        assert reason in str(view.error)
        assert hint in str(view.error_hint)
        commands.retry_task(task)
        probe(task)


def test_divergence_names_the_step_and_removes_checkpoints(
    post_videos: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = FfaTame.loss
    calls: list[int] = []

    def loss(self: FfaTame, frames: Any, texts: Any, references: Any) -> torch.Tensor:
        calls.append(1)
        return original(self, frames, texts, references) * (float("nan") if len(calls) == 3 else 1)

    monkeypatch.setattr(FfaTame, "loss", loss)
    view = run_job(post_videos("day", settings=TWO_EPOCHS))
    assert view.state == "failed"
    assert "diverged: the loss became nan at step 3 with learning rate" in str(view.error)
    assert not any(settings().checkpoints_dir.rglob("*"))
    assert open_store().manifest().shards == {}


def test_killed_training_process_gives_the_task_back(
    post_videos: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = post_videos("day")

    def die(*_: Any, **__: Any) -> None:
        raise ReplicaKilled("a training process was killed by signal 9")

    with monkeypatch.context() as patch:
        patch.setattr(learning_job, "train_task", die)
        view = run_job(task)
    assert (view.state, view.error) == ("training", None)
    assert any("signal 9" in str(event.data) for event in events_after(task))
    assert learn(task).state == "ready"


@pytest.mark.slow
def test_method_that_cannot_continue_the_library_starts_another_lineage(
    learned_task: str, post_videos: Post
) -> None:
    night = learn(post_videos("night", method="finetune", settings={"epochs": 1}))
    assert any("starts another lineage" in str(event.data) for event in events_after(night.id))
    bare = learn(post_videos("bare", captions=0))
    noon = learn(post_videos("noon"))
    first, second = Library(open_store()).lineages
    assert (first.releases[0], [task.name for task in first.tasks]) == (noon.release, ["day", "noon"])
    assert second.releases == (bare.release, night.release)
    assert {(i, t) for i, t, _, _ in recall_cells() if i} == {(1, 1), (2, 2), (3, 2), (4, 1), (4, 4)}


def test_worker_without_lease_publishes_nothing(post_videos: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    task = post_videos("day")
    original = ShardStore.write_shard

    def write_shard(self: ShardStore, **fields: Any) -> Any:
        entry = original(self, **fields)
        with session_scope(write=True) as session:  # as another worker's claim does
            row = session.get_one(Task, task)
            row.fencing_token += 1
        return entry

    monkeypatch.setattr(ShardStore, "write_shard", write_shard)
    assert run_job(task).state == "indexing"
    assert open_store().manifest().shards == {}


@pytest.mark.parametrize("diverges", [False, True])
def test_worker_without_lease_removes_no_checkpoints(
    post_videos: Post, monkeypatch: pytest.MonkeyPatch, *, diverges: bool
) -> None:
    task = post_videos("day")
    checkpoint = settings().checkpoints_dir / (task if diverges else "tsk_next") / "epoch-00001.9"

    def lose_lease(*_: Any, **__: Any) -> None:
        checkpoint.mkdir(parents=True)  # saved by another worker in the meantime
        with session_scope(write=True) as session:
            session.get_one(Task, task).fencing_token += 1
        if diverges:
            raise TrainingDiverged("the loss became nan")

    monkeypatch.setattr(learning_job, "train_task" if diverges else "restore_task_frames", lose_lease)
    assert run_job(task).state == "training"
    assert checkpoint.is_dir()


def test_task_is_learned_with_a_missing_shard_of_an_earlier_task(
    learned_task: str, post_videos: Post
) -> None:
    shutil.rmtree(open_store().shard_folder(open_store().manifest().shards[learned_task].id))
    learn(post_videos("night"))
    assert {(i, t) for i, t, _, _ in recall_cells()} == {(0, 1), (1, 1), (0, 2), (2, 2)}


@pytest.mark.slow
def test_nothing_is_published_without_the_manifest(learned_task: str, post_videos: Post) -> None:
    store = open_store()
    aside = store.manifest_path.rename(store.root / "manifest.aside")
    two = post_videos("night")
    view = run_job(two)
    assert view.state == "failed"
    assert "manifest.json is missing" in str(view.error)
    assert "backup" in str(view.error_hint)
    assert not store.manifest_path.exists()
    aside.rename(store.manifest_path)
    commands.retry_task(two)
    probe(two)
    learn(two)
    assert list(store.manifest().shards) == [learned_task, two]


def test_damaged_release_fails_the_next_task(learned_task: str, post_videos: Post) -> None:
    release = open_store().manifest().release
    assert release is not None
    flip_byte(open_store().release_folder(release) / "weights.safetensors")
    view = run_job(post_videos("night"))
    assert view.state == "failed"
    assert "was altered" in str(view.error)
    assert "backup" in str(view.error_hint)


@pytest.fixture
def lose_transaction(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """``lose_transaction(step, task)``: when the store is about to do ``step``, the database ends the transaction of
    the publication, as it does when it restarts, and the task is given to another worker."""

    def make(step: str, task: str) -> None:
        original = getattr(ShardStore, step)

        def lose(store: ShardStore, *given: Any, **fields: Any) -> Any:
            monkeypatch.setattr(ShardStore, step, original)
            with session_scope(write=True) as session:
                ended = session.scalars(
                    text(
                        "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity "
                        "WHERE state = 'idle in transaction' AND datname = current_database()"
                    )
                ).all()
                assert ended == [True]
                session.get_one(Task, task).lease_expires_at = now(session) - timedelta(seconds=1)
            assert lifecycle.reconcile().recovered == (task,)
            return original(store, *given, **fields)

        monkeypatch.setattr(ShardStore, step, lose)

    return make


def test_previous_owner_publishes_nothing(
    library: Any,
    tmp_path: Path,
    settings_factory: Callable[..., Any],
    post_videos: Callable[..., str],
    lose_transaction: Callable[[str, str], None],
) -> None:
    settings_factory(tmp_path, "postgresql", frames=2, torch_threads=1, lease_seconds=600)
    task = post_videos("day", videos=2, tests=0, method="zero_shot", settings={})
    lose_transaction("publish", task)
    learning_job.run_learning_job(task)
    assert task not in open_store().manifest().shards
    learn(task)

    write_video(settings().media_root / "new" / "red.mp4", "red")
    spec = AppendSpec.model_validate({"videos": [{"uri": "new/red.mp4"}]})
    append = commands.append_videos(task, spec).task.id
    probe(append)
    lose_transaction("append", append)
    append_job.run_append_job(append)
    assert len(open_store().manifest().segments(task)) == 1
    append_job.run_append_job(append)
    assert commands.get_task(append).state == "ready"
    assert len(open_store().manifest().segments(task)) == 2
