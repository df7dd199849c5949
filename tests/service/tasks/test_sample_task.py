"""The sample domain: a task from drawn videos."""

from __future__ import annotations

from pathlib import Path

import pytest

from media.scenes import scene_files
from media.scenes.scene_files import scene_file_name
from media.scenes.scene_model import Scene
from service.catalog.database import session_scope
from service.catalog.tables import Video
from service.core.errors import Conflict, Unavailable
from service.core.settings import Settings
from service.tasks import commands
from service.tasks.sample_task import SAMPLE_DOMAIN, SAMPLE_VIDEOS, create_sample_task


def test_drawn_videos_become_a_task(sqlite_catalog: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(folder: Path, scene: Scene) -> Path:
        path = folder / scene_file_name(scene)
        path.write_bytes(scene.id.encode())
        return path

    monkeypatch.setattr(scene_files, "write_scene", write)  # drawing takes seconds
    task = create_sample_task().task
    assert (task.name, task.state, task.counts.videos) == (SAMPLE_DOMAIN, "queued", SAMPLE_VIDEOS)
    with session_scope() as session:
        videos = session.query(Video).all()
        assert {video.split for video in videos} == {"train", "test"}
        assert all(len(video.captions) == 3 for video in videos)
    stored = list(sqlite_catalog.uploads_dir.rglob("*.mp4"))
    assert len(stored) == SAMPLE_VIDEOS
    assert all(path.read_text() == path.stem for path in stored)
    monkeypatch.setattr(scene_files, "write_scene", None)  # a repetition draws nothing
    with pytest.raises(Conflict, match=SAMPLE_DOMAIN):
        create_sample_task()


def test_full_disk_stores_nothing(sqlite_catalog: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(scene_files, "write_scene", fail)
    with pytest.raises(Unavailable, match="No space left"):
        create_sample_task()
    assert commands.list_tasks() == []
