"""Which frames are taken of which files, and what is said about files that cannot be used."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import pytest

from media import Limits, MediaError, VideoInfo
from media.decode import _upright, decode, sample_times, square

MakeVideo = Callable[..., Path]
GREYS = (16, 48, 80, 112, 144, 176, 208, 240)


def read(path: Path, frames: int = 4, limits: Limits | None = None) -> tuple[VideoInfo, list[Any]]:
    with path.open("rb") as file:
        return decode(
            file,
            name=path.name,
            content_hash="c" * 64,
            size_bytes=path.stat().st_size,
            frames=frames,
            limits=limits or Limits(),
        )


def sampled(images: list[Any], greys: tuple[int, ...] = GREYS) -> list[int]:
    """Which painted frame each sample shows."""
    return [
        int(np.argmin([abs(float(np.asarray(image).mean()) - grey) for grey in greys])) for image in images
    ]


def refused(path: Path, words: str, limits: Limits | None = None) -> str:
    with pytest.raises(MediaError, match=words) as caught:
        read(path, limits=limits)
    assert path.name in caught.value.reason
    assert str(path.parent) not in caught.value.reason
    return caught.value.reason


def test_sample_times_are_midpoints() -> None:
    assert sample_times(8.0, 4) == [1.0, 3.0, 5.0, 7.0]


@pytest.mark.parametrize(
    ("name", "writing", "container", "codec"),
    [
        ("clip.mp4", {}, "mov", "h264"),
        ("clip.mkv", {}, "matroska", "h264"),
        ("clip.avi", {"codec": "mpeg4"}, "avi", "mpeg4"),
        ("clip.gif", {"codec": "gif", "pixels": "gray"}, "gif", "gif"),
        ("clip.webm", {"codec": "libvpx"}, "matroska", "vp8"),
        ("clip.ts", {}, "mpegts", "h264"),
        ("clip.mov", {"codec": "mjpeg", "pixels": "yuvj420p"}, "mov", "mjpeg"),
    ],
)
def test_formats_are_sampled_at_the_same_moments(
    make_video: MakeVideo, name: str, writing: dict[str, Any], container: str, codec: str
) -> None:
    info, images = read(make_video(name, **writing))
    assert (info.container, info.codec) == (container, codec)
    assert (info.width, info.height, info.frames) == (64, 48, 8)
    assert info.duration == pytest.approx(2.0, abs=0.26)
    assert info.fps == pytest.approx(4.0, abs=0.6)
    assert all(image.mode == "RGB" and image.size == (64, 48) for image in images)
    # Mid-points 0.25, 0.75, … fall on the first moment of every other frame; a container's clock may round either way.
    assert all(found in (2 * slot, 2 * slot + 1) for slot, found in enumerate(sampled(images)))


def test_more_samples_than_frames_repeat_them(make_video: MakeVideo) -> None:
    info, images = read(make_video("one.mp4", [100]), frames=3)
    assert info.frames == 1
    assert sampled(images, (0, 100, 200)) == [1, 1, 1]
    _, images = read(make_video("two.mp4", [0, 200]), frames=6)
    assert sampled(images, (0, 200)) == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("name", ["odd.mp4", "odd.mkv"])
def test_odd_sizes(make_video: MakeVideo, name: str) -> None:
    info, images = read(make_video(name, size=(33, 17), pixels="yuv444p"))
    assert (info.width, info.height) == (33, 17)
    assert square(images[0], 16).shape == (16, 16, 3)


@pytest.mark.parametrize("name", ["vfr.mp4", "vfr.mkv"])
def test_a_variable_frame_rate_is_sampled_by_time(make_video: MakeVideo, name: str) -> None:
    # Frames are on display 0–100, 100–200, 200–300, 300–3000 and 3000–4000 ms.
    greys = (20, 70, 120, 170, 220)
    path = make_video(name, greys, fps=1, milliseconds=[0, 100, 200, 300, 3000], codec_options={"bf": "0"})
    info, images = read(path, frames=8)
    assert info.duration == pytest.approx(4.0, abs=0.05)
    assert sampled(images, greys) == [2, 3, 3, 3, 3, 3, 4, 4]


def test_time_counts_from_the_first_frame(make_video: MakeVideo) -> None:
    path = make_video("late.ts", milliseconds=[50_000 + 250 * index for index in range(8)])
    info, images = read(path, frames=8)
    assert info.duration < 4
    assert sampled(images)[0] == 0
    assert sampled(images) == sorted(sampled(images))


@pytest.mark.parametrize(
    ("name", "writing"),
    [
        ("long.mp4", {"codec_options": {"g": "12"}}),
        ("long.mkv", {"codec_options": {"g": "12"}}),
        ("long.avi", {"codec": "mpeg4", "codec_options": {"g": "12"}}),
        ("long.ts", {"codec_options": {"g": "12"}}),
        ("long.gif", {"codec": "gif", "pixels": "gray"}),
    ],
)
def test_long_videos_are_sampled_by_seeking(
    make_video: MakeVideo, name: str, writing: dict[str, Any]
) -> None:
    greys = tuple(range(40, 200))
    info, images = read(make_video(name, greys, fps=2, **writing), frames=8)
    assert info.duration == pytest.approx(80, abs=1)
    expected = [10, 30, 50, 70, 90, 110, 130, 150]
    assert all(abs(a - b) <= 3 for a, b in zip(sampled(images, greys), expected, strict=True)), sampled(
        images, greys
    )


def left_bright(size: tuple[int, int] = (64, 48)) -> Callable[[int], Any]:
    picture = np.zeros((size[1], size[0], 3), np.uint8)
    picture[:, : size[0] // 2] = 255
    return lambda _: picture


def test_rotated_video_is_turned_upright(make_video: MakeVideo) -> None:
    flat = np.asarray(read(make_video("flat.mp4", paint=left_bright()))[1][0], float).mean(axis=2)
    assert flat[:, :24].mean() > 200 > 50 > flat[:, -24:].mean()
    info, images = read(make_video("turned.mp4", paint=left_bright(), rotate=90))
    turned = np.asarray(images[0], float).mean(axis=2)
    assert (info.width, info.height) == (48, 64)
    # The display matrix asks for a quarter turn counter-clockwise: the left half comes to lie at the bottom.
    assert turned[-24:].mean() > 200 > 50 > turned[:24].mean()


def test_rotation_of_the_frame_is_honoured_whoever_wrote_it() -> None:
    picture = np.zeros((4, 6, 3), np.uint8)
    picture[0, 0] = 255
    frame = SimpleNamespace(
        format=SimpleNamespace(name="rgb24", components=[]), rotation=180, to_ndarray=lambda format: picture
    )
    stream = SimpleNamespace(
        sample_aspect_ratio=None, codec_context=SimpleNamespace(sample_aspect_ratio=None)
    )
    image = np.asarray(_upright(frame, stream))  # type: ignore[arg-type]
    assert image[-1, -1].tolist() == [255, 255, 255]
    assert image.sum() == 3 * 255


def test_pixels_that_are_not_square_are_stretched(make_video: MakeVideo) -> None:
    info, images = read(make_video("wide.mkv", aspect=Fraction(2, 1)))
    assert (info.width, info.height) == (128, 48)
    assert images[0].size == (128, 48)


def test_transparency_lies_on_black(tmp_path: Path) -> None:
    from PIL import Image

    path = tmp_path / "clear.png"
    Image.new("RGBA", (32, 32), (255, 255, 255, 0)).save(tmp_path / "clear.png")
    apng = tmp_path / "clear.apng"
    Image.open(path).save(
        apng, "PNG", save_all=True, append_images=[Image.new("RGBA", (32, 32), (0, 0, 0, 255))]
    )
    _, images = read(apng, frames=1)
    assert np.asarray(images[0]).max() == 0


def test_square_cuts_the_middle() -> None:
    from PIL import Image

    picture = np.zeros((32, 96, 3), np.uint8)
    picture[:, 32:64] = 255
    assert square(Image.fromarray(picture), 16)[:, 2:-2].min() > 200


def test_what_is_no_video_is_refused(tmp_path: Path, make_audio: Callable[[str], Path]) -> None:
    text = tmp_path / "notes.mp4"
    text.write_text("These are the notes of a meeting.\n" * 200)
    refused(text, "damaged or not a video")
    noise = tmp_path / "noise.mp4"
    noise.write_bytes(np.random.default_rng(0).bytes(20_000))
    refused(noise, "damaged or not a video")
    refused(make_audio("song.m4a"), "audio only")


@pytest.mark.parametrize("name", ["cut.mp4", "cut.avi", "cut.mkv"])
def test_files_cut_in_the_header_are_refused(make_video: MakeVideo, name: str) -> None:
    path = make_video(name, codec="mpeg4" if name.endswith("avi") else "libx264")
    path.write_bytes(path.read_bytes()[:300])
    refused(path, "export it again|copy it again")


def test_an_mp4_that_breaks_off_is_called_truncated(make_video: MakeVideo) -> None:
    noise = np.random.default_rng(0)
    path = make_video(
        "broken.mp4",
        [0] * 40,
        options={"movflags": "faststart"},
        paint=lambda _: noise.integers(0, 255, (48, 64, 3), dtype=np.uint8),
    )
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 3])
    assert "truncated" in refused(path, r"breaks off after \d")


def test_a_long_last_frame_is_not_a_truncation(make_video: MakeVideo) -> None:
    greys = (20, 120, 220)
    path = make_video("slides.mp4", greys, milliseconds=[0, 1000, 2000], codec_options={"bf": "0"})
    assert sampled(read(path, frames=8)[1], greys)[-1] == 2
    with av.open(str(path.with_name("last.gif")), "w") as container:
        stream: Any = container.add_stream("gif", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "gray"
        for index, grey in enumerate(greys):
            frame = av.VideoFrame.from_ndarray(np.full((48, 64), grey, np.uint8), format="gray")
            frame.pts = index * 30 if index < 2 else 100
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    assert sampled(read(path.with_name("last.gif"), frames=16)[1], greys)[0] == 0


def test_limits_are_kept(make_video: MakeVideo) -> None:
    path = make_video("clip.mp4")
    assert "64x48" in refused(path, "scale it down", Limits(max_pixels=64 * 48 - 1))
    read(path, limits=Limits(max_pixels=64 * 48))
    refused(path, "at most 1 s", Limits(max_seconds=1.0))


@pytest.mark.parametrize("name", ["list.m3u8", "list.mp4"])
def test_playlists_do_not_open_what_they_name(make_video: MakeVideo, tmp_path: Path, name: str) -> None:
    make_video("real.ts")
    playlist = tmp_path / name
    playlist.write_text(
        "#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:2\n#EXT-X-MEDIA-SEQUENCE:0\n"
        f"#EXTINF:2.0,\n{tmp_path}/real.ts\n#EXT-X-ENDLIST\n"
    )
    refused(playlist, "damaged or not a video")


@pytest.mark.parametrize("target", ["real.mp4", "{tmp}/real.mp4", "file:{tmp}/real.mp4"])
def test_scripts_do_not_open_what_they_name(make_video: MakeVideo, tmp_path: Path, target: str) -> None:
    make_video("real.mp4")
    script = tmp_path / "script.ffconcat"
    script.write_text(f"ffconcat version 1.0\nfile '{target.format(tmp=tmp_path)}'\n")
    refused(script, "damaged or not a video")


def test_decoding_leaves_no_open_files(make_video: MakeVideo) -> None:
    path = make_video("clip.mp4")
    program = (
        "import os, sys; from pathlib import Path; from media.decode import decode; from media import Limits\n"
        "def once():\n"
        "    with open(sys.argv[1], 'rb') as file:\n"
        "        decode(file, name='v', content_hash='', size_bytes=1, frames=2, limits=Limits())\n"
        "once(); before = len(os.listdir('/proc/self/fd'))\n"
        "for _ in range(5): once()\n"
        "raise SystemExit(len(os.listdir('/proc/self/fd')) - before)\n"
    )
    root = Path(__file__).resolve().parents[2]
    assert subprocess.run([sys.executable, "-c", program, str(path)], cwd=root, check=False).returncode == 0
