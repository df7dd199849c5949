"""Deletion of videos and tasks during and after learning: deleted videos stay deleted, and learning continues."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select

from index.files.manifest_format import Manifest
from index.files.store_folder import StoreFolder
from index.integrity_audit import audit
from models.releases.release_files import SELF_TEST_TEXTS, read_self_test
from service.catalog.database import session_scope
from service.catalog.tables import Recall, Video
from service.core.errors import Conflict, NotFound
from service.core.settings import settings
from service.library import deletion
from service.library.deletion import delete_task, delete_videos
from service.tasks import commands
from tests.trainer.worker.library_state import (
    call_before,
    catalog_vector_ids,
    learn,
    open_store,
    run_job,
    shard_vectors,
)
from trainer import task_pipeline
from trainer.published_library import Library
from trainer.task_data import StoredVectors
from trainer.worker import catalog_reader, learning_job

Post = Callable[..., str]

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("library")]


def searchable_ids(task: str) -> set[int]:
    """Return the vector IDs of a task that a search can return."""
    return set(shard_vectors(task))


def catalog_ids(task: str) -> set[int]:
    """Return the vector IDs of a task's videos in the catalog."""
    return set(catalog_vector_ids(task).values())


def vector_id(video: str) -> int:
    """Return the vector ID of a video in the catalog."""
    with session_scope() as session:
        return session.scalars(select(Video.vector_id).where(Video.id == video)).one()


@pytest.mark.parametrize(
    ("stage", "video"),
    [
        ("restore_task_frames", "day-3"),
        ("train_task", "day-3"),
        ("index_task", "day-0"),
        ("evaluate_task", "day-0"),
        ("publish_task", "day-3"),
    ],
)
def test_video_deleted_during_learning_is_never_published(
    post_videos: Post, stage: str, video: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A held-out video (day-0) or a training video (day-3) is deleted just before a stage.

    If training misses the frames of the video, the task starts again without it.
    """
    task = post_videos("day")
    number = vector_id(video)

    call_before(monkeypatch, learning_job, stage, lambda: delete_videos([video]))
    # After each replacement of the manifest, whether the deleted video can be found.
    searchable: list[bool] = []
    replace_manifest = StoreFolder.replace_manifest

    def replace_and_search(self: StoreFolder, current: Manifest, changed: Manifest) -> Manifest:
        published = replace_manifest(self, current, changed)
        searchable.append(number in searchable_ids(task))
        return published

    monkeypatch.setattr(StoreFolder, "replace_manifest", replace_and_search)
    for _ in range(2):
        learning_job.run_learning_job(task)
        if commands.get_task(task).state == "ready":
            break
    view = commands.get_task(task)
    assert (view.state, view.error, view.counts.videos) == ("ready", None, 5)
    assert searchable_ids(task) == catalog_ids(task)
    assert number not in searchable_ids(task)
    assert searchable
    assert not any(searchable)


@pytest.mark.parametrize("stage", ["load_task", "restore_task_frames", "train_task", "remaining_videos"])
def test_task_without_remaining_videos_fails_with_hint(
    post_videos: Post, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All videos are deleted just before a stage."""
    task = post_videos("day")
    call_before(
        monkeypatch, learning_job, stage, lambda: delete_videos([f"day-{number}" for number in range(6)])
    )
    for _ in range(2):  # a task that misses frames starts again
        view = run_job(task)
    assert (view.state, view.error) == ("failed", "All accepted videos of the task were deleted.")
    assert view.error_hint == "Add a domain with the videos you want to keep."


def test_deleted_videos_are_excluded_from_negatives_and_evaluation(
    learned_task: str, post_videos: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = {name: vector_id(name) for name in ("day-0", "day-3")}
    delete_videos(list(numbers))
    negatives: list[set[int]] = []
    galleries: list[Any] = []
    init, evaluate_row = StoredVectors.__init__, task_pipeline.evaluate_row

    def watched(self: StoredVectors, sources: Any = ()) -> None:
        negatives.append({int(number) for _, ids in sources for number in ids})
        init(self, sources)

    def measured(encoder: Any, given: Any, *rest: Any, **how: Any) -> Any:
        galleries.extend(given)
        return evaluate_row(encoder, given, *rest, **how)

    monkeypatch.setattr(StoredVectors, "__init__", watched)
    monkeypatch.setattr(task_pipeline, "evaluate_row", measured)
    two = post_videos("night")
    learn(two)
    assert [ids for ids in negatives if ids] == [{vector_id(f"day-{n}") for n in (2, 4, 5)}]
    first = galleries[0]
    assert set(first.shard.ids.tolist()) == catalog_ids(learned_task)
    assert first.held_out.tolist() == [vector_id("day-1")]
    assert [query.vector_id for query in first.queries] == [vector_id("day-1")]
    with session_scope() as session:
        counted = {
            (r.release_order, r.task_order, r.gallery): r.queries
            for r in session.scalars(select(Recall).where(Recall.release_order > 0))
        }
    assert counted[1, 1, "local"] == 2, "figures of earlier releases do not change"
    assert (counted[2, 1, "local"], counted[2, 2, "local"]) == (1, 2)


def test_deleted_vector_of_a_video_in_the_catalog_is_ignored(learned_task: str, post_videos: Post) -> None:
    """The state after a deletion that was killed between the index and the catalog."""
    open_store().delete([vector_id("day-0"), vector_id("day-3")])
    library = Library(open_store())
    memory = library.stored_vectors(catalog_reader.training_video_ids(library))
    assert len(memory) == 3
    assert memory.sample(10, np.random.default_rng(0)).shape[0] == 3  # type: ignore[union-attr]
    learn(post_videos("night"))


def test_release_has_self_test_queries_of_newest_and_older_tasks(
    learned_task: str, post_videos: Post
) -> None:
    two = post_videos("night")
    delete_videos(["day-1"])
    learn(two)
    manifest = open_store().manifest()
    self_test = read_self_test(open_store().release_folder(str(manifest.release)))
    assert self_test is not None
    assert self_test.tasks == [two] * len(SELF_TEST_TEXTS) + [learned_task]
    assert self_test.mode == "pinned"
    assert set(self_test.ids[-1][self_test.ids[-1] >= 0].tolist()) <= searchable_ids(learned_task)
    assert set(self_test.ids[0][self_test.ids[0] >= 0].tolist()) <= searchable_ids(two)


@pytest.mark.parametrize(
    "stage", ["prepare_method", "train_task", "index_task", "evaluate_task", "publish_task"]
)
def test_task_is_learned_while_another_is_deleted_and_compacted(
    learned_task: str, post_videos: Post, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = learned_task, post_videos("night")

    def meanwhile() -> None:
        delete_task(one)
        deletion.compact(one)
        for folder in open_store().folders():
            os.utime(folder, (time.time() - 7200,) * 2)
        deletion.sweep_index()

    call_before(monkeypatch, learning_job, stage, meanwhile)
    with pytest.raises(Conflict, match="cancel it, then delete it"):
        delete_task(two)
    learn(two)
    assert (searchable_ids(one), searchable_ids(two)) == (set(), catalog_ids(two))
    with session_scope() as session:
        assert {r.task_order for r in session.scalars(select(Recall))} == {2}
    assert audit(open_store()).problems == []


def test_cancelled_task_is_deleted_after_its_worker_stopped(
    post_videos: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = post_videos("day")

    def meanwhile() -> None:
        commands.cancel_task(task)
        with pytest.raises(Conflict, match="is indexing; cancel it"):
            delete_task(task)

    call_before(monkeypatch, learning_job, "index_task", meanwhile)
    learning_job.run_learning_job(task)
    assert commands.get_task(task).state == "cancelled"
    assert (settings().checkpoints_dir / task).exists()
    assert len(delete_task(task).deleted) == 6
    assert not (settings().checkpoints_dir / task).exists()
    assert not list(settings().cache_dir.rglob("*.npy"))
    assert not list(settings().thumbnails_dir.glob("*.jpg"))
    with pytest.raises(NotFound):
        commands.get_task(task)
