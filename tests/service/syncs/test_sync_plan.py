"""Plans of a sync: what a source and the rows of its files say about each video."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock, create_autospec

import pytest

from cinestrata_schemas.choice_types import TextSource
from cinestrata_schemas.syncs import StoredFile
from cinestrata_schemas.tasks import VideoSpec
from cinestrata_schemas.videos import Cue, SourceState, VideoDetails, VideoPatch, VideoSummary
from media import content_hash
from service.core.errors import InvalidInput
from service.syncs.source_listing import local_files
from service.syncs.sync_plan import (
    FollowedDomain,
    FollowedLibrary,
    SourceFiles,
    SyncPlan,
    file_key,
    shown_path,
)
from service.syncs.sync_planner import plan_sync
from service.tasks.manifests.folder_videos import FolderVideos

ADDED = datetime(2026, 1, 2, tzinfo=UTC)
BEFORE = ADDED.timestamp() - 3600
NAMES = ("a.mp4", "inner/Küche 1.mp4")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two files."""
    for name in NAMES:
        write(tmp_path, name, name)
    return tmp_path


def write(folder: Path, uri: str, content: str) -> None:
    path = folder / uri
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    os.utime(path, (BEFORE, BEFORE))


def list_source_files(folder: Path, *videos: str | VideoSpec, **fields: Any) -> SourceFiles:
    """List files; without any, all videos in the folder."""
    given = videos or sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.mp4"))
    specs = [VideoSpec(uri=video, **fields) if isinstance(video, str) else video for video in given]
    return local_files(FolderVideos(folder, specs, {}))


def stored(video: VideoSpec, folder: Path, **fields: object) -> VideoSummary:
    """Return the stored video of a file that was uploaded, as the service lists it."""
    path = folder / video.uri
    facts = {
        "id": video.id,
        "task_id": "tsk_1",
        "uri": f"upload://tsk_1/{video.uri}",
        "status": "accepted",
        "captions": video.captions,
        "content_hash": content_hash(path),
        "bytes": path.stat().st_size,
        "duration": 1.0,
        "added_at": ADDED,
        "replaces": video.replaces,
    }
    empty = {"reason": None, "effective_split": None, "metadata": {}, "thumbnail_url": "", "stream_url": ""}
    return VideoSummary.model_validate(facts | empty | fields)


def rows(plan: SyncPlan, source: str) -> list[StoredFile]:
    """Return the rows that a plan has recorded."""
    return [
        StoredFile(key=file_key(source, path), task_id="tsk_1", source=source, **row.model_dump())
        for path, row in (plan.rows | plan.late_rows).items()
    ]


def followed(folder: Path, **fields: Any) -> FollowedDomain:
    """Return what the library knows after a first sync of all files in the folder."""
    source = list_source_files(folder, **fields)
    plan = plan_sync(source, FollowedDomain())
    videos = [stored(video, folder) for video in plan.new]
    return FollowedDomain(videos, rows(plan, source.source), {"tsk_1"})


def ids(domain: FollowedDomain) -> list[str]:
    return [video.id for video in domain.videos]


def summary(plan: SyncPlan) -> tuple[int, int, int, int, int]:
    """Return the numbers of new, changed, renamed, vanished and unchanged videos."""
    return len(plan.new), len(plan.changed), len(plan.renamed), len(plan.vanished), plan.unchanged


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that were read."""
    names: list[str] = []

    def hash_content(path: Path) -> str:
        names.append(path.name)
        return content_hash(path)

    monkeypatch.setattr("service.syncs.source_listing.content_hash", hash_content)
    return names


def test_first_sync_sends_everything_and_the_second_reads_nothing(folder: Path, read: list[str]) -> None:
    domain = followed(folder)
    assert len(read) == 2
    plan = plan_sync(list_source_files(folder), domain)
    assert (summary(plan), plan.rows, len(read)) == ((0, 0, 0, 0, 2), {}, 2)


def test_renamed_files_keep_their_videos_and_are_not_read(folder: Path, read: list[str]) -> None:
    """Two names are swapped, and another folder gets another name."""
    write(folder, "b.mp4", "b")
    domain = followed(folder)
    read.clear()
    (folder / "a.mp4").rename(folder / "x")
    (folder / "b.mp4").rename(folder / "a.mp4")
    (folder / "x").rename(folder / "b.mp4")
    (folder / "inner").rename(folder / "outer")
    plan = plan_sync(list_source_files(folder), domain)
    a, b, inner = ids(domain)
    assert (summary(plan), read) == ((0, 0, 3, 0, 3), [])
    assert plan.renamed == {a: "b.mp4", b: "a.mp4", inner: "outer/Küche 1.mp4"}
    recorded = {row.video_id: path for path, row in plan.rows.items()}
    assert recorded == plan.renamed
    assert plan.forgotten == [file_key(str(folder), "inner/Küche 1.mp4")]


def test_equal_files_share_a_video_as_long_as_one_exists(folder: Path) -> None:
    domain = followed(folder)
    write(folder, "copy.mp4", "a.mp4")
    plan = plan_sync(list_source_files(folder), domain)
    assert summary(plan) == (0, 0, 0, 0, 3)
    both = replace(domain, files=[*domain.files, *rows(plan, str(folder))])
    (folder / "a.mp4").unlink()
    plan = plan_sync(list_source_files(folder), both)
    assert (summary(plan), plan.renamed) == ((0, 0, 1, 0, 2), {ids(domain)[0]: "copy.mp4"})
    (folder / "copy.mp4").unlink()
    assert plan_sync(list_source_files(folder), both).vanished == ids(domain)[:1]


def test_new_content_is_a_new_version_of_the_video(folder: Path) -> None:
    """It is sent once, also while it is being probed, and stays sent if it is rejected."""
    domain = followed(folder)
    write(folder, "a.mp4", "another content")
    plan = plan_sync(list_source_files(folder), domain)
    assert summary(plan) == (0, 1, 0, 0, 1)
    (changed,) = plan.changed
    assert (changed.replaces, plan.rows["a.mp4"].video_id) == (ids(domain)[0], ids(domain)[0])
    files = [*rows(plan, str(folder)), *domain.files[1:]]
    for status, counts in (("pending", (0, 0, 0, 0, 2)), ("rejected", (0, 0, 0, 0, 1))):
        facts = {"status": status, "reason": "It is damaged.", "content_hash": None, "task_id": "tsk_2"}
        sent = stored(changed, folder, **facts)
        again = plan_sync(
            list_source_files(folder), replace(domain, videos=[*domain.videos, sent], files=files)
        )
        assert summary(again) == counts
        assert again.rejected == ({"a.mp4": "It is damaged."} if status == "rejected" else {})


@pytest.mark.parametrize("hidden", ["ctime", "inode"])
def test_change_that_size_and_time_hide_is_seen(folder: Path, hidden: str, read: list[str]) -> None:
    """The file is overwritten, or replaced by another one, of the same size and with its previous time."""
    domain = followed(folder)
    path = folder / "a.mp4"
    if hidden == "inode":
        path.unlink()
    write(folder, "a.mp4", "b.mp4")
    assert path.stat().st_mtime == BEFORE
    assert summary(plan_sync(list_source_files(folder), domain)) == (0, 1, 0, 0, 1)


def test_only_a_full_comparison_sees_what_all_times_hide(folder: Path, read: list[str]) -> None:
    domain = followed(folder)
    write(folder, "a.mp4", "b.mp4")
    listed = list_source_files(folder)
    same = replace(listed.files[0], changed=domain.files[0].changed)
    hidden = replace(listed, files=[same, listed.files[1]])
    assert summary(plan_sync(hidden, domain)) == (0, 0, 0, 0, 2)
    assert summary(plan_sync(hidden, domain, compare_contents=True)) == (0, 1, 0, 0, 1)


def test_share_with_unstable_inodes_is_read_once(folder: Path, read: list[str]) -> None:
    domain = followed(folder)
    read.clear()
    for run, expected in ((1, 2), (2, 0), (3, 0)):
        listed = list_source_files(folder)
        files = [replace(file, file_id=f"1:{run}00{number}") for number, file in enumerate(listed.files)]
        plan = plan_sync(replace(listed, files=files), domain)
        assert (summary(plan), len(read)) == ((0, 0, 0, 0, 2), expected)
        read.clear()
        if plan.rows:
            domain = replace(domain, files=rows(plan, str(folder)))


def test_restored_backup_changes_nothing(folder: Path) -> None:
    """The files have other inodes and times, but the same contents."""
    domain = followed(folder)
    for name in NAMES:
        content = (folder / name).read_text()
        (folder / name).unlink()
        write(folder, name, content)
        os.utime(folder / name, (0, 0))
    plan = plan_sync(list_source_files(folder), domain)
    assert (summary(plan), sorted(plan.rows)) == ((0, 0, 0, 0, 2), sorted(NAMES))


@pytest.mark.parametrize("is_mounted", [True, False])
def test_disk_that_is_not_mounted_deletes_nothing(folder: Path, is_mounted: bool) -> None:
    """Device numbers may change with a restart: a file that is still there shows which number became which."""
    write(folder, "inner/b.mp4", "b")
    write(folder, "c.mp4", "c")
    domain = followed(folder)
    files = [
        row.model_copy(update={"file_id": f"{7 if row.path and 'inner' in row.path else 1}:{number}"})
        for number, row in enumerate(domain.files)
    ]
    (folder / "inner/b.mp4").unlink()
    if not is_mounted:
        (folder / "inner/Küche 1.mp4").unlink()
    listed = list_source_files(folder)
    devices = {"inner": "8"} if is_mounted else {}
    current = [
        replace(file, file_id=f"{8 if 'inner' in file.video.uri else 1}:99{number}")
        for number, file in enumerate(listed.files)
    ]
    listed = replace(listed, files=current, device_of=lambda path: devices.get(path.partition("/")[0], "1"))
    plan = plan_sync(listed, replace(domain, files=files))
    gone = [video.id for video in domain.videos if video.uri.endswith("inner/b.mp4")]
    assert plan.vanished == (gone if is_mounted else [])


def test_most_files_vanish(folder: Path) -> None:
    domain = followed(folder)
    write(folder, "new.mp4", "new")
    (folder / "a.mp4").unlink()
    assert not plan_sync(list_source_files(folder), domain).lost_most
    (folder / NAMES[1]).unlink()
    plan = plan_sync(list_source_files(folder), domain)
    assert (plan.lost_most, len(plan.vanished), plan.followed) == (True, 2, 2)


def test_rejected_file_is_sent_again_only_when_it_changes(folder: Path) -> None:
    domain = followed(folder)
    facts = {"status": "rejected", "reason": "It is empty.", "content_hash": None}
    specs = [VideoSpec(uri=name, id=video) for name, video in zip(NAMES, ids(domain), strict=True)]
    domain = replace(domain, videos=[stored(spec, folder, **facts) for spec in specs])
    plan = plan_sync(list_source_files(folder), domain)
    assert (summary(plan), plan.rejected) == ((0, 0, 0, 0, 0), dict.fromkeys(NAMES, "It is empty."))
    write(folder, "a.mp4", "repaired")
    plan = plan_sync(list_source_files(folder), domain)
    assert (summary(plan), plan.superseded) == ((1, 0, 0, 0, 0), ids(domain)[:1])


def test_video_of_another_folder_stands_for_a_file_with_its_content(folder: Path) -> None:
    """It never vanishes with that file."""
    other = stored(VideoSpec(uri=NAMES[0], id="mine", captions=["a cat"]), folder, uri="upload://tsk_9/z.mp4")
    domain = FollowedDomain([other], (), {"tsk_1"})
    plan = plan_sync(list_source_files(folder), domain)
    assert (summary(plan), plan.rows["a.mp4"].video_id) == ((1, 0, 0, 0, 1), None)
    (folder / "a.mp4").unlink()
    assert plan_sync(list_source_files(folder), replace(domain, files=rows(plan, str(folder)))).vanished == []


def test_folder_brings_only_its_own_videos(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Another source of the same domain is no reason to delete, and keeps what both have."""
    other = tmp_path_factory.mktemp("other")
    write(other, "a.mp4", "a.mp4")
    domain = followed(folder)
    plan = plan_sync(list_source_files(other), domain)
    assert (summary(plan), plan.followed) == ((0, 0, 0, 0, 1), 0)
    both = replace(domain, files=[*domain.files, *rows(plan, str(other))])
    (folder / "a.mp4").unlink()
    assert plan_sync(list_source_files(folder), both).vanished == []


def test_captions_that_people_wrote_stay_when_the_source_changes(folder: Path) -> None:
    """White space makes no difference, and a source without captions leaves those of the domain."""
    domain = followed(folder, captions=["a cat", "an animal"])
    video = ids(domain)[0]
    assert plan_sync(list_source_files(folder, captions=["a  cat", "an animal"]), domain).recaptioned == {}
    without = plan_sync(list_source_files(folder), domain)
    assert (without.recaptioned, without.rows) == ({}, {}), (
        "captions that come back, changed, replace the former"
    )
    edited = [domain.videos[0].model_copy(update={"captions": ["a cat", "a lynx"]}), domain.videos[1]]
    domain = replace(domain, videos=edited)
    assert plan_sync(list_source_files(folder, captions=["a cat", "an animal"]), domain).recaptioned == {}
    plan = plan_sync(list_source_files(folder, captions=["a dog", "an animal"]), domain)
    assert plan.recaptioned[video] == ["a dog", "a lynx"]


def test_new_subtitles_replace_those_of_the_source(folder: Path) -> None:
    def cue(text: str) -> list[Cue]:
        return [Cue(start=0, end=1, text=text)]

    domain = followed(folder, transcript=cue("one"))
    assert plan_sync(list_source_files(folder, transcript=cue("one")), domain).transcripts == {}
    assert plan_sync(list_source_files(folder), domain).rows == {}
    plan = plan_sync(list_source_files(folder, transcript=cue("two")), domain)
    cues, before = plan.transcripts[ids(domain)[0]]
    assert (cues, before) == (cue("two"), domain.files[0].transcript)


@pytest.mark.parametrize(
    ("source", "readings", "is_replaced"),
    [("subtitles", [], True), ("person", [], False), ("subtitles", ["subtitles"], True)],
)
def test_new_subtitles_leave_what_was_heard_and_what_people_wrote(
    folder: Path, source: TextSource, readings: list[TextSource], is_replaced: bool
) -> None:
    """They take the place of subtitles in the file."""
    old, new = Cue(start=0, end=1, text="one"), Cue(start=0, end=1, text="two")
    domain = followed(folder, transcript=[old])
    plan = plan_sync(list_source_files(folder, transcript=[new]), domain)
    heard = Cue(start=0, end=2, text="won", source="speech")
    text = "one" if source == "subtitles" and not readings else "other"
    library = Mock()
    library.get_video.return_value = VideoDetails.model_construct(
        transcript=[old.model_copy(update={"text": text, "source": source}), heard],
        readings=[SourceState(source=each, state="done") for each in readings],
    )
    FollowedLibrary.edit_texts(library, plan)
    sent = [call.args for call in library.edit_video.call_args_list]
    expected = VideoPatch(transcript=[heard, new.model_copy(update={"source": "subtitles"})])
    assert sent == ([(video, expected) for video in plan.transcripts] if is_replaced else [])


def test_video_that_was_moved_from_another_domain_is_sent_as_its_successor(folder: Path) -> None:
    domain = followed(folder)
    write(folder, "c.mp4", "c")
    library = create_autospec(FollowedLibrary, instance=True)
    library.find_moved = lambda source, contents: dict.fromkeys(contents, "elsewhere")
    plan = plan_sync(list_source_files(folder), domain, library)
    assert [(video.uri, video.replaces) for video in plan.new] == [("c.mp4", "elsewhere")]
    pending = stored(plan.new[0], folder, status="pending", content_hash=None)
    files = [*domain.files, *rows(plan, str(folder))]
    again = plan_sync(
        list_source_files(folder), replace(domain, videos=[*domain.videos, pending], files=files)
    )
    assert summary(again) == (0, 0, 0, 0, 3)


def test_video_that_was_moved_to_a_new_domain_keeps_its_texts(folder: Path) -> None:
    cue = Cue(start=0, end=1, text="hello", source="person", id="1")
    heard = Cue(start=0, end=1, text="yellow", source="speech")
    library = create_autospec(FollowedLibrary, instance=True)
    library.find_moved = lambda source, contents: {contents[0]: "elsewhere"}
    texts = {"captions": ["a cat", "a lynx"], "metadata": {"place": "zoo"}, "transcript": [cue, heard]}
    library.get_video = lambda _: VideoDetails.model_construct(**texts)
    plan = plan_sync(list_source_files(folder, captions=["a cat"]), FollowedDomain(), library)
    moved, other = plan.new
    assert (moved.replaces, other.replaces, other.captions) == (None, None, ["a cat"])
    assert (moved.captions, moved.metadata) == (["a cat", "a lynx"], {"place": "zoo"})
    assert moved.transcript == [cue.model_copy(update={"id": None})]


def test_given_ids_and_source_without_a_usable_file_are_refused(folder: Path) -> None:
    with pytest.raises(InvalidInput, match="'mine'"):
        list_source_files(folder, VideoSpec(uri="a.mp4", id="mine"))
    with pytest.raises(InvalidInput, match=r"No file .* gone\.mp4: The file does not exist"):
        list_source_files(folder, "gone.mp4")


def test_files_that_cannot_be_used_are_left_out_and_have_not_vanished(folder: Path) -> None:
    domain = followed(folder)
    (folder / "a.mp4").unlink()
    (folder / "folder.mp4").mkdir()
    write(folder, "new.mp4", "new")
    listed = list_source_files(
        folder,
        VideoSpec(uri="a.mp4"),
        VideoSpec(uri="folder.mp4"),
        VideoSpec(uri="s3://films/x.mp4"),
        VideoSpec(uri=NAMES[1], captions=["x" * 100_000]),
        VideoSpec(uri="new.mp4"),
    )
    plan = plan_sync(listed, domain)
    assert [video.uri for video in plan.new] == ["new.mp4"]
    # A table still names the file that is gone; the other one is there.
    assert (plan.vanished, plan.forgotten, plan.unchanged) == (ids(domain)[:1], [], 0)
    assert {path: reason.partition(".")[0] for path, reason in plan.left_out.items()} == {
        "a.mp4": "The file does not exist",
        "folder.mp4": "It is not a regular file",
        "s3://films/x.mp4": "It is outside the folder; a sync follows the files of one folder",
        NAMES[1]: "captions[0]: The caption has 100000 characters",
    }


def test_folder_or_file_that_cannot_be_read_keeps_its_videos(folder: Path) -> None:
    domain = followed(folder)
    listed = list_source_files(folder, "a.mp4")
    listed.left_out["inner"] = "The folder cannot be read."
    assert plan_sync(listed, domain).vanished == []

    def refuse() -> str:
        raise PermissionError(errno.EACCES, "Permission denied")

    listed = list_source_files(folder)
    first, second = listed.files
    plan = plan_sync(replace(listed, files=[replace(first, bytes=99, content=refuse), second]), domain)
    assert summary(plan) == (0, 0, 0, 0, 1)
    assert plan.left_out == {"a.mp4": "The file cannot be read (Permission denied)."}


def test_videos_with_a_problem_are_not_sent(folder: Path) -> None:
    domain = followed(folder)
    write(folder, "a.mp4", "another content")
    write(folder, "b.mp4", "new")
    plan = plan_sync(list_source_files(folder), domain)
    plan.leave_out(lambda video: "A link." if video.uri == "a.mp4" else None)
    assert ([video.uri for video in plan.new], plan.changed, plan.vanished) == (["b.mp4"], [], [])
    assert plan.left_out == {"a.mp4": "A link."}
    assert "a.mp4" not in plan.rows


def test_paths_are_shown_in_printable_characters() -> None:
    assert shown_path("Küche/\udcff\n\x1b[31m.mp4") == r"Küche/\udcff\n\x1b[31m.mp4"
