"""Videos that are deleted while a worker learns, and after it has: none comes back, and the work goes on."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select

from index.files.manifest_format import Manifest
from index.index_snapshot import IndexSnapshot
from index.integrity_audit import audit
from index.shard_store import ShardStore
from service.catalog.database import session_scope
from service.catalog.tables import Recall, Video
from service.core.errors import Conflict, NotFound
from service.core.settings import settings
from service.library import compaction
from service.library.deletion import delete_task, delete_videos
from service.storage import library_paths
from service.tasks import commands
from trainer import task_pipeline
from trainer.evaluation.rank_ledger import read_ledger
from trainer.published_library import Library
from trainer.task_data import StoredVectors
from trainer.worker import catalog_reader, learning_job, release_metrics

Post = Callable[..., str]

pytestmark = pytest.mark.usefixtures("library")


def _ready(task: str) -> None:
    learning_job.run_learning_job(task)
    view = commands.get_task(task)
    assert (view.state, view.error) == ("ready", None)


def _store() -> ShardStore:
    return ShardStore(settings().index_dir)


def _found(task: str) -> set[int]:
    """Vector ids that can be found."""
    store = _store()
    shard = IndexSnapshot.open(store).shard(task, fingerprint=store.manifest().shards[task].fingerprint)
    return set(shard.ids.tolist())


def _rows(task: str) -> set[int]:
    with session_scope() as session:
        return set(session.scalars(select(Video.vector_id).where(Video.task_id == task)))


def _number(video: str) -> int:
    with session_scope() as session:
        return session.scalars(select(Video.vector_id).where(Video.id == video)).one()


@pytest.mark.parametrize(
    "stage", ["restore_task_frames", "train_task", "index_task", "evaluate_task", "publish_task"]
)
@pytest.mark.parametrize("victim", ["day-0", "day-3"], ids=["held out", "for training"])
def test_what_is_deleted_while_it_is_learned_does_not_come_back(
    post_videos: Post, stage: str, victim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Just before each stage; where its frames are missed, the task begins again and is ready all the same."""
    task = post_videos("day")
    original, number = getattr(learning_job, stage), _number(victim)

    def meanwhile(*given: Any, **how: Any) -> Any:
        delete_videos([victim])
        return original(*given, **how)

    monkeypatch.setattr(learning_job, stage, meanwhile)
    shown: list[set[str]] = []
    publish = ShardStore._publish

    def watched(self: ShardStore, current: Manifest, manifest: Manifest) -> Manifest:
        published = publish(self, current, manifest)
        shown.append(set() if number in _found(task) else {victim})
        return published

    monkeypatch.setattr(ShardStore, "_publish", watched)
    for _ in range(2):
        learning_job.run_learning_job(task)
        if commands.get_task(task).state == "ready":
            break
    view = commands.get_task(task)
    assert (view.state, view.error, view.counts.videos) == ("ready", None, 5)
    assert _found(task) == _rows(task)
    assert number not in _found(task)
    assert shown
    assert all(shown), "no generation shows it, not even for a moment"
    monkeypatch.undo()


@pytest.mark.parametrize("stage", ["load_task", "restore_task_frames", "train_task", "remaining_videos"])
def test_a_task_whose_videos_are_all_deleted_says_so(
    post_videos: Post, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Just before each stage."""
    task = post_videos("day")
    original = getattr(learning_job, stage)

    def meanwhile(*given: Any, **how: Any) -> Any:
        delete_videos([f"day-{number}" for number in range(6)])
        return original(*given, **how)

    monkeypatch.setattr(learning_job, stage, meanwhile)
    for _ in range(2):  # where frames are missed, it begins again
        learning_job.run_learning_job(task)
    view = commands.get_task(task)
    assert (view.state, view.error) == ("failed", "All accepted videos of the task were deleted.")
    assert view.error_hint == "Post a task with the videos that you want to keep."


def test_deleted_videos_are_no_negatives_and_are_not_measured(
    post_videos: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = post_videos("day")
    _ready(one)
    numbers = {name: _number(name) for name in ("day-0", "day-3")}
    assert library_paths.recall_cache_path().exists()
    delete_videos(list(numbers))
    assert not library_paths.recall_cache_path().exists(), "it keeps what was made of captions"
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
    _ready(two)
    assert negatives == [{_number(f"day-{n}") for n in (2, 4, 5)}]
    first = galleries[0]
    assert set(first.shard.ids.tolist()) == _rows(one)
    assert first.held_out.tolist() == [_number("day-1")]
    assert [query.vector_id for query in first.queries] == [_number("day-1")]
    with session_scope() as session:
        counted = {
            (r.release_order, r.task_order, r.gallery): r.queries
            for r in session.scalars(select(Recall).where(Recall.release_order > 0))
        }
    assert counted[1, 1, "local"] == 2, "what was measured then stays as it was"
    assert (counted[2, 1, "local"], counted[2, 2, "local"]) == (1, 2)
    page = read_ledger(library_paths.recall_cache_path())["pinned"]
    assert [ranks.query_count for ranks in page.task_ranks] == [1, 2]


def test_a_row_that_is_there_still_when_its_vector_is_deleted_does_no_harm(post_videos: Post) -> None:
    """As it is when a deletion was killed in the middle."""
    one = post_videos("day")
    _ready(one)
    _store().delete([_number("day-0"), _number("day-3")])
    library = Library(_store())
    memory = library.stored_vectors(catalog_reader.training_video_ids(library))
    assert len(memory) == 3
    assert memory.sample(10, np.random.default_rng(0)).shape[0] == 3  # type: ignore[union-attr]
    _ready(post_videos("night"))


@pytest.mark.parametrize("stage", ["publish_task", "write_ledger"])
def test_a_ledger_that_counts_a_deleted_video_is_not_kept(
    post_videos: Post, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A video of an earlier task goes once the next one is measured: before it is published, or at the very last."""
    _ready(post_videos("day"))
    module = release_metrics if stage == "write_ledger" else learning_job
    original = getattr(module, stage)

    def meanwhile(*given: Any, **how: Any) -> Any:
        delete_videos(["day-0"])
        return original(*given, **how)

    monkeypatch.setattr(module, stage, meanwhile)
    _ready(post_videos("night"))
    assert not library_paths.recall_cache_path().exists()


def test_a_release_carries_probes_of_its_newest_and_of_older_tasks(post_videos: Post) -> None:
    from models.releases.probe_queries import PROBE_TEXTS, read_probes

    one, two = post_videos("day"), post_videos("night")
    _ready(one)
    delete_videos(["day-1"])
    _ready(two)
    manifest = _store().manifest()
    probes = read_probes(_store().release_folder(str(manifest.release)))
    assert probes is not None
    assert probes.tasks == [two] * len(PROBE_TEXTS) + [one]
    assert probes.mode == "pinned"
    assert set(probes.ids[-1][probes.ids[-1] >= 0].tolist()) <= _found(one)
    assert set(probes.ids[0][probes.ids[0] >= 0].tolist()) <= _found(two)


@pytest.mark.parametrize("method", ["ffa_tame", "strata"])
def test_a_task_is_learned_beside_one_that_was_deleted_and_compacted(post_videos: Post, method: str) -> None:
    """The empty shard is no negative, no probe and no column; what its task taught is still built on."""
    settled = {"method": method, "settings": {"epochs": 1, "batch_size": 3}}
    one, two = post_videos("day", **settled), post_videos("night", **settled)
    _ready(one)
    _ready(two)
    delete_task(one)
    compaction.compact(one)
    three = post_videos("dawn", **settled)
    _ready(three)
    assert (_found(one), _found(two), _found(three)) == (set(), _rows(two), _rows(three))
    with session_scope() as session:
        cells = {(r.release_order, r.task_order) for r in session.scalars(select(Recall))}
    assert cells == {(0, 2), (2, 2), (0, 3), (3, 2), (3, 3)}
    assert audit(_store()).problems == []
    assert IndexSnapshot.open(_store()).degraded == {}


def test_a_ledger_that_counts_a_video_that_was_compacted_away_is_not_kept(
    post_videos: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleted and compacted while the next one is measured: no tombstone tells of it any more."""
    one = post_videos("day")
    _ready(one)
    facts = learning_job.evaluate_task

    def meanwhile(*given: Any) -> Any:
        measured = facts(*given)
        delete_task(one)
        compaction.compact(one)
        return measured

    monkeypatch.setattr(learning_job, "evaluate_task", meanwhile)
    two = post_videos("night")
    _ready(two)
    assert not library_paths.recall_cache_path().exists()
    with session_scope() as session:
        assert {r.task_order for r in session.scalars(select(Recall))} == {2}


@pytest.mark.parametrize(
    "stage", ["prepare_method", "train_task", "index_task", "evaluate_task", "publish_task"]
)
def test_a_domain_that_goes_while_the_next_is_learned_is_no_hindrance(
    post_videos: Post, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = post_videos("day"), post_videos("night")
    _ready(one)
    original = getattr(learning_job, stage)

    def meanwhile(*given: Any, **how: Any) -> Any:
        delete_task(one)
        compaction.compact(one)
        for folder in _store().folders():
            os.utime(folder, (time.time() - 7200,) * 2)
        compaction.sweep_index()
        return original(*given, **how)

    monkeypatch.setattr(learning_job, stage, meanwhile)
    with pytest.raises(Conflict, match="cancel it, then delete it"):
        delete_task(two)
    _ready(two)
    assert (_found(one), _found(two)) == (set(), _rows(two))
    with session_scope() as session:
        assert {r.task_order for r in session.scalars(select(Recall))} == {2}
    assert audit(_store()).problems == []


def test_a_cancelled_task_is_deleted_once_its_worker_has_stopped(
    post_videos: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = post_videos("day")
    original = learning_job.index_task

    def meanwhile(*given: Any, **how: Any) -> Any:
        commands.cancel_task(task)
        with pytest.raises(Conflict, match="is indexing; cancel it"):
            delete_task(task)
        return original(*given, **how)

    monkeypatch.setattr(learning_job, "index_task", meanwhile)
    learning_job.run_learning_job(task)
    assert commands.get_task(task).state == "cancelled"
    assert (settings().checkpoints_dir / task).exists()
    assert len(delete_task(task).deleted) == 6
    assert not (settings().checkpoints_dir / task).exists()
    assert not list(settings().cache_dir.rglob("*.npy"))
    assert not list(settings().thumbnails_dir.glob("*.jpg"))
    with pytest.raises(NotFound):
        commands.get_task(task)
