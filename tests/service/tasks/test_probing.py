"""The probing job on real videos of a folder and of a web server: accepted, rejected, resumed, postponed."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from sqlalchemy import select, update

from cinestrata_schemas.tasks import TaskDetails, TaskSpec
from media import UndecidedVideo, VideoDecoder, frame_cache_path, load_frames
from media.sources.downloading import DownloadLimits
from models.backbones.backbone_loading import frame_spec
from service.catalog.database import now, session_scope
from service.catalog.tables import Chunk, Task, Video
from service.core.errors import InvalidInput
from service.core.settings import Settings, settings
from service.library import library_listing
from service.storage import library_files
from service.storage.video_files import remove_deleted_files
from service.tasks import commands, lifecycle, probing, probing_completion
from service.tasks.lifecycle import state_machine
from service.tasks.probing_completion import SplitCandidate, assign_splits
from tests.catalog_rows import accepted_videos
from tests.claimed_probing import probe
from tests.web_files import WebFiles

Make = Callable[..., Path]


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory, write_video: Make) -> Path:
    """Five different videos and some invalid files."""
    folder = tmp_path_factory.mktemp("clips")
    for seed in range(5):
        write_video(folder / f"{seed}.mp4", seed=seed)
    shutil.copy(folder / "0.mp4", folder / "copy of 0.mp4")
    (folder / "empty.mp4").write_bytes(b"")
    whole = (folder / "1.mp4").read_bytes()
    (folder / "cut.mp4").write_bytes(whole[: len(whole) // 3])
    (folder / "text.mp4").write_text("no video")
    return folder


@pytest.fixture
def with_clips(
    clips: Path, tmp_path: Path, settings_factory: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> Settings:
    monkeypatch.setattr(probing_completion, "MAX_BAD_SHARE", 0.5)
    return settings_factory(tmp_path, media_root=clips)


def post(*uris: str) -> TaskDetails:
    videos = [{"uri": uri, "captions": ["a clip"]} for uri in uris]
    return commands.create_task(TaskSpec.model_validate({"name": "clips", "videos": videos})).task


def test_probed_task_waits_for_training(with_clips: Settings) -> None:
    view = probe(post("0.mp4", "1.mp4", "2.mp4", "3.mp4", "4.mp4").id)
    facts = (view.state, view.progress.stage, view.held_out, view.attempts)
    assert facts == ("probing", "waiting", "cross_fitted", 0)
    counts = {"videos": 5, "accepted": 5, "rejected": 0, "train": 5, "val": 0, "test": 0, "appended": 0}
    assert view.counts.model_dump() == counts
    spec = frame_spec(settings().backbone, settings().frames)
    for video in accepted_videos(view.id):
        path = frame_cache_path(settings().cache_dir, spec.frames, spec.size, video.content_hash)
        frames = load_frames(path)
        assert frames.shape == (spec.frames, spec.size, spec.size, 3)
        assert library_listing.thumbnail_path(video.id).read_bytes()[:2] == b"\xff\xd8"
        assert library_listing.stream_path(video.id).name == video.uri
        shown = library_listing.get_video(video.id)
        assert (shown.width, shown.height, shown.codec, shown.task) == (64, 48, "h264", "clips")
    assert lifecycle.claim_training(view.id, "learner") is not None


def test_invalid_videos_are_rejected_individually(with_clips: Settings) -> None:
    view = probe(post("0.mp4", "empty.mp4", "1.mp4", "cut.mp4", "2.mp4", "copy of 0.mp4", "text.mp4").id)
    assert view.state == "probing"
    reasons = {r.uri: r.reason for r in view.rejected}
    assert set(reasons) == {"empty.mp4", "cut.mp4", "copy of 0.mp4", "text.mp4"}
    assert reasons["copy of 0.mp4"] == "same content as 0.mp4"
    assert all(str(settings().media_root) not in reason for reason in reasons.values())
    uris = [e.data["uri"] for e in commands.events_after(view.id) if e.kind == "rejected"]
    assert sorted(uris) == sorted(reasons)
    assert (view.counts.accepted, view.counts.rejected) == (3, 4)
    fractions = [e.data["fraction"] for e in commands.events_after(view.id) if e.kind == "progress"]
    assert fractions[-2] == 1.0


def test_file_that_changes_while_it_is_read_is_rejected(
    with_clips: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frames must not be stored under another content's hash."""
    original = probing.content_hash
    changing = settings().media_root / "changing.mp4"
    shutil.copy(settings().media_root / "1.mp4", changing)

    def hash_and_change(path: Path) -> str:
        digest = original(path)
        if path.name == changing.name:
            with path.open("ab") as file:
                file.write(b"\0\0\0\x0cfree1234")
        return digest

    monkeypatch.setattr(probing, "content_hash", hash_and_change)
    view = probe(post("0.mp4", "changing.mp4", "3.mp4").id)
    changing.unlink()
    (rejected,) = view.rejected
    assert (rejected.uri, rejected.reason) == ("changing.mp4", "The file changed while it was read.")
    assert (view.state, view.counts.accepted) == ("probing", 2)


def test_too_many_invalid_videos_fail_the_task(with_clips: Settings) -> None:
    view = probe(post("0.mp4", "empty.mp4", "cut.mp4").id)
    assert view.state == "failed"
    assert "2 of 3 videos can't be used (67%; the limit is 50%)" in (view.error or "")
    assert len(view.rejected) == 2
    assert lifecycle.claim_training(view.id, "learner") is None


@pytest.mark.parametrize("cause", ["disk", "decoder", "missing", "damaged", "copy"])
def test_upload_of_a_failed_task_is_removed_only_for_its_content(
    with_clips: Settings, monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    monkeypatch.setattr(probing_completion, "MAX_BAD_SHARE", 0)
    task = post("empty.mp4", "1.mp4", "2.mp4")
    upload = settings().uploads_dir / "tsk_0123456789abcdef" / "new.mp4"
    upload.parent.mkdir(parents=True)
    source = {"damaged": "cut.mp4", "copy": "1.mp4"}.get(cause, "3.mp4")
    shutil.copy(settings().media_root / source, upload)
    with session_scope(write=True) as session:
        video = session.query(Video).filter(Video.uri == "2.mp4").one()
        video.uri = f"upload://{upload.relative_to(settings().uploads_dir)}"
    hash_file, decode = probing.content_hash, VideoDecoder.decode

    def hash_or_fail(path: Path) -> str:
        if cause == "disk" and path == upload:
            raise OSError(errno.EIO, "Input/output error")
        return hash_file(path)

    def decode_or_fail(self: VideoDecoder, path: Path, **options: Any) -> Any:
        if cause == "decoder" and path == upload:
            raise UndecidedVideo("It took longer than 60 s.")
        return decode(self, path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(probing, "content_hash", hash_or_fail)
        patch.setattr(VideoDecoder, "decode", decode_or_fail)
        if cause == "missing":
            upload.rename(upload.with_suffix(".away"))
        view = probe(task.id)
        if cause == "missing":
            upload.with_suffix(".away").rename(upload)
    is_final = cause in ("damaged", "copy")
    assert (view.state, view.counts.rejected) == ("failed", 2)
    assert view.remedy is not None
    assert view.remedy.name == ("delete_task" if is_final else "retry_task")
    assert remove_deleted_files() == {}
    assert upload.exists() is not is_final
    commands.retry_task(task.id)
    assert [r.uri.startswith("upload:") for r in probe(task.id).rejected] == [False, True][: 1 + is_final]


def test_copies_do_not_count_as_invalid_videos(with_clips: Settings) -> None:
    view = probe(post("0.mp4", "0.mp4", "copy of 0.mp4", "0.mp4").id)
    assert (view.state, view.counts.accepted) == ("probing", 1)


def test_lost_frame_cache_is_created_again(with_clips: Settings) -> None:
    view = post("0.mp4", "1.mp4")
    assert probe(view.id).progress.stage == "waiting"
    shutil.rmtree(settings().cache_dir)
    claim = lifecycle.claim_training(view.id, "learner")
    assert claim is not None
    claim.fail("the frames are gone")
    commands.retry_task(view.id)
    assert probe(view.id).counts.accepted == 2
    assert len(list(settings().cache_dir.rglob("*.npy"))) == 2


def test_given_splits_are_kept(with_clips: Settings) -> None:
    videos = [
        {"uri": "0.mp4", "captions": ["a"], "split": "test"},
        {"uri": "1.mp4", "captions": ["b"], "split": "val"},
        {"uri": "2.mp4", "captions": ["c"]},
        {"uri": "3.mp4"},
    ]
    task = commands.create_task(TaskSpec.model_validate({"name": "clips", "videos": videos})).task
    view = probe(task.id)
    assert view.held_out == "given"
    assert [v.effective_split for v in accepted_videos(task.id)] == ["test", "val", "train", None]


def test_missing_validation_split_is_sampled() -> None:
    clips = [SplitCandidate(n, f"{(n * 7919) % 1009:064x}", True, None) for n in range(60)]
    plain, (splits, held_out) = assign_splits(clips, 0.2)[0], assign_splits(clips, 0.2, 0.05)
    validating = [n for n in splits if splits[n] == "val"]
    assert len(validating) == 3
    assert {splits[n] for n in splits} == {"train", "val", "test"}
    # Held-out videos do not change; validation videos have the lowest hashes of the others.
    assert {**splits, **dict.fromkeys(validating, "train")} == plain
    training = sorted((n * 7919) % 1009 for n in splits if splits[n] == "train")
    assert max((n * 7919) % 1009 for n in validating) < training[0]
    assert assign_splits(clips[::-1], 0.2, 0.05) == (splits, held_out)
    assert assign_splits(clips[:19], 0.2, 0.05) == assign_splits(clips[:19], 0.2)
    given = [SplitCandidate(99, "f" * 64, True, "val"), *clips]
    assert [n for n, split in assign_splits(given, 0.2, 0.05)[0].items() if split == "val"] == [99]
    assert "train" in assign_splits(clips, 0.9, 0.49)[0].values()


CLIPS = st.lists(
    st.tuples(st.booleans(), st.sampled_from([None, None, "train", "val", "test"])), max_size=30
).map(lambda rows: [SplitCandidate(n, f"{(n * 7919) % 1009:064x}", c, s) for n, (c, s) in enumerate(rows)])


@given(CLIPS, st.floats(0, 0.99), st.randoms())
@hypothesis_settings(deadline=None)
def test_splits_are_deterministic_and_complete(
    clips: list[SplitCandidate], share: float, random: Any
) -> None:
    splits, held_out = assign_splits(clips, share)
    assert set(splits) == {c.vector_id for c in clips}
    assert all(splits[c.vector_id] == c.split for c in clips if c.split)
    assert all(splits[c.vector_id] is None for c in clips if not c.captioned and not c.split)
    shuffled = random.sample(clips, len(clips))
    assert assign_splits(shuffled, share) == (splits, held_out)
    folded, folded_from = assign_splits(clips, share, is_folded=True)
    uses = {"test": "fold"} if held_out == "derived" else {}
    assert folded == {
        c.vector_id: c.split or uses.get(use or "", use) for c in clips for use in [splits[c.vector_id]]
    }
    assert folded_from == ("cross_fitted" if uses else held_out)
    captioned = [c for c in clips if c.captioned]
    derived = [c for c in captioned if c.split is None and splits[c.vector_id] == "test"]
    if any(c.split == "test" for c in captioned):
        assert (held_out, derived) == ("given", [])
    elif derived:
        assert held_out == "derived"
        assert len(derived) <= max(1, int(share * len(captioned)))
        assert any(splits[c.vector_id] == "train" for c in captioned)
    else:
        assert held_out is None
        free = [c for c in captioned if c.split is None]
        is_trained = any(c.split == "train" for c in captioned)
        assert share == 0 or len(captioned) < 2 or len(free) <= (not is_trained)


@pytest.mark.parametrize("folder", ["thumbnails_dir", "cache_dir"])
def test_data_folder_that_cannot_be_written_fails_the_task_and_rejects_no_video(
    with_clips: Settings, folder: str
) -> None:
    blocked: Path = getattr(with_clips, folder)
    blocked.parent.mkdir(parents=True, exist_ok=True)
    blocked.write_text("a file in place of the folder")
    view = probe(post("0.mp4").id)
    assert (view.state, view.rejected) == ("failed", [])
    assert str(blocked) in (view.error or "")
    assert "write access" in (view.error_hint or "")


def test_decoder_output_that_cannot_be_stored_fails_the_task(
    with_clips: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(probing.VideoDecoder, "decode", full)
    view = probe(post("0.mp4").id)
    assert (view.state, view.rejected) == ("failed", [])
    assert "No space left on device" in (view.error or "")
    assert str(with_clips.data_dir) in (view.error or "")


@pytest.fixture
def remote(
    tmp_path: Path,
    settings_factory: Callable[..., Settings],
    web_files: WebFiles,
    clips: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> WebFiles:
    """Four videos on an allowed web server, whose downloads are attempted again without a pause."""
    monkeypatch.setattr(library_files, "DownloadLimits", partial(DownloadLimits, pause=0.0))
    for number in range(4):
        web_files.files[f"/videos/{number}.mp4"] = (clips / f"{number}.mp4").read_bytes()
    settings_factory(tmp_path, sources=f"private+{web_files.url}/videos/")
    monkeypatch.setattr(probing_completion, "MAX_BAD_SHARE", 0.5)
    return web_files


def end_pause(task_id: str) -> None:
    """End the pauses of a task and of its chunks."""
    with session_scope(write=True) as session:
        at = now(session) - timedelta(seconds=1)
        session.execute(update(Task).where(Task.id == task_id).values(lease_expires_at=at))
        session.execute(update(Chunk).where(Chunk.task_id == task_id).values(lease_expires_at=at))


def statuses(task_id: str) -> list[str]:
    ordered = select(Video.status).where(Video.task_id == task_id).order_by(Video.vector_id)
    with session_scope() as session:
        return list(session.scalars(ordered))


def test_videos_of_a_web_server_are_accepted_and_their_downloads_dropped(remote: WebFiles) -> None:
    view = probe(post(*(f"{remote.url}/videos/{number}.mp4?token=hunter2" for number in range(4))).id)
    assert (view.state, view.counts.accepted) == ("probing", 4)
    assert list(settings().sources_dir.glob("*.download")) == []
    spec = frame_spec(settings().backbone, settings().frames)
    for video in accepted_videos(view.id):
        assert library_listing.thumbnail_path(video.id).is_file()
        path = frame_cache_path(settings().cache_dir, spec.frames, spec.size, video.content_hash)
        assert path.is_file(), "training and embedding need no second download"
        assert library_listing.get_video(video.id).uri.endswith(".mp4?***")
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
    events = [event.data for event in commands.events_after(view.id)]
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
    assert (view.state, view.progress.stage) == ("probing", "waiting for the source")
    assert (view.progress.outages, view.attempts, view.rejected) == (1, 0, [])
    assert statuses(task.id) == ["accepted", "pending", "accepted"]
    assert any("answers with status 503" in e.data.get("message", "") for e in commands.events_after(task.id))
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
    for outages in (1, 2):
        assert probe(task.id).progress.outages == outages
        end_pause(task.id)
    del remote.handlers["/videos/0.mp4"]
    assert probe(task.id).progress.outages == 1
