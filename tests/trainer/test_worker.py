"""The learning job on a real catalog, real videos and a real index; only the messages are left out."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sqlalchemy import select

from index.index_snapshot import IndexSnapshot
from index.shard_store import ShardStore
from models.releases.release_files import read_lineage, read_release
from models.releases.release_lineage import ParentRelease
from models.releases.release_state import ReleaseState
from service.catalog.database import session_scope
from service.catalog.tables import Recall, Release, Shard, Task, Video
from service.celery_worker import probe
from service.core.schemas import TaskDetails
from service.core.settings import settings
from service.library.recall_matrix import read_recall_matrix
from service.tasks import commands
from service.tasks.lifecycle import Publication
from service.tasks.task_events import events_after
from trainer import task_pipeline as learning
from trainer import training_loop
from trainer.errors import TrainingDiverged
from trainer.evaluation.rank_ledger import RankLedger, read_ledger
from trainer.evaluation.recall_row import RecallRow
from trainer.methods.ffa_tame import FfaTame
from trainer.training_checkpoint import Checkpoint, CheckpointStore
from trainer.worker import learning_job, release_metrics

Post = Callable[..., str]

pytestmark = pytest.mark.usefixtures("library")


def _learn(task: str) -> TaskDetails:
    learning_job.run_learning_job(task)
    return commands.get_task(task)


def _ready(task: str) -> TaskDetails:
    view = _learn(task)
    assert (view.state, view.error) == ("ready", None)
    return view


def _store() -> ShardStore:
    return ShardStore(settings().index_dir)


def _current() -> ReleaseState:
    store = _store()
    release = store.manifest().release
    assert release is not None
    return read_release(
        store.release_folder(release), read_parent=lambda earlier: read_lineage(store.release_folder(earlier))
    )


def _vectors(task: str) -> dict[int, np.ndarray]:
    store = _store()
    shard = IndexSnapshot.open(store).shard(task, fingerprint=store.manifest().shards[task].fingerprint)
    return dict(zip(shard.ids.tolist(), shard.vectors(shard.ids), strict=True))


def _recalls() -> dict[tuple[int, int, str, str], Recall]:
    with session_scope() as session:
        return {
            (r.release_order, r.task_order, r.mode, r.gallery): r
            for r in session.scalars(select(Recall)).all()
        }


def test_two_tasks_are_learned_laid_down_and_measured(post_videos: Post) -> None:
    one, two = post_videos("day", captions=2), post_videos("night")
    assert _learn(two).state == "probing"  # not its turn
    first = _ready(one)
    assert (first.learned_order, first.trained) == (1, True)
    before = _vectors(one)
    second = _ready(two)
    assert (second.learned_order, second.trained, second.release) == (2, True, _store().manifest().release)
    assert second.progress.stage == "ready"

    with session_scope() as session:
        accepted = {
            v.vector_id: v.task_id for v in session.scalars(select(Video).where(Video.status == "accepted"))
        }
        shards = {s.task_id: s for s in session.scalars(select(Shard))}
        releases = [r.task_id for r in session.scalars(select(Release).order_by(Release.learned_order))]
    assert releases == [one, two]
    for task in (one, two):  # every accepted video, whatever its split
        assert sorted(_vectors(task)) == sorted(i for i, owner in accepted.items() if owner == task)
        assert shards[task].count == 6
        assert shards[task].id == _store().manifest().shards[task].id
    for vector_id, vector in _vectors(one).items():
        assert np.array_equal(vector, before[vector_id])

    manifest = _store().manifest()
    earlier, newest = (read_lineage(_store().release_folder(manifest.shards[t].release)) for t in (one, two))
    assert newest.parent == ParentRelease(manifest.shards[one].release, 1)
    assert [task.task_id for task in newest.tasks] == [two]
    assert [task.task_id for task in _current().tasks] == [one, two]
    rows = [earlier.profiles.to_dense()[0], newest.profiles.to_dense()[0]]
    assert np.array_equal(_current().profiles.to_dense(), rows)
    assert all(row.any() for row in rows)

    recalls = _recalls()
    galleries = ("local", "global", "local_all", "global_all")
    cells = {(i, t, "pinned", g) for i, t in ((1, 1), (2, 1), (2, 2)) for g in galleries}
    zero_shot = {(0, t, "pinned", "local") for t in (1, 2)}
    assert set(recalls) == cells | zero_shot
    assert {r.queries for r in recalls.values()} == {2}  # the first caption of each held-out video
    assert recalls[2, 1, "pinned", "local"].meanr == recalls[1, 1, "pinned", "local"].meanr
    assert recalls[1, 1, "pinned", "local"].r10 == 1  # two videos
    assert recalls[1, 1, "pinned", "global"].routing1 == 1  # only one task to route to
    assert recalls[2, 1, "pinned", "local"].routing1 is None
    assert read_recall_matrix("latest").matrix_local == [], "not measured, and not shown as nothing found"
    assert read_recall_matrix("latest").modes == ["pinned"]
    view = read_recall_matrix("pinned")
    assert view.bwf_local == 0
    assert None not in view.zero_shot

    assert [t.task_id for t in _current().tasks] == [one, two]
    assert not list(settings().checkpoints_dir.iterdir())


def test_other_query_modes_are_measured_where_they_are_wanted(
    post_videos: Post, settings_factory: Callable[..., Any], tmp_path: Path
) -> None:
    _ready(post_videos("day"))
    settings_factory(tmp_path, measured_modes="all")
    _ready(post_videos("night"))
    settings_factory(tmp_path, measured_modes="served", query_mode="latest")
    _ready(post_videos("dusk"))
    measured = {(i, m) for i, _, m, _ in _recalls()} - {(0, "pinned"), (0, "latest")}
    assert measured == {(1, "pinned"), (2, "pinned"), (2, "latest"), (3, "latest")}
    view = read_recall_matrix("pinned")
    assert [[cell is None for cell in row] for row in view.matrix_local] == [[False, True], [False, False]]
    assert read_recall_matrix().mode == "latest"


def test_a_row_goes_on_from_the_ledger_and_equals_one_afresh(
    post_videos: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five tasks; the file is broken before the fourth, and cannot be written after the fifth."""
    path, known = settings().index_dir / "ledger.npz", []
    original = learning.evaluate_row

    def evaluate_row(*args: Any, ledger: RankLedger, **fields: Any) -> RecallRow:
        known.append(len(ledger["pinned"].task_ranks) if ledger else 0)
        row = original(*args, ledger=ledger, **fields)
        assert row == original(*args, **fields)
        whole = original(*args, **{**fields, "full": True})
        for gallery, recalls in row.recalls["pinned"].items():
            assert recalls == whole.recalls["pinned"][gallery]
        assert row.routing == whole.routing
        return row

    monkeypatch.setattr(learning, "evaluate_row", evaluate_row)
    for number in range(5):
        if number == 3:
            path.write_bytes(path.read_bytes()[:-9])
        if number == 4:
            path.with_suffix(".new").mkdir()
        task = post_videos(
            f"domain-{number}", settings={"epochs": 1, "batch_size": 3, "experts": 2, "rank": 2}
        )
        _ready(task)
    assert known == [0, 1, 2, 0, 4]
    assert len(read_ledger(path)["pinned"].task_ranks) == 4
    assert {(i, t) for i, t, _, _ in _recalls() if i == 5} == {(5, t) for t in (1, 2, 3, 4, 5)}


def test_a_task_that_fails_after_it_was_measured_leaves_the_ledger_as_it_was(
    post_videos: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    _ready(post_videos("day"))
    path = settings().index_dir / "ledger.npz"
    before = path.read_bytes()
    task = post_videos("night")
    original = ShardStore.publish

    def publish(self: ShardStore, **fields: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ShardStore, "publish", publish)
    with contextlib.suppress(OSError):
        _learn(task)
    assert commands.get_task(task).state != "ready"
    assert path.read_bytes() == before
    monkeypatch.setattr(ShardStore, "publish", original)


def test_what_is_laid_down_is_ready_though_it_cannot_be_measured(
    post_videos: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker died once the manifest was replaced, and the next one has too little memory to measure anything."""
    task = post_videos("day")

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Publication, "complete", killed)
        with pytest.raises(KeyboardInterrupt):
            learning_job.run_learning_job(task)
    assert task in _store().manifest().shards

    def too_large(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(release_metrics, "evaluate_release", too_large)
    assert _ready(task).progress.unmeasured == "CUDA out of memory"
    assert _recalls() == {}
    assert any("could not be measured: CUDA" in e.data.get("message", "") for e in events_after(task))


def test_old_videos_are_never_read_again(post_videos: Post) -> None:
    one = post_videos("day")
    _ready(one)
    kept = _vectors(one)
    shutil.rmtree(settings().media_root / "day")
    shutil.rmtree(settings().cache_dir)
    shutil.rmtree(settings().thumbnails_dir)
    _ready(post_videos("night"))
    assert all(np.array_equal(vector, kept[i]) for i, vector in _vectors(one).items())
    assert _recalls()[2, 1, "pinned", "global_all"].queries == 2


def test_cross_task_negatives_are_training_vectors_of_earlier_tasks(
    post_videos: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = post_videos("day", videos=9, tests=4)
    _ready(one)
    seen: list[torch.Tensor | None] = []
    original = FfaTame.loss

    def loss(self: FfaTame, frames: Any, texts: Any, references: torch.Tensor | None) -> torch.Tensor:
        seen.append(references)
        return original(self, frames, texts, references)

    monkeypatch.setattr(FfaTame, "loss", loss)
    _ready(post_videos("night"))
    with session_scope() as session:
        split = {v.vector_id: v.effective_split for v in session.scalars(select(Video))}
    stored = _vectors(one)
    training = {vector.tobytes() for i, vector in stored.items() if split[i] == "train"}
    used = {row.numpy().tobytes() for references in seen if references is not None for row in references}
    assert len(seen) == 6
    assert used == training
    assert len(training) == 5


def test_a_task_without_captions_is_indexed_with_the_current_release(post_videos: Post) -> None:
    bare = post_videos("bare", captions=0)
    first = _ready(bare)
    assert first.trained is False
    assert _current().method == "zero_shot"
    taught = post_videos("taught")
    assert _ready(taught).trained is True
    assert _current().method == "ffa_tame"
    weights = _current().tensors
    again = post_videos("again", captions=0, method="finetune", settings={"epochs": 2})
    third = _ready(again)
    assert (third.trained, third.learned_order) == (False, 3)
    state = _current()
    assert state.method == "ffa_tame"
    assert [t.task_id for t in state.tasks] == [bare, taught, again]
    kept = [name for name in weights if name not in ("tame.prototypes", "tame.task_experts")]
    assert all(torch.equal(state.tensors[name], weights[name]) for name in kept)
    assert state.tasks[2].fingerprint == state.tasks[1].fingerprint
    assert len(_vectors(again)) == 6
    assert {t for i, t, _, _ in _recalls()} == {2}  # only the second has queries
    assert {i for i, _, _, _ in _recalls()} == {0, 2, 3}


def test_zero_shot_indexes_and_measures(post_videos: Post) -> None:
    view = _ready(post_videos("day", method="zero_shot", settings={}))
    assert view.trained is False
    recalls = _recalls()
    assert recalls[0, 1, "pinned", "local"].meanr == recalls[1, 1, "pinned", "local"].meanr


def test_one_training_pair_is_enough(post_videos: Post) -> None:
    assert _ready(post_videos("pair", videos=1, tests=0)).trained is True
    assert _recalls() == {}


def test_frames_that_went_from_the_cache_are_decoded_again(post_videos: Post) -> None:
    task = post_videos("day")
    frames = sorted(settings().cache_dir.rglob("*.npy"))
    before = frames[1].read_bytes()
    frames[0].unlink()
    frames[1].write_bytes(b"broken")
    _ready(task)
    assert frames[1].read_bytes() == before
    assert frames[0].exists()


def test_a_video_that_is_gone_or_another_fails_the_task_in_words(post_videos: Post) -> None:
    task = post_videos("day")
    shutil.rmtree(settings().cache_dir)
    video = settings().media_root / "day" / "3.mp4"
    content = video.read_bytes()
    video.unlink()
    view = _learn(task)
    assert view.state == "failed"
    assert view.error is not None
    assert "'day-3'" in view.error
    assert str(settings().data_dir) not in view.error
    assert view.error_hint is not None
    assert f"POST /tasks/{task}/retry" in view.error_hint
    other = post_videos("night")
    shutil.rmtree(settings().cache_dir)
    (settings().media_root / "night" / "2.mp4").write_bytes(content)
    view = _learn(other)
    assert view.state == "failed"
    assert "'night-2': the file is not the one that was accepted" in str(view.error)


@pytest.mark.parametrize(
    ("error", "reason", "hint"),
    [
        (MemoryError(), "Out of memory", "batch_size"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried"), "Out of memory", "batch_size"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"),
            "Out of memory",
            "batch_size",
        ),
        (RuntimeError("shapes cannot be multiplied"), "RuntimeError: shapes cannot", "worker's log"),
    ],
)
def test_errors_become_words(
    post_videos: Post, monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str, hint: str
) -> None:
    def burst(*_: Any) -> torch.Tensor:
        raise error

    monkeypatch.setattr(FfaTame, "loss", burst)
    view = _learn(post_videos("day"))
    assert view.state == "failed"
    assert reason in str(view.error)
    assert hint in str(view.error_hint)


def test_divergence_names_the_step_and_leaves_no_checkpoint(
    post_videos: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = FfaTame.loss
    steps: list[int] = []

    def loss(self: FfaTame, frames: Any, texts: Any, references: Any) -> torch.Tensor:
        steps.append(1)
        return original(self, frames, texts, references) * (float("nan") if len(steps) == 5 else 1)

    monkeypatch.setattr(FfaTame, "loss", loss)
    view = _learn(post_videos("day"))
    assert view.state == "failed"
    assert "diverged: the loss became nan at step 5 with learning rate" in str(view.error)
    assert not any(settings().checkpoints_dir.rglob("*"))
    assert _store().manifest().shards == {}


def test_wrong_settings_fail_the_task_and_spare_the_next(post_videos: Post) -> None:
    wrong = post_videos("wrong", settings={"epoch": 3})
    right = post_videos("right")
    view = _learn(wrong)
    assert view.state == "failed"
    assert "epoch: Extra inputs" in str(view.error)
    assert _ready(right).learned_order == 1


def test_a_method_that_cannot_continue_the_library_says_so(post_videos: Post) -> None:
    _ready(post_videos("day"))
    view = _learn(post_videos("night", method="finetune", settings={"epochs": 1}))
    assert view.state == "failed"
    assert "cannot continue" in str(view.error)


def test_cancelling_stops_at_the_next_step(post_videos: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    task = post_videos("day")
    original = FfaTame.loss
    steps: list[int] = []

    def loss(self: FfaTame, frames: Any, texts: Any, references: Any) -> torch.Tensor:
        steps.append(1)
        if len(steps) == 3:
            commands.cancel_task(task)
        return original(self, frames, texts, references)

    monkeypatch.setattr(FfaTame, "loss", loss)
    assert _learn(task).state == "cancelled"
    assert len(steps) == 3
    assert _store().manifest().shards == {}
    assert _ready(post_videos("night")).learned_order == 1
    assert not list(settings().checkpoints_dir.iterdir())  # those of the cancelled task went, too


def test_a_worker_that_lost_its_lease_publishes_nothing(
    post_videos: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = post_videos("day")
    original = ShardStore.write_shard

    def write_shard(self: ShardStore, **fields: Any) -> Any:
        entry = original(self, **fields)
        with session_scope(write=True) as session:  # what another worker's claim does
            row = session.get_one(Task, task)
            row.fencing_token += 1
        return entry

    monkeypatch.setattr(ShardStore, "write_shard", write_shard)
    assert _learn(task).state == "indexing"
    assert _store().manifest().shards == {}


@pytest.mark.parametrize("late", ["before it learns", "when it diverged"])
def test_a_worker_that_lost_its_lease_drops_no_checkpoints(
    post_videos: Post, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    task = post_videos("day")
    kept = settings().checkpoints_dir / (task if late == "when it diverged" else "tsk_next") / "epoch-00001.9"

    def lose(*_: Any, **__: Any) -> None:
        kept.mkdir(parents=True)  # what another worker has saved meanwhile
        with session_scope(write=True) as session:
            session.get_one(Task, task).fencing_token += 1
        if late == "when it diverged":
            raise TrainingDiverged("the loss became nan")

    monkeypatch.setattr(
        learning_job, "train_task" if late == "when it diverged" else "restore_task_frames", lose
    )
    assert _learn(task).state == "training"
    assert kept.is_dir()


def test_checkpoints_are_named_by_the_claim_that_wrote_them(
    post_videos: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, seen = post_videos("day"), set()
    original = CheckpointStore.save

    def save(self: CheckpointStore, checkpoint: Checkpoint) -> None:
        original(self, checkpoint)
        with session_scope() as session:
            token = session.get_one(Task, task).fencing_token
        seen.add((token, *(path.name for path in self.folder.iterdir())))

    monkeypatch.setattr(CheckpointStore, "save", save)
    _ready(task)
    assert seen
    assert all(name.endswith(f".{token}") for token, name in seen)


def test_a_damaged_shard_of_an_old_task_does_not_stop_the_next(post_videos: Post) -> None:
    one = post_videos("day")
    _ready(one)
    shutil.rmtree(_store().shard_folder(_store().manifest().shards[one].id))
    _ready(post_videos("night"))
    assert {(i, t) for i, t, _, _ in _recalls()} == {(0, 1), (1, 1), (0, 2), (2, 2)}


def test_nothing_is_laid_down_where_the_manifest_was_lost(post_videos: Post) -> None:
    one = post_videos("day")
    _ready(one)
    store = _store()
    aside = store.manifest_path.rename(store.root / "manifest.aside")
    two = post_videos("night")
    view = _learn(two)
    assert view.state == "failed"
    assert "manifest.json is gone" in str(view.error)
    assert "backup" in str(view.error_hint)
    assert not store.manifest_path.exists()
    aside.rename(store.manifest_path)
    commands.retry_task(two)
    probe(two)
    _ready(two)
    assert list(store.manifest().shards) == [one, two]


def test_a_damaged_release_is_not_built_upon(post_videos: Post) -> None:
    _ready(post_videos("day"))
    release = _store().manifest().release
    assert release is not None
    weights = _store().release_folder(release) / "weights.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    view = _learn(post_videos("night"))
    assert view.state == "failed"
    assert "was altered" in str(view.error)
    assert "backup" in str(view.error_hint)


def test_progress_tells_epochs_and_losses(post_videos: Post) -> None:
    from service.tasks.task_events import events_after

    task = post_videos("day", settings={"epochs": 2, "batch_size": 2, "experts": 2, "rank": 2})
    _ready(task)
    events = [e.data for e in events_after(task) if e.kind == "progress"]
    stages = list(dict.fromkeys(e["stage"] for e in events))
    assert [s for s in stages if s in ("training", "indexing", "evaluating", "ready")] == [
        "training",
        "indexing",
        "evaluating",
        "ready",
    ]
    training = [e for e in events if e["stage"] == "training" and "epoch" in e]
    assert [(e["epoch"], e["epochs"]) for e in training] == [(1, 2), (1, 2), (2, 2), (2, 2)]
    assert all(e["loss"] > 0 and e["videos_per_second"] > 0 for e in training)
    assert training[-1]["eta_seconds"] == 0


def test_the_loop_is_the_one_that_researchers_use() -> None:
    assert learning_job.train_task.__globals__["learn_task"] is training_loop.learn_task


def test_a_release_tells_how_sure_its_searches_are_once_there_are_captions_for_it(post_videos: Post) -> None:
    def post(name: str) -> str:
        task = post_videos(name, captions=4, tests=2)
        with session_scope(write=True) as session:
            videos = session.scalars(
                select(Video).where(Video.task_id == task).order_by(Video.vector_id)
            ).all()
            for video in videos[2:5]:
                video.effective_split = "val"
        return task

    _ready(post("day"))
    assert _current().confidence is None, "twelve captions are too few"
    _ready(post("night"))
    fitted = _current().confidence
    assert fitted is not None
    assert (fitted.mode, fitted.prior, fitted.captions) == ("pinned", settings().routing_prior, 24)
    with session_scope() as session:
        metrics = [r.metrics for r in session.scalars(select(Release).order_by(Release.learned_order))]
    assert metrics == [{}, {"calibration_error": fitted.error}]
