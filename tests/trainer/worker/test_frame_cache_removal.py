"""Removal of frame caches: a ready task keeps none, and a task that is unfinished keeps its own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog
from sqlalchemy import select
from structlog.testing import capture_logs

from cinestrata_schemas.tasks import AppendSpec, TaskSpec
from media import VideoDecoder, VideoInfo
from service.catalog.database import session_scope
from service.catalog.tables import Video
from service.core.errors import Unavailable
from service.core.settings import settings
from service.library.compaction import sweep_frame_caches
from service.storage.video_files import delete_unneeded_frames
from service.tasks import commands
from tests.claimed_probing import probe
from tests.trainer.worker.conftest import write_video
from tests.trainer.worker.library_state import learn, shard_vectors
from trainer.worker import append_job, job_environment

Post = Callable[..., str]

pytestmark = pytest.mark.usefixtures("library")


def _cached() -> list[Path]:
    return sorted(settings().cache_dir.rglob("*.npy"))


def test_ready_tasks_keep_no_frame_cache(learned_task: str, post_videos: Post) -> None:
    assert _cached() == []
    post_videos("night", videos=2)
    queued = _cached()
    write_video(settings().media_root / "new.mp4", "new")
    append = commands.append_videos(
        learned_task, AppendSpec.model_validate({"videos": [{"uri": "new.mp4"}]})
    ).task.id
    probe(append)
    assert len(_cached()) == len(queued) + 1
    append_job.run_append_job(append)
    assert commands.get_task(append).state == "ready"
    assert _cached() == queued, "the next task is not learned yet"


def test_unfinished_task_keeps_the_frame_caches_that_it_shares_with_a_ready_domain(
    learned_task: str, post_videos: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = []
    for number in range(3):
        write_video(settings().media_root / "copies" / f"{number}.mp4", f"day {number}")
        entries.append({"uri": f"copies/{number}.mp4"})
    spec = TaskSpec.model_validate({"name": "copies", "videos": entries, "method": "ffa_tame"})
    copies = commands.create_task(spec).task.id
    probe(copies)
    shared = _cached()
    with session_scope() as session:
        of_domain = set(session.scalars(select(Video.content_hash).where(Video.task_id == learned_task)))
    assert len(shared) == 3
    assert {path.stem for path in shared} < of_domain
    for path in shared:
        os.utime(path, (time.time() - 7200,) * 2)
    assert sweep_frame_caches() == 0
    assert delete_unneeded_frames({path.stem for path in shared}) == 0
    assert _cached() == shared
    monkeypatch.setattr(
        "trainer.worker.catalog_reader.VideoDecoder",
        lambda limits: pytest.fail("the frames are in the cache"),
    )
    learn(copies)
    assert _cached() == []


def test_frames_removed_before_the_catalog_has_their_content_are_decoded_again(
    post_videos: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, removed = VideoDecoder.decode, []

    def decode(self: VideoDecoder, *given: Any, **how: Any) -> VideoInfo:
        info = original(self, *given, **how)
        removed.append(delete_unneeded_frames({info.content_hash}))
        return info

    with monkeypatch.context() as patch:
        patch.setattr(VideoDecoder, "decode", decode)
        task = post_videos("day", videos=4)
    assert (removed, _cached()) == ([1, 1, 1, 1], [])
    learn(task)
    assert len(shard_vectors(task)) == 4


def test_frame_caches_that_a_worker_left_are_swept_after_an_hour(
    post_videos: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, _ = post_videos("day", videos=4), post_videos("night", videos=2)

    def fail(contents: Any) -> int:
        raise Unavailable("The catalog is locked.", 5)

    with monkeypatch.context() as patch, capture_logs() as logs:
        patch.setattr(job_environment, "delete_unneeded_frames", fail)
        patch.setattr(job_environment, "log", structlog.get_logger())  # the one of the module may be cached
        learn(task)
    assert [log["error"] for log in logs if log["event"] == "cleanup_failed"] == ["The catalog is locked."]
    young = _cached()
    assert len(young) == 6
    assert sweep_frame_caches() == 0
    assert _cached() == young
    for path in young:
        os.utime(path, (time.time() - 7200,) * 2)
    assert sweep_frame_caches() == 4
    assert len(_cached()) == 2, "of the task in the queue"
