"""``kill -9`` of the worker at every step of a learning job, an append and a relearning: the next worker resumes."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import func, select

from cinestrata_schemas.tasks import AppendSpec, RelearnSpec
from cli.commands.library_checks import check_catalog
from index.arrays import FIRST_MOMENT_ID
from index.index_snapshot import IndexSnapshot
from index.integrity_audit import audit
from index.shard_store import ShardStore
from media import VideoDecoder
from service.catalog.database import session_scope
from service.catalog.domain_videos import read_calibration
from service.catalog.tables import Chunk, Moment, Recall, Release, Shard
from service.core.settings import settings
from service.library.deletion import delete_videos
from service.library.recall_matrix import read_recall_matrix
from service.tasks import commands
from service.tasks.commands import events_after
from service.tasks.lifecycle import AppendPublication, ChunkClaim, Claim, Publication, state_machine
from service.tasks.lifecycle.publishing import Reassignment
from service.tasks.task_storage import relearn_appended_videos
from tests.claimed_probing import probe
from tests.measured_library import figures_without_ids
from tests.trainer.worker.conftest import write_video
from tests.trainer.worker.library_state import (
    catalog_vector_ids,
    die,
    die_after,
    die_before,
    expire_leases,
    open_store,
    run_in_process,
)
from trainer.worker import append_job, catalog_reader, learning_job, shared_embedding
from trainer.worker.shared_embedding import PartFolder

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
    "moments planned": die_after(catalog_reader, "plan_moments"),
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
    store = open_store()
    shard = IndexSnapshot.open(store).shard(task, fingerprint=store.manifest().shards[task].fingerprint)
    return shard.vectors(np.sort(shard.ids))


def _published_moments(task: str) -> list[tuple[float, float]]:
    """Start and end of the published moments, ordered by vector ID."""
    store = open_store()
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
        published = open_store().manifest().shards
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


COLORS = ("red", "blue", "green")


@pytest.fixture
def many_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts for one kill at each step."""
    monkeypatch.setattr(state_machine, "MAX_ATTEMPTS", 50)


# Points at which the worker dies, in the order in which a job reaches them; then the table "ready" follows.
APPEND_POINTS = {
    "claimed": die_before(append_job, "load_task"),
    "folder created": die_after(PartFolder, "prepare"),
    "chunks planned": die_after(shared_embedding, "_plan"),
    "part written": die_after(PartFolder, "write"),
    "part recorded": die_after(ChunkClaim, "complete"),
    "chunk done": die_after(shared_embedding, "_embed_chunk"),
    "parts joined": die_after(shared_embedding, "_join_parts"),
    "moments planned": die_after(catalog_reader, "plan_moments"),
    "moments decoded": die_after(VideoDecoder, "sample"),
    "segment written": die_after(ShardStore, "write_shard"),
    "measured": die_after(append_job, "_measure"),
    "calibration stored": die_after(append_job, "_store_calibration"),
    "manifest replaced": die_after(ShardStore, "append"),
    "rows written": die_after(AppendPublication, "complete"),
    "committed": die_before(append_job, "_compact"),
}
RELEARN_POINTS = {
    "videos reassigned": die_after(Reassignment, "prepare"),
    "manifest replaced": die_after(ShardStore, "publish"),
    "thumbnails moved": die_after(Reassignment, "move_thumbnails"),
    "rows written": die_after(Publication, "complete"),
    "committed": die_before(learning_job, "clean_up"),
}


def _post_append(domain: str) -> str:
    entries = []
    for number, color in enumerate(COLORS):
        write_video(settings().media_root / "new" / f"{color}.mp4", color, 1 if number else 21)
        captions = [f"the {color} video number {word}" for word in range(8)]
        entries.append({"uri": f"new/{color}.mp4", "id": f"new-{color}", "captions": captions})
    return probe(commands.append_videos(domain, AppendSpec.model_validate({"videos": entries})).task.id).id


def _searchable_videos(task: str) -> list[int]:
    """Return the vector IDs of the whole videos in all segments of a shard, without deleted ones, ascending."""
    store = open_store()
    manifest = store.manifest()
    parts = [store.open([entry]).ids for entry in manifest.segments(task) if entry.count]
    ids = np.concatenate([np.empty(0, np.int64), *parts])
    remaining = ids[~np.isin(ids, store.tombstones(manifest, task))]
    return sorted(remaining[remaining < FIRST_MOMENT_ID].tolist())


def _require_each_video_once(*tasks: str) -> None:
    for task in tasks:
        assert _searchable_videos(task) == sorted(catalog_vector_ids(task).values())
    report = audit(open_store())
    assert report.problems == []
    assert list(check_catalog(settings(), report)) == []


@pytest.mark.slow
def test_append_killed_at_every_step_stores_each_video_once(
    learned_task: str, many_attempts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_embedding, "EMBED_CHUNK_VIDEOS", 2)
    monkeypatch.setattr(append_job, "MIN_CAPTIONS", 2)
    task, before = _post_append(learned_task), _searchable_videos(learned_task)
    store = open_store()
    release = store.manifest().release or ""
    for point, patch in APPEND_POINTS.items():
        # The next point is reached by resuming after the previous one, so each kind of remainder is met.
        assert run_in_process(append_job.run_append_job, task, patch) == -signal.SIGKILL, point
        is_listed = point in ("manifest replaced", "rows written", "committed")
        assert len(_searchable_videos(learned_task)) == len(before) + len(COLORS) * is_listed, point
        if point != "committed":
            assert commands.get_task(task).state in ("probing", "indexing"), point
            expire_leases(task)
    assert commands.get_task(task).state == "ready"
    assert commands.get_task(task).counts.appended == len(COLORS)
    assert {f"new-{color}" for color in COLORS} < set(catalog_vector_ids(learned_task))
    _require_each_video_once(learned_task)
    with session_scope() as session:
        # The publication was resumed, and the model still applies to the generation that lists the videos.
        assert read_calibration(session, release, store.manifest().generation) is not None
        stored = session.scalars(select(Shard.count).where(Shard.task_id == learned_task)).one()
        assert session.scalars(select(Chunk)).all() == []
    assert stored == sum(entry.count for entry in store.manifest().segments(learned_task))


@pytest.mark.slow
def test_relearning_killed_at_every_step_moves_each_video_once(
    learned_task: str, many_attempts: None
) -> None:
    append_job.run_append_job(_post_append(learned_task))
    whole = len(_searchable_videos(learned_task))
    task = probe(relearn_appended_videos(learned_task, RelearnSpec()).task.id).id
    for point, patch in RELEARN_POINTS.items():
        assert run_in_process(learning_job.run_learning_job, task, patch) == -signal.SIGKILL, point
        is_listed = task in open_store().manifest().shards
        assert is_listed == (point != "videos reassigned"), point
        moved = _searchable_videos(task) if is_listed else []
        assert len(_searchable_videos(learned_task)) + len(moved) == whole, point
        if point != "committed":
            expire_leases(task)
    assert commands.get_task(task).state == "ready"
    assert set(catalog_vector_ids(task)) == {f"new-{color}" for color in COLORS}
    _require_each_video_once(learned_task, task)
