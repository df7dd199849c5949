"""Frame caches that are removed, kept and restored, for domains of a folder, of a bucket and of a web server."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog
from sqlalchemy import select
from structlog.testing import capture_logs

from cinestrata_schemas.tasks import TaskDetails, TaskSpec
from cli.commands import sync_command
from cli.commands.sync_command import run_sync
from cli.service_client import ServiceClient
from media import VideoDecoder, VideoInfo
from service.catalog.database import session_scope
from service.catalog.tables import Video
from service.core.errors import Unavailable
from service.core.settings import settings
from service.library.deletion import sweep_frame_caches
from service.library.library_listing import get_video
from service.storage.video_files import delete_unneeded_frames
from service.tasks import commands, lifecycle
from tests.claimed_probing import probe
from tests.trainer.worker.conftest import write_video
from tests.trainer.worker.library_state import (
    catalog_vector_ids,
    learn,
    post_append,
    run_append,
    shard_vectors,
)
from tests.web_files import WebFiles
from trainer.worker import job_environment
from trainer.worker.learning_job import run_learning_job

Post = Callable[..., str]

pytestmark = pytest.mark.usefixtures("library")


def _cached() -> list[Path]:
    return sorted(settings().cache_dir.rglob("*.npy"))


def test_ready_tasks_keep_no_frame_cache(learned_task: str, post_videos: Post) -> None:
    assert _cached() == []
    post_videos("night", videos=2)
    queued = _cached()
    append = post_append(learned_task, {"new": "new"})
    assert len(_cached()) == len(queued) + 1
    assert run_append(append).state == "ready"
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


@pytest.fixture
def allow(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Allow sources."""

    def set_sources(sources: str) -> None:
        monkeypatch.setenv("CINESTRATA_SOURCES", sources)
        settings.cache_clear()

    return set_sources


@pytest.fixture(autouse=True)
def workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the jobs of a task where the command would wait for the workers."""

    def follow(client: ServiceClient, tasks: list[str]) -> list[Any]:
        for task in tasks:
            probe(task)
            run_learning_job(task)
            run_append(task)
        return [client.get_task(task) for task in tasks]

    monkeypatch.setattr(sync_command, "follow", follow)


def sync(source: Path | str, vanished: Any = "keep", dry_run: bool = False) -> None:
    options = dict.fromkeys(("in_place", "captions_from_names", "compare_contents", "yes", "strict"), False)
    options |= dict.fromkeys(("name", "encoding", "read", "url", "data"))
    run_sync(source, vanished=vanished, dry_run=dry_run, **options)


def names(videos: dict[str, int]) -> list[str]:
    return sorted(Path(get_video(video).uri).stem for video in videos)


def synced_videos(name: str) -> dict[str, int]:
    """Return the vector IDs of the only domain's videos, on which shard and catalog agree."""
    (task,) = [task for task in commands.list_tasks() if task.into is None]
    assert task.name == name
    assert set(shard_vectors(task.id)) == set(catalog_vector_ids(task.id).values())
    return catalog_vector_ids(task.id)


@pytest.mark.slow
def test_domain_follows_its_folder(tmp_path: Path) -> None:
    source = tmp_path / "films"
    for name in ("a", "b"):
        write_video(source / f"{name}.mp4", name)
    sync(source, dry_run=True)
    assert commands.list_tasks() == []
    sync(source)
    first = synced_videos("films")
    assert len(first) == 2
    sync(source)
    assert len(commands.list_tasks()) == 1

    write_video(source / "c.mp4", "c")
    write_video(source / "a.mp4", "another a")
    (source / "b.mp4").rename(source / "d.mp4")
    sync(source)
    second = synced_videos("films")
    assert (names(second), first.keys() - second.keys()) == (["a", "c", "d"], set())
    changed = [video for video in first if second[video] != first[video]]
    assert [(Path(get_video(video).uri).stem, get_video(video).replaced_at is None) for video in first] == [
        ("a" if video in changed else "d", video not in changed) for video in first
    ]
    assert len(changed) == 1
    (source / "d.mp4").unlink()
    sync(source, vanished="delete")
    assert names(synced_videos("films")) == ["a", "c"]


@pytest.fixture
def probed(tmp_path: Path, web_files: WebFiles, allow: Callable[[str], None]) -> TaskDetails:
    """A probed task with two videos from a web server, whose sampled frames were lost."""
    allow(f"private+{web_files.url}/")
    for name in ("a", "b"):
        write_video(tmp_path / f"{name}.mp4", name)
        web_files.files[f"/{name}.mp4"] = (tmp_path / f"{name}.mp4").read_bytes()
    videos = [{"uri": f"{web_files.url}/{name}.mp4", "id": name} for name in ("a", "b")]
    task = commands.create_task(TaskSpec.model_validate({"name": "web", "videos": videos})).task
    assert probe(task.id).counts.accepted == 2
    shutil.rmtree(settings().cache_dir)
    return task


def test_lost_frames_are_restored_by_another_download(probed: TaskDetails, web_files: WebFiles) -> None:
    run_learning_job(probed.id)
    assert commands.get_task(probed.id).state == "ready"
    assert sorted(web_files.requests) == ["/a.mp4", "/a.mp4", "/b.mp4", "/b.mp4"]


def test_outage_during_embedding_postpones_the_task(probed: TaskDetails, web_files: WebFiles) -> None:
    web_files.status("/b.mp4", 503, **{"Retry-After": "3600"})
    run_learning_job(probed.id)
    task = commands.get_task(probed.id)
    assert (task.state, task.progress.stage) == ("training", "waiting for the source")
    assert task.progress.outages == 1
    assert lifecycle.claim_training(probed.id, "learner") is None
