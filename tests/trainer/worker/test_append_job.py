"""Appends: new videos of a learned domain become searchable without training, and no published file changes."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sqlalchemy import select

from cinestrata_schemas.tasks import TaskDetails
from index.shard_store import ShardStore
from media import VideoDecoder, frame_cache_path, load_frames
from service.catalog.database import session_scope
from service.catalog.tables import Moment, Shard, Video
from service.core.errors import Conflict
from service.core.settings import settings
from service.library import deletion
from service.library.deletion import compact, delete_videos
from service.tasks import commands
from service.tasks.lifecycle import AppendPublication
from tests.audited_changes import audit_entries
from tests.index_locking import require_unlocked_catalog
from tests.trainer.worker import library_state
from tests.trainer.worker.library_state import (
    call_before,
    catalog_vector_ids,
    current_release,
    interrupt,
    learn,
    open_store,
    require_same_videos,
    run_append,
    shard_vectors,
)
from trainer.methods import start_method
from trainer.worker import append_job, job_environment, learning_job

pytestmark = pytest.mark.usefixtures("library")


def post_append(domain: str, *names: str, seconds: int = 1, copy: str | None = None) -> str:
    """Return the ID of a probed append of new videos, ``new-<name>`` with the content ``<name>``, and a copy of one."""
    contents = {name: name for name in names} | ({"copy": copy} if copy else {})
    return library_state.post_append(domain, contents, ["the {} video"], seconds)


def append(domain: str, *names: str) -> TaskDetails:
    """Append new videos, which must become ready."""
    view = run_append(post_append(domain, *names))
    assert (view.state, view.error) == ("ready", None)
    return view


def files(task: str) -> dict[str, bytes]:
    """Return the contents of all files in the shard's segments."""
    store = open_store()
    folders = [store.shard_folder(entry.id) for entry in store.manifest().segments(task)]
    return {
        f"{folder.name}/{path.name}": path.read_bytes() for folder in folders for path in folder.iterdir()
    }


def test_videos_are_appended_with_the_pinned_encoder(
    learned_task: str, post_videos: Any, tmp_path: Path
) -> None:
    """The vectors are those of the encoder that embedded the domain, although a later release is current."""
    before, release = files(learned_task), current_release()
    learn(post_videos("night", videos=4))
    view = append(learned_task, "red", "blue")
    assert view.into == learned_task
    assert (view.counts.videos, view.counts.appended, view.counts.rejected) == (2, 2, 0)
    entry = audit_entries(action=["task.publish"])[-1]
    assert (entry.target, entry.details["domain"], entry.details["videos"]) == (view.id, learned_task, 2)
    after = files(learned_task)
    assert {name: after[name] for name in before} == before
    assert len(open_store().manifest().segments(learned_task)) == 2

    backbone = job_environment.task_backbone(learned_task)
    method = start_method(release.method, backbone, release.config, release)
    ids, vectors = catalog_vector_ids(learned_task), shard_vectors(learned_task)
    count, size = backbone.spec
    for name in ("red", "blue"):
        with session_scope() as session:
            video = session.scalars(select(Video).where(Video.id == f"new-{name}")).one()
            assert (video.task_id, video.effective_split) == (learned_task, "appended")
        source = settings().media_root / "new" / f"{name}.mp4"
        with VideoDecoder() as decoder:
            info = decoder.decode(source, frames=count, size=size, cache=tmp_path / "frames")
        frames = load_frames(frame_cache_path(tmp_path / "frames", count, size, info.content_hash))
        expected = method.encode_videos(torch.from_numpy(frames)[None])[0].float().numpy()
        np.testing.assert_allclose(vectors[ids[f"new-{name}"]], expected, atol=1e-3)
    require_same_videos(learned_task)


def test_known_files_are_rejected_and_a_repeated_append_changes_nothing(learned_task: str) -> None:
    append(learned_task, "red")
    manifest = open_store().manifest()
    view = run_append(post_append(learned_task, copy="red"))
    assert (view.state, view.counts.rejected, view.counts.appended) == ("ready", 1, 0)
    assert view.rejected[0].reason == "same content as new/red.mp4"
    assert open_store().manifest() == manifest


def test_two_appends_of_the_same_file_store_it_once(learned_task: str) -> None:
    """Both are probed before one is published, so that only the publication can notice it."""
    first, second = post_append(learned_task, "red"), post_append(learned_task, copy="red")
    assert run_append(first).counts.appended == 1
    view = run_append(second)
    assert (view.state, view.counts.appended, view.counts.rejected) == ("ready", 0, 1)
    require_same_videos(learned_task)


def test_append_with_ids_of_other_videos_fails(learned_task: str) -> None:
    """A catalog that was restored from an earlier state than the index assigns IDs that the shard has already."""
    append_id = post_append(learned_task, "red", "blue")
    with session_scope() as session:
        first = session.scalars(select(Video.vector_id).where(Video.task_id == append_id)).all()[0]
    store = open_store()
    pinned = store.manifest().shards[learned_task]
    other = np.eye(pinned.dim, dtype=np.float32)[:1]
    store.append(
        store.write_shard(
            task=learned_task,
            release=pinned.release,
            fingerprint=pinned.fingerprint,
            ids=np.array([first]),
            vectors=other,
        )
    )
    view = run_append(append_id)
    assert view.state == "failed"
    assert "uses 1 of the append's 2 vector IDs for other videos" in (view.error or "")


def test_publication_that_waits_for_the_index_does_not_lock_the_catalog(
    learned_task: str, post_videos: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_id = post_append(learned_task, "red")
    domain = post_videos("night", videos=2, tests=0)
    waits = require_unlocked_catalog(monkeypatch)
    assert run_append(append_id).state == "ready"
    assert waits
    waits.clear()
    learn(domain)
    assert waits


def die(append: str, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run an append whose worker is killed just before or after the manifest is replaced."""
    owner, name = (AppendPublication, "complete") if step == "after the manifest" else (ShardStore, "append")
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, interrupt)
        with pytest.raises(KeyboardInterrupt):
            append_job.run_append_job(append)


@pytest.mark.parametrize("step", ["before the manifest", "after the manifest"])
def test_killed_worker_is_resumed(learned_task: str, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next attempt publishes the videos once, whether or not the manifest already lists them."""
    task = post_append(learned_task, "red", "blue")
    die(task, step, monkeypatch)
    published = len(open_store().manifest().segments(learned_task)) == 2
    assert published is (step == "after the manifest")
    assert commands.get_task(task).state == "indexing"
    if published:
        with pytest.raises(Conflict, match="published"):
            commands.cancel_task(task)
    assert run_append(task).state == "ready"
    assert len(open_store().manifest().segments(learned_task)) == 2
    require_same_videos(learned_task)


def test_append_finishes_a_deletion_that_was_killed_after_its_tombstones(
    learned_task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker dies after the manifest, the deletion after the tombstones, and a compaction drops the vector."""
    task = post_append(learned_task, "red", "blue")
    die(task, "after the manifest", monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(deletion, "register_removals", interrupt)
        with pytest.raises(KeyboardInterrupt):
            delete_videos(["new-red"])
    assert "new-red" in catalog_vector_ids(task)
    compact(learned_task)
    assert run_append(task).state == "ready"
    assert catalog_vector_ids(learned_task).keys() & {"new-red", "new-blue"} == {"new-blue"}
    require_same_videos(learned_task)


@pytest.mark.parametrize("is_original_deleted", [False, True])
def test_compaction_before_a_killed_append_is_resumed_does_not_fail_it(
    learned_task: str, monkeypatch: pytest.MonkeyPatch, *, is_original_deleted: bool
) -> None:
    """The compaction drops the vectors of duplicates; they stay rejected even if their originals are deleted."""
    first, second = post_append(learned_task, "red"), post_append(learned_task, "blue", copy="red")
    assert run_append(first).counts.appended == 1
    die(second, "after the manifest", monkeypatch)
    if is_original_deleted:
        delete_videos(["new-red"])
    compact(learned_task)
    view = run_append(second)
    assert (view.state, view.counts.appended, view.counts.rejected) == ("ready", 1, 1)
    require_same_videos(learned_task)


def test_video_that_becomes_a_duplicate_while_its_append_is_interrupted_is_stored_once(
    learned_task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index lists the video, then another append gives the domain its content."""
    task, other = post_append(learned_task, "blue", copy="red"), post_append(learned_task, "red")
    die(task, "after the manifest", monkeypatch)
    assert run_append(other).counts.appended == 1
    die(task, "before the manifest", monkeypatch)
    view = run_append(task)
    assert (view.state, view.counts.appended, view.counts.rejected) == ("ready", 1, 1)
    require_same_videos(learned_task)


def test_video_deleted_before_a_killed_publication_is_never_found(
    learned_task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker is killed as soon as the index lists the append, and the next attempt does not know the video."""
    task, publish = post_append(learned_task, "red", "blue"), ShardStore.append

    def die_after(*given: Any, **options: Any) -> None:
        publish(*given, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        call_before(patch, append_job, "_measure", lambda: delete_videos(["new-red"]))
        patch.setattr(ShardStore, "append", die_after)
        with pytest.raises(KeyboardInterrupt):
            append_job.run_append_job(task)
    assert run_append(task).state == "ready"
    require_same_videos(learned_task)


@pytest.mark.parametrize("stage", ["embed_shared", "embed_task_moments"])
def test_video_deleted_before_publication_is_never_found(
    learned_task: str, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the embedding misses the frames of the video, the append begins again without it."""
    task = post_append(learned_task, "red", "blue")

    call_before(monkeypatch, append_job, stage, lambda: delete_videos(["new-red"]))
    while (view := run_append(task)).state != "ready":
        assert view.error is None
    assert view.counts.appended == 1
    assert catalog_vector_ids(learned_task).keys() & {"new-red", "new-blue"} == {"new-blue"}
    require_same_videos(learned_task)


def test_video_that_is_published_during_its_deletion_is_deleted(
    learned_task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The publication gives the video to the domain after the deletion has found it in the append."""
    task, original = post_append(learned_task, "red", "blue"), deletion._delete

    def publish_first(owner: str, videos: Any) -> list[str]:
        if commands.get_task(task).state != "ready":
            append_job.run_append_job(task)
        return original(owner, videos)

    monkeypatch.setattr(deletion, "_delete", publish_first)
    deletion_report = delete_videos(["new-red", "unknown"])
    assert (deletion_report.deleted, deletion_report.not_found) == (["new-red"], ["unknown"])
    assert "new-red" not in catalog_vector_ids(learned_task)
    require_same_videos(learned_task)


@pytest.mark.slow
def test_compaction_during_an_append_does_not_fail_it(
    learned_task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Embedding takes hours; the segments from before it are removed an hour after they were replaced."""
    append(learned_task, "red")
    task = post_append(learned_task, "blue", "green")

    def meanwhile() -> None:
        compact(learned_task)
        past = time.time() - 7200
        for path in settings().index_dir.rglob("*"):
            os.utime(path, (past, past))
        open_store().collect_garbage()

    call_before(monkeypatch, append_job, "embed_shared", meanwhile)
    view = run_append(task)
    assert (view.state, view.error) == ("ready", None)
    require_same_videos(learned_task)
    assert len(open_store().manifest().segments(learned_task)) == 2


def test_append_that_ends_keeps_the_unpublished_files_of_a_training(
    learned_task: str, post_videos: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An evaluation may take more than an hour; the shard and the release are not in the manifest before its end."""
    task, added = post_videos("night"), post_append(learned_task, "red")

    def meanwhile() -> None:
        for folder in open_store().folders():
            os.utime(folder, (time.time() - 7200,) * 2)
        assert run_append(added).state == "ready"

    call_before(monkeypatch, learning_job, "evaluate_task", meanwhile)
    learn(task)
    assert set(shard_vectors(task)) == set(catalog_vector_ids(task).values())


def test_many_segments_are_copied_into_one(learned_task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append_job, "MAX_SEGMENTS", 2)
    append(learned_task, "red")
    before = shard_vectors(learned_task)
    assert len(open_store().manifest().segments(learned_task)) == 2
    append(learned_task, "blue")
    assert len(open_store().manifest().segments(learned_task)) == 1
    after = shard_vectors(learned_task)
    assert len(after) == len(before) + 1
    assert all(np.array_equal(after[video], vector) for video, vector in before.items())
    with session_scope() as session:
        assert session.scalars(select(Shard.count).where(Shard.task_id == learned_task)).one() == len(after)


def test_long_video_is_appended_with_its_moments(learned_task: str) -> None:
    task = post_append(learned_task, "film", seconds=21)
    assert run_append(task).state == "ready"
    vector_id = catalog_vector_ids(learned_task)["new-film"]
    with session_scope() as session:
        moments = session.scalars(select(Moment.vector_id).where(Moment.video_vector_id == vector_id)).all()
    assert len(moments) > 1
    assert {vector_id, *moments} <= set(shard_vectors(learned_task))
