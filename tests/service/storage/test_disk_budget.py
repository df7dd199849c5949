"""Disk budget: videos that the disk has no space for are refused before anything is stored."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy import func, select, update

from cinestrata_schemas.syncs import SyncSpec
from cinestrata_schemas.tasks import AppendSpec, RelearnSpec, TaskDetails, TaskSpec
from models.backbones.backbone_loading import frame_spec
from service.catalog.database import session_scope
from service.catalog.operation_tables import Sync
from service.catalog.tables import Task, Video
from service.core.errors import InsufficientStorage
from service.core.settings import Settings, settings
from service.storage.disk_budget import estimate_task_bytes
from service.syncs.registered_syncs import register_sync, run_sync
from service.tasks import commands
from service.tasks.task_storage import relearn_appended_videos
from tests.catalog_rows import mark_learned
from tests.packed_files import pack_zip

pytestmark = pytest.mark.usefixtures("sqlite_catalog")

MIB = 1024**2
RESERVE = 128 * MIB


@pytest.fixture
def set_free(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Set the free bytes of the disk beyond the reserve."""

    def make(free: int) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=RESERVE + free))

    return make


def _task(videos: int) -> TaskSpec:
    uris = [{"uri": f"birds/{number}.mp4"} for number in range(videos)]
    return TaskSpec.model_validate({"name": "birds", "videos": uris})


def _archive(videos: int) -> io.BytesIO:
    lines = [f'{{"uri": "{number}.mp4", "captions": ["a bird"]}}' for number in range(videos)]
    files = {f"{number}.mp4": b"x" * 1000 for number in range(videos)}
    return pack_zip({"manifest.jsonl": "\n".join(lines).encode(), **files})


def _stored_tasks() -> int:
    with session_scope() as session:
        return session.scalar(select(func.count()).select_from(Task)) or 0


def test_task_is_refused_with_needed_and_free_bytes(
    set_free: Callable[[int], None], make_file: Callable[[str], Path]
) -> None:
    for number in range(3):
        make_file(f"birds/{number}.mp4")
    needed = estimate_task_bytes(3)
    set_free(needed - 1)
    with pytest.raises(InsufficientStorage) as caught:
        commands.create_task(_task(3), idempotency_key="once")
    assert (caught.value.needed_bytes, caught.value.free_bytes) == (needed, needed - 1)
    assert f"{needed:,} bytes" in caught.value.detail
    assert f"{needed - 1:,} bytes free" in caught.value.detail
    assert (caught.value.status, caught.value.headers) == (503, {"Retry-After": "60"})
    assert _stored_tasks() == 0
    set_free(needed)
    assert commands.create_task(_task(3), idempotency_key="once").replayed is False
    # The videos of the unfinished task need the space.
    with pytest.raises(InsufficientStorage):
        commands.create_task(TaskSpec.model_validate({"name": "cars", "videos": [{"uri": "birds/0.mp4"}]}))
    set_free(0)
    assert commands.create_task(_task(3), idempotency_key="once").replayed is True


def test_video_needs_space_for_frames_thumbnail_vector_and_row(
    settings_factory: Callable[..., Settings], tmp_path: Path
) -> None:
    settings_factory(tmp_path, backbone="tiny")
    spec = frame_spec("tiny")
    frames = spec.frames * spec.size**2 * 3
    needed = estimate_task_bytes(1) - estimate_task_bytes(0) - frames
    assert 28 * 1024 <= needed <= 64 * 1024


def test_append_needs_no_space_for_a_release(
    set_free: Callable[[int], None], post: Callable[..., TaskDetails], make_file: Callable[[str], Path]
) -> None:
    domain = mark_learned(post("birds").id)
    make_file("new.mp4")
    spec = AppendSpec.model_validate({"videos": [{"uri": "new.mp4"}]})
    needed = estimate_task_bytes(1, is_append=True)
    assert needed < estimate_task_bytes(1)
    set_free(needed - 1)
    with pytest.raises(InsufficientStorage):
        commands.append_videos(domain, spec)
    set_free(needed)
    assert commands.append_videos(domain, spec).task.into is not None


def test_retry_is_refused_and_leaves_the_task(
    set_free: Callable[[int], None], post: Callable[..., TaskDetails]
) -> None:
    task = post("birds", videos=3).id
    commands.cancel_task(task)
    before, needed = commands.get_task(task), estimate_task_bytes(3)
    set_free(needed - 1)
    with pytest.raises(InsufficientStorage) as caught:
        commands.retry_task(task)
    assert (caught.value.needed_bytes, caught.value.free_bytes) == (needed, needed - 1)
    assert commands.get_task(task) == before
    set_free(needed)
    assert commands.retry_task(task).state == "queued"


def test_relearning_is_refused_before_a_video_is_copied(
    set_free: Callable[[int], None], post: Callable[..., TaskDetails]
) -> None:
    domain = mark_learned(post("birds", videos=2).id)
    with session_scope(write=True) as session:
        session.execute(update(Video).values(status="accepted", effective_split="appended"))
    needed = estimate_task_bytes(2)
    set_free(needed - 1)
    with pytest.raises(InsufficientStorage) as caught:
        relearn_appended_videos(domain, RelearnSpec())
    assert (caught.value.needed_bytes, caught.value.free_bytes) == (needed, needed - 1)
    assert _stored_tasks() == 1
    set_free(needed)
    assert relearn_appended_videos(domain, RelearnSpec()).task.counts.videos == 2
    set_free(0)
    assert relearn_appended_videos(domain, RelearnSpec()).replayed is True  # the unfinished task


def test_archive_is_refused_before_a_file_is_unpacked(set_free: Callable[[int], None]) -> None:
    archive = _archive(2)
    set_free(len(archive.getvalue()))
    with pytest.raises(InsufficientStorage):
        commands.create_task_from_archive(archive, "birds.zip", name="birds")
    assert not list(settings().uploads_dir.glob("tsk_*"))
    set_free(1024 * MIB)
    made = commands.create_task_from_archive(archive, "birds.zip", name="birds")
    assert made.task.counts.videos == 2


def test_sync_records_the_missing_space(
    set_free: Callable[[int], None], make_file: Callable[[str], Path]
) -> None:
    make_file("films/a.mp4")
    sync = register_sync(SyncSpec(name="films", source="films", every_seconds=60)).id
    set_free(0)
    run_sync(sync)
    with session_scope() as session:
        error = session.get_one(Sync, sync).error
    assert error is not None
    assert "0 bytes free" in error
    assert _stored_tasks() == 0
