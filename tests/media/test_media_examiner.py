"""The child process that decodes: what it writes, and that it may die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import media.video_decoder as examiner_module
from media import (
    DecoderUnavailable,
    MediaError,
    VideoDecoder,
    VideoInfo,
    VideoLimits,
    content_hash,
    frame_cache_path,
    load_frames,
)

MakeVideo = Callable[..., Path]


def examine(path: Path, *, limits: VideoLimits | None = None, **options: Any) -> VideoInfo:
    with VideoDecoder(limits) as decoder:
        return decoder.decode(path, **options)


def pid(examiner: VideoDecoder) -> int:
    assert examiner._child is not None
    return examiner._child.pid


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_facts_cache_and_thumbnail(make_video: MakeVideo, tmp_path: Path) -> None:
    path = make_video("in/clip.mp4", size=(640, 480))
    out = tmp_path / "out"
    info = examine(path, frames=4, size=32, cache=out / "frames", thumbnail=out / "thumbs" / "1.jpg")
    assert isinstance(info, VideoInfo)
    assert info.content_hash == content_hash(path)
    assert info.bytes == path.stat().st_size
    assert (info.width, info.height, info.frames) == (640, 480, 8)
    cached = frame_cache_path(out / "frames", 4, 32, info.content_hash)
    frames = load_frames(cached)
    assert frames.shape == (4, 32, 32, 3)
    assert frames.dtype == np.uint8
    assert np.all(np.diff(frames.mean(axis=(1, 2, 3))) > 20)
    with Image.open(out / "thumbs" / "1.jpg") as image:
        assert image.format == "JPEG"
        assert image.size == (320, 240)
    assert files(out) == {str(cached.relative_to(out)), "thumbs/1.jpg"}
    assert files(tmp_path / "in") == {"clip.mp4"}


def test_small_videos_keep_their_size_in_thumbnails(make_video: MakeVideo, tmp_path: Path) -> None:
    thumbnail = tmp_path / "small.jpg"
    examine(make_video("tall.mp4", size=(48, 64)), frames=1, size=16, thumbnail=thumbnail)
    with Image.open(thumbnail) as image:
        assert image.size == (48, 64)


def test_examining_again_gives_the_same_bytes(make_video: MakeVideo, tmp_path: Path) -> None:
    path = make_video("clip.mkv")
    results = []
    for round_ in ("first", "second"):
        out = tmp_path / round_
        info = examine(path, frames=3, size=24, cache=out, thumbnail=out / "t.jpg")
        cached = frame_cache_path(out, 3, 24, info.content_hash)
        results.append((info, cached.read_bytes(), (out / "t.jpg").read_bytes()))
    assert results[0] == results[1]


def test_relative_paths_are_the_callers(
    make_video: MakeVideo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_video("clip.mp4")
    monkeypatch.chdir(tmp_path)
    info = examine(Path("clip.mp4"), frames=2, size=16, cache=Path("cache"), thumbnail=Path("thumb.jpg"))
    assert frame_cache_path(tmp_path / "cache", 2, 16, info.content_hash).is_file()
    assert (tmp_path / "thumb.jpg").is_file()


def test_one_child_serves_many_and_bad_files_do_not_harm_it(
    make_video: MakeVideo, make_audio: Callable[[str], Path], tmp_path: Path
) -> None:
    good = make_video("good.mp4")
    empty, text, cut = (tmp_path / name for name in ("empty.mp4", "text.mp4", "cut.mp4"))
    empty.write_bytes(b"")
    text.write_text("not a video")
    cut.write_bytes(good.read_bytes()[:500])
    out = tmp_path / "out"
    out.mkdir()
    with VideoDecoder() as examiner:
        first = examiner.decode(good, frames=2, size=16)
        child = pid(examiner)
        for path, words in (
            (empty, "empty"),
            (text, "not a video"),
            (cut, "not a video"),
            (make_audio("song.m4a"), "audio only"),
            (tmp_path / "gone.mp4", "cannot be read"),
            (tmp_path, "no file but a folder"),
        ):
            with pytest.raises(MediaError, match=words) as caught:
                examiner.decode(path, frames=2, size=16, cache=out, thumbnail=out / "t.jpg")
            assert str(tmp_path) not in caught.value.reason
            assert path.name in caught.value.reason
        assert examiner.decode(good, frames=2, size=16) == first
        assert pid(examiner) == child
    assert files(out) == set()


def test_messages_call_the_video_as_the_caller_does(tmp_path: Path) -> None:
    (tmp_path / "a1b2c3").write_bytes(b"")
    with pytest.raises(MediaError, match=r"^holiday ☀\.mp4 is empty") as caught:
        examine(tmp_path / "a1b2c3", frames=1, size=8, name="holiday ☀.mp4")
    assert "a1b2c3" not in caught.value.reason


def test_too_many_bytes(make_video: MakeVideo) -> None:
    path = make_video("clip.mp4")
    size = path.stat().st_size
    with pytest.raises(MediaError, match=f"{size} bytes"):
        examine(path, frames=1, size=8, limits=VideoLimits(max_bytes=size - 1))
    examine(path, frames=1, size=8, limits=VideoLimits(max_bytes=size))


def test_a_child_that_was_killed_between_requests_is_replaced(make_video: MakeVideo) -> None:
    path = make_video("clip.mp4")
    with VideoDecoder() as examiner:
        first = examiner.decode(path, frames=1, size=8)
        for _ in range(3):
            child = pid(examiner)
            os.kill(child, signal.SIGKILL)  # and not waited for: the next request may meet it half dead
            assert examiner.decode(path, frames=1, size=8) == first
            assert pid(examiner) != child


def test_the_time_out_is_kept_and_the_examiner_goes_on(make_video: MakeVideo, tmp_path: Path) -> None:
    path = make_video("clip.mp4")
    with VideoDecoder(VideoLimits(timeout_seconds=0.001)) as examiner:
        with pytest.raises(MediaError, match=r"clip\.mp4 took longer than 0\.001 s"):
            examiner.decode(path, frames=1, size=8, thumbnail=tmp_path / "t.jpg")
        assert examiner._child is None
        examiner.limits = VideoLimits()
        examiner.decode(path, frames=1, size=8)
    assert not (tmp_path / "t.jpg").exists()


def test_a_child_that_hangs_is_replaced(make_video: MakeVideo, tmp_path: Path) -> None:
    path = make_video("clip.mp4")
    with VideoDecoder() as examiner:
        first = examiner.decode(path, frames=1, size=8)
        child = pid(examiner)
        os.kill(child, signal.SIGSTOP)
        examiner.limits = VideoLimits(timeout_seconds=0.3)
        with pytest.raises(MediaError, match=r"clip\.mp4 took longer than 0\.3 s"):
            examiner.decode(path, frames=1, size=8)
        with pytest.raises(ProcessLookupError):
            os.kill(child, 0)
        examiner.limits = VideoLimits()
        assert examiner.decode(path, frames=1, size=8) == first


def test_a_child_that_is_killed_in_the_middle_is_replaced_and_the_video_decoded(
    make_video: MakeVideo,
) -> None:
    path = make_video("clip.mp4")
    with VideoDecoder() as examiner:
        first = examiner.decode(path, frames=1, size=8)
        child = pid(examiner)
        os.kill(child, signal.SIGSTOP)  # it will have taken the request, and not answered it
        killer = threading.Timer(0.2, os.kill, (child, signal.SIGKILL))
        killer.start()
        assert examiner.decode(path, frames=1, size=8) == first
        assert pid(examiner) != child
        killer.join()


Fragile = Callable[[str], None]


@pytest.fixture
def fragile_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fragile:
    """Give the child a weakness: no file at hand crashes the decoder, so some lines of Python play the part."""

    def weaken(lines: str) -> None:
        program = tmp_path / "python"
        program.write_text(
            f"#!{sys.executable}\nimport os, signal, sys\nsys.path.insert(0, {str(examiner_module._ROOT)!r})\n"
            f"import media.decoder_process as child\n{textwrap.dedent(lines)}\nchild.main()\n"
        )
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(program))

    return weaken


def test_a_video_that_brings_the_decoder_down_is_named_and_the_next_is_decoded(
    make_video: MakeVideo, fragile_child: Fragile
) -> None:
    fragile_child(
        """
        examine = child.decode_video
        def fragile(request):
            if "bomb" in request["name"]:
                os.kill(os.getpid(), signal.SIGSEGV)
            return examine(request)
        child.decode_video = fragile
        """
    )
    good, bomb = make_video("good.mp4"), make_video("bomb.mp4")
    with VideoDecoder() as examiner:
        first = examiner.decode(good, frames=1, size=8)
        for _ in range(2):
            with pytest.raises(MediaError, match=r"bomb\.mp4 crashed the decoder \(SIGSEGV\)"):
                examiner.decode(bomb, frames=1, size=8)
        assert examiner.decode(good, frames=1, size=8) == first


@pytest.mark.parametrize("when", ["write", "replace"])
def test_a_child_that_dies_while_it_writes_leaves_nothing_behind(
    make_video: MakeVideo, tmp_path: Path, fragile_child: Fragile, when: str
) -> None:
    weak = {"write": "os.fsync", "replace": "os.replace"}[when]
    fragile_child(f"{weak} = lambda *_: os.kill(os.getpid(), signal.SIGKILL)")
    out = tmp_path / "out"
    with pytest.raises(MediaError, match="SIGKILL"):
        examine(make_video("clip.mp4"), frames=1, size=8, cache=out / "c", thumbnail=out / "t.jpg")
    assert files(out) == set()


def test_an_installation_that_cannot_decode_blames_no_video(
    make_video: MakeVideo, fragile_child: Fragile
) -> None:
    fragile_child("raise SystemExit(3)")
    with pytest.raises(DecoderUnavailable, match=r"does not start \(exit status 3\)"):
        examine(make_video("clip.mp4"), frames=1, size=8)


def test_the_child_is_bounded_and_knows_no_secrets(
    make_video: MakeVideo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVICE_PASSWORD", "hunter2")
    with VideoDecoder(VideoLimits(timeout_seconds=50)) as examiner:
        examiner.decode(make_video("clip.mp4"), frames=2, size=16)
        process = Path(f"/proc/{pid(examiner)}")
        bounds = {
            line[:25].strip(): line.split()[-3] for line in (process / "limits").read_text().splitlines()
        }
        assert b"hunter2" not in (process / "environ").read_bytes()
    assert int(bounds["Max address space"]) == VideoLimits().memory_bytes
    assert 52 <= int(bounds["Max cpu time"]) < 80
    assert int(bounds["Max file size"]) == 2 * 16 * 16 * 3 + 64 * 1024**2
    assert int(bounds["Max core file size"]) == 0


def test_a_warm_child_does_not_grow(make_video: MakeVideo) -> None:
    paths = [make_video(f"{index}.gif", codec="gif", pixels="gray", size=(320, 240)) for index in range(4)]

    def held(examiner: VideoDecoder) -> tuple[int, int]:
        text = Path(f"/proc/{pid(examiner)}/status").read_text()
        found = {line.split(":")[0]: line.split()[1] for line in text.splitlines() if line.split()[1:]}
        return int(found["Threads"]), int(found["VmSize"])

    with VideoDecoder() as examiner:
        for path in paths:
            examiner.decode(path, frames=8, size=32)
        before = held(examiner)
        for path in paths * 5:
            examiner.decode(path, frames=8, size=32)
        threads, kilobytes = held(examiner)
    assert threads == before[0] == 1
    assert kilobytes <= before[1] + 20_000


def test_the_parent_loads_no_decoder() -> None:
    program = "import media, sys; raise SystemExit(bool({'av', 'torch'} & set(sys.modules)))"
    assert (
        subprocess.run([sys.executable, "-c", program], cwd=examiner_module._ROOT, check=False).returncode
        == 0
    )


@pytest.mark.parametrize("name", ["clip.mp4", "clip.mkv", "clip.ts", "clip.gif", "clip.h264", "clip.flv"])
def test_files_with_wrong_bytes_are_read_or_refused_and_the_child_lives(
    make_video: MakeVideo, name: str
) -> None:
    path = make_video(name, **({"codec": "gif", "pixels": "gray"} if name.endswith("gif") else {}))
    whole, dice, refused = path.read_bytes(), np.random.default_rng(3), []
    with VideoDecoder() as examiner:
        examiner.decode(path, frames=2, size=16)
        child = pid(examiner)
        for _ in range(40):
            wrong = bytearray(whole)
            for place in dice.integers(0, len(whole), 8):
                wrong[place] = dice.integers(0, 256)
            path.write_bytes(wrong)
            try:
                examiner.decode(path, frames=2, size=16)
            except MediaError as error:
                refused.append(error.reason)
        assert pid(examiner) == child
    assert all(reason.startswith(name) for reason in refused)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.mp4")
    with pytest.raises(MediaError, match=r"pipe\.mp4 is no file"):
        examine(tmp_path / "pipe.mp4", frames=1, size=8)


@pytest.mark.parametrize(("frames", "size"), [(0, 8), (1, 0), (-1, 8)])
def test_nothing_cannot_be_sampled(tmp_path: Path, frames: int, size: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        examine(tmp_path / "any.mp4", frames=frames, size=size)


def test_a_video_that_needs_too_much_memory_is_refused(make_video: MakeVideo) -> None:
    path = make_video("large.mp4", [100], size=(4096, 4096), codec_options={"preset": "ultrafast"})
    with VideoDecoder(VideoLimits(memory_bytes=256 * 1024**2)) as examiner:
        with pytest.raises(MediaError, match=r"large\.mp4"):
            examiner.decode(path, frames=16, size=8)
        examiner.limits = VideoLimits()
        assert examiner.decode(path, frames=1, size=8).width == 4096


def test_closing_ends_the_child(make_video: MakeVideo) -> None:
    with VideoDecoder() as examiner:
        examiner.decode(make_video("clip.mp4"), frames=1, size=8)
        child = examiner._child
    assert child is not None
    assert child.returncode == -signal.SIGKILL
    examiner.close()


def test_frame_caches_of_two_shapes_lie_side_by_side(make_video: MakeVideo, tmp_path: Path) -> None:
    path = make_video("clip.mp4")
    with VideoDecoder() as examiner:
        info = examiner.decode(path, frames=2, size=16, cache=tmp_path / "c")
        examiner.decode(path, frames=4, size=16, cache=tmp_path / "c")
    assert len(load_frames(frame_cache_path(tmp_path / "c", 2, 16, info.content_hash))) == 2
    assert len(load_frames(frame_cache_path(tmp_path / "c", 4, 16, info.content_hash))) == 4


def test_what_the_child_cannot_write_is_not_blamed_on_the_video(
    make_video: MakeVideo, tmp_path: Path
) -> None:
    (tmp_path / "taken").write_text("a file where a folder should be")
    with pytest.raises(MediaError) as caught:
        examine(make_video("clip.mp4"), frames=1, size=8, cache=tmp_path / "taken")
    assert "hostile" not in caught.value.reason
    assert "damaged" not in caught.value.reason
    assert str(tmp_path) not in caught.value.reason


def test_answers_are_one_line_whatever_the_name(tmp_path: Path) -> None:
    path = tmp_path / "new\nline.mp4"
    path.write_bytes(b"")
    with pytest.raises(MediaError, match="empty") as caught:
        examine(path, frames=1, size=8)
    assert json.loads(json.dumps(caught.value.reason)).startswith("new\nline.mp4")


@pytest.mark.parametrize("kind", ["png", "jpeg", "webp", "bmp"])
def test_a_picture_is_a_video_of_one_frame_where_pictures_are_wanted(tmp_path: Path, kind: str) -> None:
    grey = np.linspace(40, 200, 64).astype(np.uint8)
    path = tmp_path / f"picture.{kind}"
    Image.fromarray(np.broadcast_to(grey[None, :, None], (48, 64, 3)).copy()).save(path, quality=95)
    with pytest.raises(MediaError, match="not a video of an accepted kind"):
        examine(path, frames=3, size=16)
    with VideoDecoder() as examiner:
        info = examiner.decode(path, frames=3, size=16, cache=tmp_path, pictures=True)
    assert (info.width, info.height) == (64, 48)
    assert info.container.endswith("_pipe")
    frames = load_frames(frame_cache_path(tmp_path, 3, 16, info.content_hash))
    assert np.array_equal(frames[0], frames[1])
    assert np.array_equal(frames[0], frames[2])
    # Cut to its middle square, 48 of 64 pixels wide: from 8 to 56.
    assert frames[0, 8, 0].mean() == pytest.approx(grey[9], abs=4)
    assert frames[0, 8, -1].mean() == pytest.approx(grey[54], abs=4)


def test_a_picture_may_not_be_larger_than_a_frame(tmp_path: Path) -> None:
    path = tmp_path / "wide.png"
    Image.new("RGB", (400, 300)).save(path)
    with (
        VideoDecoder(VideoLimits(max_pixels=100_000)) as examiner,
        pytest.raises(MediaError, match="more than 100000 pixels"),
    ):
        examiner.decode(path, frames=1, size=16, pictures=True)
