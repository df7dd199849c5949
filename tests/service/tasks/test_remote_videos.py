"""Tasks whose videos are on a real web server: accepted, rejected, postponed by outages, redacted."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from cinestrata_schemas.tasks import TaskDetails, TaskSpec
from media import frame_cache_path
from media.sources.downloading import DownloadLimits
from models.backbones.backbone_loading import frame_spec
from service.catalog.database import now, session_scope
from service.catalog.tables import Chunk, Task, Video
from service.core.errors import InvalidInput
from service.core.settings import Settings, settings
from service.library import video_listing
from service.storage import video_access
from service.tasks import commands, lifecycle, probing_completion, task_events
from service.tasks.lifecycle import state_machine
from tests.catalog_rows import accepted_videos
from tests.claimed_probing import probe
from tests.web_files import WebFiles


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory, write_video: Callable[..., Path]) -> list[bytes]:
    folder = tmp_path_factory.mktemp("clips")
    return [write_video(folder / f"{seed}.mp4", seed=seed).read_bytes() for seed in range(4)]


@pytest.fixture
def remote(
    tmp_path: Path,
    settings_factory: Callable[..., Settings],
    web_files: WebFiles,
    contents: list[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> WebFiles:
    """Four videos on an allowed web server, whose downloads are attempted again without a pause."""
    monkeypatch.setattr(video_access, "DownloadLimits", partial(DownloadLimits, pause=0.0))
    web_files.files.update({f"/videos/{number}.mp4": content for number, content in enumerate(contents)})
    settings_factory(tmp_path, sources=f"private+{web_files.url}/videos/")
    monkeypatch.setattr(probing_completion, "MAX_BAD_SHARE", 0.5)
    return web_files


def post(*uris: str, **fields: Any) -> TaskDetails:
    videos = [{"uri": uri, "captions": ["a clip"]} for uri in uris]
    return commands.create_task(TaskSpec.model_validate({"name": "clips", "videos": videos, **fields})).task


def end_pause(task_id: str) -> None:
    """End the pauses of a task and of its chunks."""
    with session_scope(write=True) as session:
        at = now(session) - timedelta(seconds=1)
        session.execute(update(Task).where(Task.id == task_id).values(lease_expires_at=at))
        session.execute(update(Chunk).where(Chunk.task_id == task_id).values(lease_expires_at=at))


def statuses(task_id: str) -> list[str]:
    with session_scope() as session:
        return list(
            session.scalars(select(Video.status).where(Video.task_id == task_id).order_by(Video.vector_id))
        )


def test_videos_of_a_web_server_are_accepted_and_their_downloads_dropped(remote: WebFiles) -> None:
    view = probe(post(*(f"{remote.url}/videos/{number}.mp4?token=hunter2" for number in range(4))).id)
    assert (view.state, view.counts.accepted) == ("probing", 4)
    assert list(settings().sources_dir.glob("*.download")) == []
    spec = frame_spec(settings().backbone, settings().frames)
    for video in accepted_videos(view.id):
        assert video_listing.thumbnail_path(video.id).is_file()
        path = frame_cache_path(settings().cache_dir, spec.frames, spec.size, video.content_hash)
        assert path.is_file(), "training and embedding need no second download"
        assert video_listing.get_video(video.id).uri.endswith(".mp4?***")
    assert remote.requests == [f"/videos/{number}.mp4?token=hunter2" for number in range(4)]


def test_bad_remote_videos_are_rejected_by_name_and_without_tokens(remote: WebFiles) -> None:
    remote.files["/videos/text.mp4"] = b"<html>Please log in"
    remote.status("/videos/secret.mp4", 403)
    remote.redirect("/videos/moved.mp4", "http://169.254.169.254/latest/meta-data/")
    remote.files["/videos/copy.mp4"] = remote.files["/videos/0.mp4"]
    names = ["0", "1", "2", "3", "gone", "text", "secret", "moved", "copy"]
    uris = [f"{remote.url}/videos/{name}.mp4?token=hunter2" for name in names]
    view = probe(post(*uris).id)
    reasons = {rejected.uri: rejected.reason for rejected in view.rejected}
    expected = {
        "gone": "does not exist",
        "text": "not a video",
        "secret": "is forbidden",
        "moved": "in no allowed source",
        "copy": "same content as",
    }
    for name, reason in expected.items():
        assert reason in reasons[f"{remote.url}/videos/{name}.mp4?***"]
    events = [event.data for event in task_events.events_after(view.id)]
    assert "hunter2" not in f"{view}{events}"


def test_sources_that_are_not_allowed_are_refused_with_the_task(remote: WebFiles) -> None:
    with pytest.raises(InvalidInput) as caught:
        post(
            f"{remote.url}/other/0.mp4",
            "https://user:hunter2@example.com/a.mp4",
            "s3://bucket/a.mp4",
            "ftp://user:hunter2@example.com/a.mp4",
        )
    assert [error.field for error in caught.value.errors] == [f"videos[{number}].uri" for number in range(4)]
    assert "CINESTRATA_SOURCES" in caught.value.errors[0].message
    assert "hunter2" not in str(caught.value.errors)
    assert remote.requests == []


def test_outage_rejects_nothing_and_the_task_continues_after_it(remote: WebFiles) -> None:
    remote.status("/videos/1.mp4", 503, **{"Retry-After": "3600"})
    task = post(*(f"{remote.url}/videos/{number}.mp4" for number in range(3)))
    view = probe(task.id)
    assert (view.state, view.progress.stage, view.progress.outages) == (
        "probing",
        "waiting for the source",
        1,
    )
    assert (view.attempts, view.rejected) == (0, [])
    assert statuses(task.id) == ["accepted", "pending", "accepted"]
    assert any(
        "answers with status 503" in e.data.get("message", "") for e in task_events.events_after(task.id)
    )
    assert lifecycle.claim_probing(task.id, "worker") is None, "the pause is not over"
    assert lifecycle.reconcile().recovered == ()
    end_pause(task.id)
    del remote.handlers["/videos/1.mp4"]
    view = probe(task.id)
    assert (view.progress.stage, view.counts.accepted) == ("waiting", 3)
    assert remote.requests.count("/videos/0.mp4") == 1, "accepted videos are not downloaded again"


def test_long_outage_fails_the_task_and_a_retry_continues(
    remote: WebFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_machine, "MAX_OUTAGES", 2)
    for number in range(4):
        remote.status(f"/videos/{number}.mp4", 503, **{"Retry-After": "3600"})
    task = post(*(f"{remote.url}/videos/{number}.mp4" for number in range(4)))
    for outages in (1, 2):
        assert probe(task.id).progress.outages == outages
        end_pause(task.id)
    assert len(remote.requests) == 6, "three outages in a row postpone the rest of the task"
    view = probe(task.id)
    assert (view.state, view.error) == ("failed", f"{remote.url} answers with status 503.")
    assert "No video was rejected" in (view.error_hint or "")
    assert statuses(task.id) == ["pending"] * 4
    remote.handlers.clear()
    commands.retry_task(task.id)
    assert probe(task.id).counts.accepted == 4


def test_outages_are_counted_from_the_last_finished_video(remote: WebFiles) -> None:
    remote.status("/videos/0.mp4", 503, **{"Retry-After": "3600"})
    remote.status("/videos/1.mp4", 503, **{"Retry-After": "3600"})
    task = post(*(f"{remote.url}/videos/{number}.mp4" for number in range(2)))
    assert [probe(task.id).progress.outages, end_pause(task.id), probe(task.id).progress.outages] == [
        1,
        None,
        2,
    ]
    end_pause(task.id)
    del remote.handlers["/videos/0.mp4"]
    assert probe(task.id).progress.outages == 1
