"""The decoder and its child process: written files, crashes, limits and timeouts."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from media import (
    DecoderUnavailable,
    MediaError,
    UndecidedVideo,
    VideoDecoder,
    VideoInfo,
    VideoLimits,
    content_hash,
    frame_cache_path,
    load_frames,
)

MakeVideo = Callable[..., Path]
ROOT = Path(__file__).parents[2]


def decode(path: Path, *, limits: VideoLimits | None = None, **options: Any) -> VideoInfo:
    with VideoDecoder(limits) as decoder:
        return decoder.decode(path, **options)


def pid(decoder: VideoDecoder) -> int:
    assert decoder.child_pid is not None
    return decoder.child_pid


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_decode_writes_info_cache_and_thumbnail(make_video: MakeVideo, tmp_path: Path) -> None:
    path = make_video("in/clip.mp4", size=(640, 480))
    out = tmp_path / "out"
    info = decode(path, frames=4, size=32, cache=out / "frames", thumbnail=out / "thumbs" / "1.jpg")
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


def test_one_child_decodes_many_videos_and_survives_bad_files(
    make_video: MakeVideo, make_audio: Callable[[str], Path], tmp_path: Path
) -> None:
    good = make_video("good.mp4")
    empty, text, cut = (tmp_path / name for name in ("empty.mp4", "text.mp4", "cut.mp4"))
    empty.write_bytes(b"")
    os.mkfifo(tmp_path / "pipe.mp4")
    text.write_text("not a video")
    cut.write_bytes(good.read_bytes()[:500])
    out = tmp_path / "out"
    out.mkdir()
    with VideoDecoder() as decoder:
        first = decoder.decode(good, frames=2, size=16)
        child = pid(decoder)
        for path, words in (
            (empty, "empty"),
            (text, "not a video"),
            (cut, "not a video"),
            (make_audio("song.m4a"), "only audio"),
            (tmp_path / "gone.mp4", "cannot be read"),
            (tmp_path, "not a file but a folder"),
            (tmp_path / "pipe.mp4", r"pipe\.mp4 is not a file"),
        ):
            with pytest.raises(MediaError, match=words) as caught:
                decoder.decode(path, frames=2, size=16, cache=out, thumbnail=out / "t.jpg")
            assert str(tmp_path) not in caught.value.reason
            assert path.name in caught.value.reason
            assert isinstance(caught.value, UndecidedVideo) == (words == "cannot be read")
        assert decoder.decode(good, frames=2, size=16) == first
        assert pid(decoder) == child
    assert files(out) == set()


def test_timeout_raises_and_next_video_is_decoded(make_video: MakeVideo, tmp_path: Path) -> None:
    path = make_video("clip.mp4")
    with VideoDecoder() as decoder:
        decoder.decode(path, frames=1, size=8)
        os.kill(pid(decoder), signal.SIGSTOP)  # on a busy machine it could be faster than the timeout
        decoder.limits = VideoLimits(timeout_seconds=0.001)
        with pytest.raises(UndecidedVideo, match=r"clip\.mp4 took longer than 0\.001 s"):
            decoder.decode(path, frames=1, size=8, thumbnail=tmp_path / "t.jpg")
        assert decoder.child_pid is None
        decoder.limits = VideoLimits()
        decoder.decode(path, frames=1, size=8)
    assert not (tmp_path / "t.jpg").exists()


def test_child_killed_while_decoding_is_replaced(make_video: MakeVideo) -> None:
    path = make_video("clip.mp4")
    with VideoDecoder() as decoder:
        first = decoder.decode(path, frames=1, size=8)
        child = pid(decoder)
        os.kill(child, signal.SIGSTOP)  # the child has read the request and does not respond
        killer = threading.Timer(0.2, os.kill, (child, signal.SIGKILL))
        killer.start()
        assert decoder.decode(path, frames=1, size=8) == first
        assert pid(decoder) != child
        killer.join()


Fragile = Callable[[str], None]


@pytest.fixture
def fragile_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fragile:
    """Runs lines of Python in the child, which simulate a decoder that crashes."""

    def weaken(lines: str) -> None:
        program = tmp_path / "python"
        program.write_text(
            f"#!{sys.executable}\nimport os, signal, sys\nsys.path.insert(0, {str(ROOT)!r})\n"
            f"import media.decoder_process as child\n{textwrap.dedent(lines)}\nchild.serve_requests(child._answer)\n"
        )
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(program))

    return weaken


@pytest.mark.slow
def test_video_that_crashes_decoder_raises_and_next_is_decoded(
    make_video: MakeVideo, fragile_child: Fragile
) -> None:
    fragile_child(
        """
        decode_video = child.decode_video
        def fragile(request):
            if "bomb" in request["name"]:
                os.kill(os.getpid(), signal.SIGSEGV)
            return decode_video(request)
        child.decode_video = fragile
        """
    )
    good, bomb = make_video("good.mp4"), make_video("bomb.mp4")
    with VideoDecoder() as decoder:
        first = decoder.decode(good, frames=1, size=8)
        for _ in range(2):
            with pytest.raises(UndecidedVideo, match=r"bomb\.mp4 crashed the decoder \(SIGSEGV\)"):
                decoder.decode(bomb, frames=1, size=8)
        assert decoder.decode(good, frames=1, size=8) == first


@pytest.mark.parametrize("when", ["write", "replace"])
def test_child_that_dies_while_writing_leaves_no_files(
    make_video: MakeVideo, tmp_path: Path, fragile_child: Fragile, when: str
) -> None:
    die = "os.kill(os.getpid(), signal.SIGKILL)"
    weak = {
        "write": f"child.np.save = lambda path, *_, **__: (path.write_bytes(b'begun'), {die})",
        "replace": f"os.replace = lambda *_: {die}",
    }
    fragile_child(weak[when])
    out = tmp_path / "out"
    with pytest.raises(UndecidedVideo, match="SIGKILL"):
        decode(make_video("clip.mp4"), frames=1, size=8, cache=out / "c", thumbnail=out / "t.jpg")
    assert files(out) == set()


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        # For example, because the machine has too little memory: the video is not the cause.
        ("child.decode_video = lambda _: os.kill(os.getpid(), 9)", r"dies on every video \(SIGKILL\)"),
        ("raise SystemExit(3)", r"does not start \(exit status 3\)"),
    ],
)
def test_decoder_that_dies_or_does_not_start_is_unavailable(
    make_video: MakeVideo, fragile_child: Fragile, lines: str, problem: str
) -> None:
    fragile_child(lines)
    with pytest.raises(DecoderUnavailable, match=problem):
        decode(make_video("clip.mp4"), frames=1, size=8)


def test_child_has_limits_and_no_secrets(make_video: MakeVideo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_PASSWORD", "hunter2")
    with VideoDecoder(VideoLimits(timeout_seconds=50)) as decoder:
        decoder.decode(make_video("clip.mp4"), frames=2, size=16)
        process = Path(f"/proc/{pid(decoder)}")
        bounds = {
            line[:25].strip(): line.split()[-3] for line in (process / "limits").read_text().splitlines()
        }
        assert b"hunter2" not in (process / "environ").read_bytes()
    assert int(bounds["Max address space"]) == VideoLimits().memory_bytes
    assert 52 <= int(bounds["Max cpu time"]) < 80
    assert int(bounds["Max file size"]) == 2 * 16 * 16 * 3 + 64 * 1024**2
    assert int(bounds["Max core file size"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["clip.mp4", "clip.mkv", "clip.ts", "clip.gif", "clip.h264", "clip.flv"])
def test_corrupt_files_do_not_end_the_child(make_video: MakeVideo, name: str) -> None:
    path = make_video(name, **({"codec": "gif", "pixels": "gray"} if name.endswith("gif") else {}))
    whole, dice, refused = path.read_bytes(), np.random.default_rng(3), []
    with VideoDecoder() as decoder:
        decoder.decode(path, frames=2, size=16)
        child = pid(decoder)
        for _ in range(40):
            wrong = bytearray(whole)
            for offset in dice.integers(0, len(whole), 8):
                wrong[offset] = dice.integers(0, 256)
            path.write_bytes(wrong)
            try:
                decoder.decode(path, frames=2, size=16)
            except MediaError as error:
                refused.append(error.reason)
        assert pid(decoder) == child
    assert all(reason.startswith(name) for reason in refused)


def test_video_above_memory_limit_raises(make_video: MakeVideo) -> None:
    path = make_video("large.mp4", [100], size=(4096, 4096), codec_options={"preset": "ultrafast"})
    with VideoDecoder(VideoLimits(memory_bytes=256 * 1024**2)) as decoder:
        with pytest.raises(UndecidedVideo, match=r"large\.mp4"):
            decoder.decode(path, frames=16, size=8)
        decoder.limits = VideoLimits()
        assert decoder.decode(path, frames=1, size=8).width == 4096


def test_unwritable_cache_raises_os_error(make_video: MakeVideo, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file where a folder should be")
    with pytest.raises(OSError, match="cannot be stored") as caught:
        decode(make_video("clip.mp4"), frames=1, size=8, cache=tmp_path / "taken")
    for words in ("hostile", "damaged", str(tmp_path)):
        assert words not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["png", "jpeg", "webp", "bmp"])
def test_picture_counts_as_video_of_one_frame(tmp_path: Path, kind: str) -> None:
    gray = np.linspace(40, 200, 64).astype(np.uint8)
    path = tmp_path / f"picture.{kind}"
    Image.fromarray(np.broadcast_to(gray[None, :, None], (48, 64, 3)).copy()).save(path, quality=95)
    with pytest.raises(MediaError, match="not in an accepted video format"):
        decode(path, frames=3, size=16)
    with VideoDecoder() as decoder:
        info = decoder.decode(path, frames=3, size=16, cache=tmp_path, pictures=True)
    assert (info.width, info.height) == (64, 48)
    assert info.container.endswith("_pipe")
    frames = load_frames(frame_cache_path(tmp_path, 3, 16, info.content_hash))
    assert np.array_equal(frames[0], frames[1])
    assert np.array_equal(frames[0], frames[2])
    # The center square of 48 of 64 pixels: from 8 to 56.
    assert frames[0, 8, 0].mean() == pytest.approx(gray[9], abs=4)
    assert frames[0, 8, -1].mean() == pytest.approx(gray[54], abs=4)
