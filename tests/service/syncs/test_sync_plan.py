"""Plans of a sync: new, changed, recaptioned, unchanged, vanished and rejected files."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cinestrata_schemas.tasks import VideoSpec
from cinestrata_schemas.videos import VideoSummary
from media import content_hash
from service.core.errors import InvalidInput
from service.syncs.source_listing import SourceFiles, local_files
from service.syncs.sync_plan import SourceFile, SyncPlan, plan_sync, shown_path
from service.tasks.manifests.folder_videos import FolderVideos

ADDED = datetime(2026, 1, 2, tzinfo=UTC)
BEFORE, AFTER = ADDED.timestamp() - 3600, ADDED.timestamp() + 3600
NAMES = ("a.mp4", "inner/Küche 1.mp4")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two files that were last modified before the domain was synced."""
    for name in NAMES:
        write(tmp_path, name, name.encode(), BEFORE)
    return tmp_path


def write(folder: Path, uri: str, content: bytes, modified: float) -> None:
    path = folder / uri
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (modified, modified))


def listed(folder: Path, names: Sequence[str] = NAMES, captions: Sequence[str] = ()) -> list[SourceFile]:
    return source_files(folder, *(VideoSpec(uri=name, captions=list(captions)) for name in names)).files


def source_files(folder: Path, *videos: VideoSpec) -> SourceFiles:
    return local_files(FolderVideos(folder, videos, {}))


def stored(video: VideoSpec, folder: Path, **fields: object) -> VideoSummary:
    """Return the stored video of a file, as the service lists it."""
    path = folder / video.uri
    return VideoSummary.model_validate(
        {
            "id": video.id,
            "task_id": "tsk_1",
            "uri": "uploads/x.mp4",
            "status": "accepted",
            "reason": None,
            "captions": video.captions,
            "effective_split": None,
            "metadata": {},
            "content_hash": content_hash(path),
            "bytes": path.stat().st_size,
            "duration": 1.0,
            "added_at": ADDED,
            "thumbnail_url": "",
            "stream_url": "",
        }
        | fields
    )


def synced(folder: Path, **fields: object) -> list[VideoSummary]:
    """Return the stored videos after a first sync of all files."""
    return [stored(video, folder, **fields) for video in plan_sync(listed(folder), ()).new]


def summary(plan: SyncPlan) -> tuple[int, int, int, int, int]:
    """Return the numbers of new, changed, outdated, vanished and unchanged videos."""
    return len(plan.new), len(plan.changed), len(plan.outdated), len(plan.vanished), plan.unchanged


def test_first_sync_sends_everything_and_the_second_nothing(folder: Path) -> None:
    plan = plan_sync(listed(folder), ())
    assert summary(plan) == (2, 0, 0, 0, 0)
    assert all(video.id and video.id.isascii() for video in plan.new)
    assert summary(plan_sync(listed(folder), synced(folder))) == (0, 0, 0, 0, 2)


def test_unchanged_files_are_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    videos = synced(folder)
    monkeypatch.setattr(
        "service.syncs.source_listing.content_hash", lambda path: pytest.fail("the file was read")
    )
    assert summary(plan_sync(listed(folder), videos)) == (0, 0, 0, 0, 2)


def test_touched_file_with_the_same_content_is_unchanged(folder: Path) -> None:
    videos = synced(folder)
    os.utime(folder / NAMES[0], (AFTER, AFTER))
    assert summary(plan_sync(listed(folder), videos)) == (0, 0, 0, 0, 2)


def test_changed_file_is_replaced_after_its_new_version_is_accepted(folder: Path) -> None:
    """The previous version stays until the new one is searchable, even across an interruption."""
    videos = synced(folder)
    write(folder, "a.mp4", b"another content", AFTER)
    plan = plan_sync(listed(folder), videos)
    assert summary(plan) == (0, 1, 0, 0, 1)
    (changed,) = plan.changed
    pending = stored(changed, folder, status="pending", bytes=None, content_hash=None)
    assert summary(plan_sync(listed(folder), [*videos, pending])) == (0, 0, 0, 0, 2)
    accepted = plan_sync(listed(folder), [*videos, stored(changed, folder)])
    assert (accepted.outdated, accepted.unchanged) == ([videos[0].id], 2)


def test_vanished_file_is_reported(folder: Path) -> None:
    videos = synced(folder)
    plan = plan_sync(listed(folder, NAMES[1:]), videos)
    assert (plan.vanished, plan.unchanged) == ([videos[0].id], 1)


def test_rejected_file_is_sent_again_only_when_it_changes(folder: Path) -> None:
    videos = synced(folder, status="rejected", reason="It is empty.", bytes=None, content_hash=None)
    plan = plan_sync(listed(folder), videos)
    assert (summary(plan), plan.rejected) == (
        (0, 0, 0, 0, 0),
        dict.fromkeys(NAMES, "It is empty."),
    )
    write(folder, "a.mp4", b"repaired", AFTER)
    assert summary(plan_sync(listed(folder), videos)) == (0, 1, 0, 0, 0)


def test_videos_of_other_commands_stand_for_files_with_their_content(folder: Path) -> None:
    other = stored(VideoSpec(uri=NAMES[0], id="my-video", captions=["a cat"]), folder)
    plan = plan_sync(listed(folder, captions=["a dog"]), [other])
    assert (summary(plan), plan.recaptioned) == ((1, 0, 0, 0, 1), {"my-video": ["a dog"]})
    assert summary(plan_sync(listed(folder, NAMES[1:]), [other])) == (1, 0, 0, 0, 0)
    write(folder, NAMES[0], b"another content", AFTER)
    assert summary(plan_sync(listed(folder), [other])) == (2, 0, 0, 0, 0)


def test_copy_that_was_rejected_is_the_video_that_it_copies(folder: Path) -> None:
    copies = synced(
        folder, status="rejected", reason="It has the same content.", bytes=None, content_hash=None
    )
    other = stored(VideoSpec(uri=NAMES[0], id="my-video"), folder)
    plan = plan_sync(listed(folder), [*copies, other])
    assert (plan.unchanged, list(plan.rejected), plan.outdated) == (1, [NAMES[1]], [copies[0].id])


def test_captions_of_the_source_replace_others(folder: Path) -> None:
    """White space makes no difference, and a source without captions leaves those of the domain."""
    videos = synced(folder, captions=["a cat"])
    assert plan_sync(listed(folder), videos).recaptioned == {}
    assert plan_sync(listed(folder, captions=["a  cat"]), videos).recaptioned == {}
    plan = plan_sync(listed(folder, NAMES[:1], captions=["a dog", "a dog"]), videos)
    assert plan.recaptioned == {videos[0].id: ["a dog"]}
    assert plan.unchanged == 1


def test_given_ids_are_refused_by_name(folder: Path) -> None:
    with pytest.raises(InvalidInput) as named:
        source_files(folder, VideoSpec(uri="a.mp4", id="mine"))
    assert "'mine'" in named.value.errors[0].message


def test_files_that_cannot_be_used_are_left_out_and_have_not_vanished(folder: Path) -> None:
    videos = synced(folder)
    (folder / "a.mp4").unlink()
    (folder / "folder.mp4").mkdir()
    write(folder, "new.mp4", b"new", AFTER)
    found = source_files(
        folder,
        VideoSpec(uri="a.mp4"),
        VideoSpec(uri="folder.mp4"),
        VideoSpec(uri="s3://films/x.mp4"),
        VideoSpec(uri=NAMES[1], captions=["x" * 100_000]),
        VideoSpec(uri="new.mp4"),
    )
    plan = plan_sync(found.files, videos, left_out=found.left_out)
    assert [video.uri for video in plan.new] == ["new.mp4"]
    assert (plan.vanished, plan.outdated, plan.unchanged) == ([], [], 0)
    assert {path: reason.partition(".")[0] for path, reason in plan.left_out.items()} == {
        "a.mp4": "The file does not exist",
        "folder.mp4": "It is not a regular file",
        "s3://films/x.mp4": "It is outside the folder; a sync follows the files of one folder",
        NAMES[1]: "captions[0]: The caption has 100000 characters",
    }


def test_source_without_a_usable_file_is_refused(folder: Path) -> None:
    with pytest.raises(InvalidInput, match=r"No file .* gone\.mp4: The file does not exist"):
        listed(folder, ["gone.mp4"])


def test_file_whose_content_cannot_be_read_keeps_its_video(folder: Path) -> None:
    videos = synced(folder)

    def refuse() -> str:
        raise PermissionError(errno.EACCES, "Permission denied")

    first, second = listed(folder)
    plan = plan_sync([replace(first, bytes=99, content=refuse), second], videos)
    assert summary(plan) == (0, 0, 0, 0, 1)
    assert plan.left_out == {"a.mp4": "The file cannot be read (Permission denied)."}


def test_videos_with_a_problem_are_not_sent(folder: Path) -> None:
    videos = synced(folder)
    write(folder, "a.mp4", b"another content", AFTER)
    write(folder, "b.mp4", b"new", AFTER)
    plan = plan_sync(listed(folder, ["a.mp4", "b.mp4", NAMES[1]]), videos)
    plan.leave_out(lambda video: "A link." if video.uri == "a.mp4" else None)
    assert ([video.uri for video in plan.new], plan.changed, plan.vanished) == (["b.mp4"], [], [])
    assert plan.left_out == {"a.mp4": "A link."}


def test_paths_are_shown_in_printable_characters() -> None:
    assert shown_path("Küche/\udcff\n\x1b[31m.mp4") == r"Küche/\udcff\n\x1b[31m.mp4"
