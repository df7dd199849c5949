"""Plans of a sync: new, changed, unchanged, vanished and rejected files."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cli.commands.sync_command import SourceFile, SyncPlan, plan_sync
from media import content_hash
from service.core.schemas import VideoSpec, VideoSummary

ADDED = datetime(2026, 1, 2, tzinfo=UTC)
BEFORE, AFTER = ADDED.timestamp() - 3600, ADDED.timestamp() + 3600


@pytest.fixture
def source(tmp_path: Path) -> list[SourceFile]:
    """Two files that were last modified before the domain was synced."""
    return [make_file(tmp_path, name, name.encode(), BEFORE) for name in ("a.mp4", "inner/Küche 1.mp4")]


def make_file(folder: Path, uri: str, content: bytes, modified: float) -> SourceFile:
    path = folder / uri
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (modified, modified))
    return SourceFile(path, VideoSpec(uri=uri))


def stored(video: VideoSpec, file: SourceFile, **fields: object) -> VideoSummary:
    """The stored video of a file, as the service lists it."""
    return VideoSummary.model_validate(
        {
            "id": video.id,
            "task_id": "tsk_1",
            "uri": "uploads/x.mp4",
            "status": "accepted",
            "reason": None,
            "captions": [],
            "effective_split": None,
            "metadata": {},
            "content_hash": content_hash(file.path),
            "bytes": file.path.stat().st_size,
            "duration": 1.0,
            "added_at": ADDED,
            "thumbnail_url": "",
            "stream_url": "",
        }
        | fields
    )


def synced(source: list[SourceFile], **fields: object) -> list[VideoSummary]:
    """The stored videos after a first sync of all files."""
    plan = plan_sync(source, ())
    return [stored(video, file, **fields) for video, file in zip(plan.new, source, strict=True)]


def summary(plan: SyncPlan) -> tuple[int, int, int, int, int]:
    """Numbers of new, changed, outdated, vanished and unchanged videos."""
    return len(plan.new), len(plan.changed), len(plan.outdated), len(plan.vanished), plan.unchanged


def test_first_sync_sends_everything_and_the_second_nothing(source: list[SourceFile]) -> None:
    plan = plan_sync(source, ())
    assert summary(plan) == (2, 0, 0, 0, 0)
    assert all(video.id and video.id.isascii() for video in plan.new)
    assert summary(plan_sync(source, synced(source))) == (0, 0, 0, 0, 2)


def test_unchanged_files_are_not_read(source: list[SourceFile], monkeypatch: pytest.MonkeyPatch) -> None:
    videos = synced(source)
    monkeypatch.setattr(
        "cli.commands.sync_command.content_hash", lambda path: pytest.fail("the file was read")
    )
    assert summary(plan_sync(source, videos)) == (0, 0, 0, 0, 2)


def test_touched_file_with_the_same_content_is_unchanged(source: list[SourceFile]) -> None:
    videos = synced(source)
    os.utime(source[0].path, (AFTER, AFTER))
    assert summary(plan_sync(source, videos)) == (0, 0, 0, 0, 2)


def test_changed_file_is_replaced_after_its_new_version_is_accepted(source: list[SourceFile]) -> None:
    """The former version stays until the new one is searchable, also over an interruption."""
    videos = synced(source)
    make_file(source[0].path.parent, "a.mp4", b"another content", AFTER)
    plan = plan_sync(source, videos)
    assert summary(plan) == (0, 1, 0, 0, 1)
    (changed,) = plan.changed
    pending = stored(changed, source[0], status="pending", bytes=None, content_hash=None)
    assert summary(plan_sync(source, [*videos, pending])) == (0, 0, 0, 0, 2)
    accepted = plan_sync(source, [*videos, stored(changed, source[0])])
    assert (accepted.outdated, accepted.unchanged) == ([videos[0].id], 2)


def test_vanished_file_is_reported(source: list[SourceFile]) -> None:
    videos = synced(source)
    plan = plan_sync(source[1:], videos)
    assert (plan.vanished, plan.unchanged) == ([videos[0].id], 1)


def test_rejected_file_is_sent_again_only_when_it_changes(source: list[SourceFile]) -> None:
    videos = synced(source, status="rejected", reason="It is empty.", bytes=None, content_hash=None)
    plan = plan_sync(source, videos)
    assert (summary(plan), plan.rejected) == (
        (0, 0, 0, 0, 0),
        {file.video.uri: "It is empty." for file in source},
    )
    make_file(source[0].path.parent, "a.mp4", b"repaired", AFTER)
    assert summary(plan_sync(source, videos)) == (0, 1, 0, 0, 0)


def test_videos_of_other_commands_are_ignored(source: list[SourceFile]) -> None:
    other = stored(VideoSpec(uri="x", id="my-video"), source[0])
    assert summary(plan_sync(source, [other])) == (2, 0, 0, 0, 0)
