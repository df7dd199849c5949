"""The learning job on a real catalog, real videos and a real index, called without Celery messages."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import numpy as np
import pytest
from sqlalchemy import select

from models.releases.release_files import read_lineage
from models.releases.release_state import ParentRelease
from models.routing import DEFAULT_PRIOR
from service.catalog.database import session_scope
from service.catalog.tables import Release, Shard, Video
from service.core.settings import settings
from service.library.recall_matrix import read_recall_matrix
from service.storage import index_manifest
from service.storage.index_manifest import library_store
from service.tasks import commands
from service.tasks.commands import events_after
from service.tasks.lifecycle import state_machine
from tests.milvus import Milvus
from tests.trainer.worker.conftest import TWO_EPOCHS
from tests.trainer.worker.library_state import (
    call_before,
    current_release,
    learn,
    open_store,
    recall_cells,
    run_job,
    shard_vectors,
)
from trainer.evaluation import recall_row
from trainer.published_library import Library
from trainer.worker import learning_job

Post = Callable[..., str]

pytestmark = pytest.mark.usefixtures("library")


def test_two_tasks_are_learned_published_and_evaluated(post_videos: Post) -> None:
    one, two = post_videos("day", captions=2), post_videos("night")
    assert run_job(two).state == "probing"  # an earlier task is not learned yet
    first = learn(one)
    assert (first.learned_order, first.trained) == (1, True)
    messages = [event.data["message"] for event in events_after(one) if event.kind == "log"]
    assert any(message.startswith("Learned from 4 captioned videos; in so small") for message in messages)
    before = shard_vectors(one)
    second = learn(two)
    newest = open_store().manifest().release
    assert (second.learned_order, second.trained, second.release) == (2, True, newest)
    assert second.progress.stage == "ready"

    with session_scope() as session:
        accepted = {
            v.vector_id: v.task_id for v in session.scalars(select(Video).where(Video.status == "accepted"))
        }
        shards = {s.task_id: s for s in session.scalars(select(Shard))}
        releases = [r.task_id for r in session.scalars(select(Release).order_by(Release.learned_order))]
    assert releases == [one, two]
    for task in (one, two):  # every accepted video of any split
        assert sorted(shard_vectors(task)) == sorted(i for i, owner in accepted.items() if owner == task)
        assert shards[task].count == 6
        assert shards[task].id == open_store().manifest().shards[task].id
    for vector_id, vector in shard_vectors(one).items():
        assert np.array_equal(vector, before[vector_id])

    manifest = open_store().manifest()
    earlier, newest = (
        read_lineage(open_store().release_folder(manifest.shards[t].release)) for t in (one, two)
    )
    assert newest.parent == ParentRelease(manifest.shards[one].release, 1)
    assert [task.task_id for task in newest.tasks] == [two]
    rows = [earlier.profiles.to_dense()[0], newest.profiles.to_dense()[0]]
    assert np.array_equal(current_release().profiles.to_dense(), rows)
    assert all(row.any() for row in rows)

    recalls = recall_cells()
    galleries = ("local", "global", "local_all", "global_all")
    cells = {(i, t, "pinned", g) for i, t in ((1, 1), (2, 1), (2, 2)) for g in galleries}
    zero_shot = {(0, t, "pinned", "local") for t in (1, 2)}
    assert set(recalls) == cells | zero_shot
    assert {r.queries for r in recalls.values()} == {2}  # the first caption of each held-out video
    assert recalls[2, 1, "pinned", "local"].meanr == recalls[1, 1, "pinned", "local"].meanr
    assert recalls[1, 1, "pinned", "local"].r10 == 1  # two videos
    assert recalls[1, 1, "pinned", "global"].routing1 == 1  # only one task to route to
    assert recalls[2, 1, "pinned", "local"].routing1 is None
    view = read_recall_matrix()
    assert view.bwf_local == 0
    assert None not in view.zero_shot

    assert [t.task_id for t in current_release().tasks] == [one, two]
    assert not list(settings().checkpoints_dir.iterdir())


@pytest.mark.slow
def test_row_of_a_large_library_measures_a_sample(
    learned_task: str, post_videos: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recall_row, "MAX_MEASURED_TASKS", 1)
    learn(post_videos("night"))
    learn(post_videos("dusk"))
    measured = {(1, 1), (2, 1), (2, 2), (3, 1), (3, 3)}
    for gallery in ("local", "global"):
        assert {(i, t) for i, t, _, g in recall_cells() if g == gallery and i} == measured
    view = read_recall_matrix()
    assert [cell is None for cell in view.matrix_local[2]] == [False, True, False]
    assert view.bwf_local is not None


def test_videos_of_earlier_tasks_are_not_read(learned_task: str, post_videos: Post) -> None:
    before = shard_vectors(learned_task)
    shutil.rmtree(settings().media_root / "day")
    shutil.rmtree(settings().cache_dir)
    shutil.rmtree(settings().thumbnails_dir)
    learn(post_videos("night"))
    assert all(np.array_equal(vector, before[i]) for i, vector in shard_vectors(learned_task).items())
    assert recall_cells()[2, 1, "pinned", "global_all"].queries == 2


@pytest.mark.slow
def test_sums_stay_with_two_releases(post_videos: Post) -> None:
    for name in ("day", "night", "dusk"):
        learn(post_videos(name, method="analytic", settings={}))
    library = Library(open_store())
    releases = list(library.manifest.releases)
    assert list(library.manifest.training) == releases[1:]
    assert library.release(releases[-1]).tensors["sums.count"] == 12
    assert library.release(releases[0]).is_partial


@pytest.mark.slow
def test_task_without_captions_is_indexed_with_the_current_release(post_videos: Post) -> None:
    uncaptioned = post_videos("uncaptioned", captions=0)
    first = learn(uncaptioned)
    assert first.trained is False
    assert current_release().method == "zero_shot"
    captioned = post_videos("captioned")
    assert learn(captioned).trained is True
    assert current_release().method == "ffa_tame"
    weights = current_release().tensors
    again = post_videos("again", captions=0, method="finetune", settings={"epochs": 2})
    third = learn(again)
    assert (third.trained, third.learned_order) == (False, 3)
    state = current_release()
    assert state.method == "ffa_tame"
    assert [t.task_id for t in state.tasks] == [uncaptioned, captioned, again]
    unchanged = [name for name in weights if name not in ("tame.prototypes", "tame.task_experts")]
    assert all(np.array_equal(state.tensors[name], weights[name]) for name in unchanged)
    assert state.tasks[2].fingerprint == state.tasks[1].fingerprint
    assert len(shard_vectors(again)) == 6
    assert {t for i, t, _, _ in recall_cells()} == {2}  # only the second task has queries
    assert {i for i, _, _, _ in recall_cells()} == {0, 2, 3}


def test_zero_shot_task_is_indexed_and_evaluated(post_videos: Post) -> None:
    assert learn(post_videos("day", method="zero_shot", settings={})).trained is False
    recalls = recall_cells()
    assert recalls[0, 1, "pinned", "local"].meanr == recalls[1, 1, "pinned", "local"].meanr


def test_missing_cached_frames_are_decoded_again(post_videos: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    task, restored = post_videos("day"), {}
    frames = sorted(settings().cache_dir.rglob("*.npy"))

    def read() -> None:
        restored.update({path: path.read_bytes() for path in frames})

    call_before(monkeypatch, learning_job, "train_task", read)
    before = frames[1].read_bytes()
    frames[0].unlink()
    frames[1].write_bytes(b"broken")
    learn(task)
    assert len(restored) == 6
    assert restored[frames[1]] == before


def test_progress_events_contain_epochs_and_losses(post_videos: Post) -> None:
    task = post_videos("day", settings=TWO_EPOCHS)
    learn(task)
    events = [e.data for e in events_after(task) if e.kind == "progress"]
    stages = list(dict.fromkeys(e["stage"] for e in events))
    expected = ["training", "indexing", "evaluating", "ready"]
    assert [stage for stage in stages if stage in expected] == expected
    training = [e for e in events if e["stage"] == "training" and "epoch" in e]
    assert [(e["epoch"], e["epochs"]) for e in training] == [(1, 2), (1, 2), (2, 2), (2, 2)]
    assert all(e["loss"] > 0 and e["videos_per_second"] > 0 for e in training)


@pytest.mark.slow
def test_release_has_confidence_model_with_enough_validation_captions(post_videos: Post) -> None:
    def post(name: str, validation: int) -> str:
        task = post_videos(name, captions=4, tests=2)
        with session_scope(write=True) as session:
            query = select(Video).where(Video.task_id == task).order_by(Video.vector_id)
            for video in session.scalars(query).all()[2 : 2 + validation]:
                video.effective_split = "val"
        return task

    learn(post("day", 1))
    assert current_release().confidence is None, "four captions are too few"
    learn(post("night", 3))
    fitted = current_release().confidence
    assert fitted is not None
    assert (fitted.mode, fitted.prior, fitted.captions) == ("pinned", DEFAULT_PRIOR, 16)
    with session_scope() as session:
        metrics = [r.metrics for r in session.scalars(select(Release).order_by(Release.learned_order))]
    assert metrics == [{}, {"calibration_error": fitted.error}]


@pytest.mark.slow
def test_task_waits_for_milvus(
    post_videos: Callable[..., str], milvus_server: Milvus, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("milvus_lite")

    def configure_milvus(uri: str) -> None:
        monkeypatch.setenv("CINESTRATA_VECTOR_STORE", "milvus")
        monkeypatch.setenv("CINESTRATA_MILVUS__URI", uri)
        monkeypatch.setattr(index_manifest, "MILVUS_TIMEOUT_SECONDS", 3)
        settings.cache_clear()

    configure_milvus("http://127.0.0.1:9")
    task = post_videos("day")
    monkeypatch.setattr(state_machine, "_FIRST_PAUSE", 0.0)
    waiting = run_job(task)
    assert waiting.state == "indexing"
    assert waiting.progress.stage == "waiting for the vector store"
    assert any(
        "Milvus at http://127.0.0.1:9" in event.data.get("message", "")
        for event in commands.events_after(task)
    )
    assert library_store(settings()).manifest().shards == {}
    configure_milvus(milvus_server.uri)
    learn(task)
    store = library_store(settings())
    (shard,) = store.manifest().shards.values()
    assert shard.place.startswith("milvus:")
    store.check(shard, "bytes")
    assert not list(settings().index_dir.rglob("*.faiss"))
