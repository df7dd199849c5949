"""The worker is killed at every step of an append and a relearning: each video ends in one segment, once."""

from __future__ import annotations

import signal

import numpy as np
import pytest
from sqlalchemy import select

from cinestrata_schemas.tasks import AppendSpec, RelearnSpec
from cli.commands.library_checks import check_catalog
from index.integrity_audit import audit
from index.shard_store import ShardStore
from index.vector_ids import FIRST_MOMENT_ID
from media import VideoDecoder
from service.catalog.database import session_scope
from service.catalog.domain_videos import read_calibration
from service.catalog.tables import Chunk, Shard
from service.core.settings import settings
from service.tasks import commands
from service.tasks.lifecycle import AppendPublication, ChunkClaim, Publication, state_machine
from service.tasks.lifecycle.publishing import Takeover
from service.tasks.task_storage import relearn_appended_videos
from tests.claimed_probing import probe
from tests.trainer.worker.conftest import write_video
from tests.trainer.worker.killed_worker import die_after, die_before, expire_leases, run_in_process
from tests.trainer.worker.library_state import catalog_vector_ids, open_store
from trainer.worker import append_job, catalog_reader, learning_job, shared_embedding
from trainer.worker.shared_embedding import PartFolder

pytestmark = pytest.mark.usefixtures("library")

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
    "videos taken over": die_after(Takeover, "prepare"),
    "manifest replaced": die_after(ShardStore, "publish"),
    "thumbnails moved": die_after(Takeover, "move_thumbnails"),
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
    found = [store.open([entry]).ids for entry in manifest.segments(task) if entry.count]
    ids = np.concatenate(found) if found else np.empty(0, np.int64)
    kept = ids[~np.isin(ids, store.tombstones(manifest, task))]
    return sorted(kept[kept < FIRST_MOMENT_ID].tolist())


def _require_each_video_once(*tasks: str) -> None:
    for task in tasks:
        assert _searchable_videos(task) == sorted(catalog_vector_ids(task).values())
    found = audit(open_store())
    assert found.problems == []
    assert list(check_catalog(settings(), found)) == []


@pytest.mark.slow
def test_append_killed_at_every_step_stores_each_video_once(
    learned_task: str, many_attempts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_embedding, "CHUNK_VIDEOS", 2)
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
        assert is_listed == (point != "videos taken over"), point
        moved = _searchable_videos(task) if is_listed else []
        assert len(_searchable_videos(learned_task)) + len(moved) == whole, point
        if point != "committed":
            expire_leases(task)
    assert commands.get_task(task).state == "ready"
    assert set(catalog_vector_ids(task)) == {f"new-{color}" for color in COLORS}
    _require_each_video_once(learned_task, task)
