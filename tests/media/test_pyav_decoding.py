"""Sampling of frames from many formats, their media types, and errors for unusable files."""

from __future__ import annotations

import mimetypes
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from media import MediaError, VideoInfo, VideoLimits, sample_times
from media.pyav_decoding import decode
from media.video_limits import VIDEO_SUFFIXES, media_type

MakeVideo = Callable[..., Path]
GRAYS = (16, 48, 80, 112, 144, 176, 208, 240)


def read(path: Path, frames: int = 4, limits: VideoLimits | None = None) -> tuple[VideoInfo, list[Any]]:
    images: list[Any] = []
    with path.open("rb") as file:
        info = decode(
            file,
            name=path.name,
            content_hash="c" * 64,
            size_bytes=path.stat().st_size,
            times=lambda duration: sample_times(duration, frames),
            limits=limits or VideoLimits(),
            receive=images.append,
        )
    return info, images


def sampled(images: list[Any], grays: tuple[int, ...] = GRAYS) -> list[int]:
    """Return the painted frame that each sample shows."""
    return [
        int(np.argmin([abs(float(np.asarray(image).mean()) - gray) for gray in grays])) for image in images
    ]


def assert_rejected(path: Path, words: str, limits: VideoLimits | None = None) -> str:
    with pytest.raises(MediaError, match=words) as caught:
        read(path, limits=limits)
    assert path.name in caught.value.reason
    assert str(path.parent) not in caught.value.reason
    return caught.value.reason


@pytest.mark.parametrize(
    ("name", "writing", "container", "codec"),
    [
        ("clip.mp4", {}, "mov", "h264"),
        ("clip.mkv", {}, "matroska", "h264"),
        ("clip.avi", {"codec": "mpeg4"}, "avi", "mpeg4"),
        ("clip.gif", {"codec": "gif", "pixels": "gray"}, "gif", "gif"),
        ("clip.webm", {"codec": "libvpx"}, "matroska", "vp8"),
        ("vp9.webm", {"codec": "libvpx-vp9"}, "matroska", "vp9"),
        ("clip.ts", {}, "mpegts", "h264"),
        ("clip.flv", {}, "flv", "h264"),
        ("clip.m2ts", {}, "mpegts", "h264"),
        ("clip.3gp", {}, "mov", "h264"),
        ("clip.nut", {}, "nut", "h264"),
        ("clip.asf", {"codec": "mpeg4"}, "asf", "mpeg4"),
        ("clip.wmv", {"codec": "wmv2"}, "asf", "wmv2"),
        ("clip.apng", {"codec": "apng", "pixels": "rgb24"}, "apng", "apng"),
        ("clip.y4m", {"codec": "wrapped_avframe"}, "yuv4mpegpipe", "rawvideo"),
        ("parts.mp4", {"options": {"movflags": "frag_keyframe+empty_moov"}}, "mov", "h264"),
        ("clip.mov", {"codec": "mjpeg", "pixels": "yuvj420p"}, "mov", "mjpeg"),
    ],
)
def test_formats_are_sampled_at_the_same_times(
    make_video: MakeVideo, name: str, writing: dict[str, Any], container: str, codec: str
) -> None:
    path = make_video(name, **writing)
    info, images = read(path)
    assert path.suffix in VIDEO_SUFFIXES, "listings of folders omit the file"
    assert (info.container, info.codec) == (container, codec)
    assert (info.width, info.height, info.frames) == (64, 48, 8)
    assert info.duration == pytest.approx(2.0, abs=0.45)  # flv states a little more
    assert info.fps == pytest.approx(4.0, abs=0.6)
    assert all(image.mode == "RGB" and image.size == (64, 48) for image in images)
    # Mid-points 0.25, 0.75, … are the start of every other frame; the clock of a container may round either way.
    assert all(frame in (2 * slot, 2 * slot + 1) for slot, frame in enumerate(sampled(images)))


@pytest.mark.parametrize(
    ("name", "writing"),
    [("raw.h264", {}), ("raw.h264", {"codec_options": {"bf": "0"}}), ("raw.ivf", {"codec": "libvpx"})],
)
def test_raw_streams_without_header_are_measured(
    make_video: MakeVideo, name: str, writing: dict[str, Any]
) -> None:
    info, images = read(make_video(name, **writing))
    assert info.frames == 8
    assert info.duration == pytest.approx(2.0, abs=0.01)
    assert all(frame in (2 * slot, 2 * slot + 1) for slot, frame in enumerate(sampled(images)))


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
        ("one_key_frame.mp4", {"codec_options": {"g": "1000"}}),
        ("one_key_frame.mkv", {"codec_options": {"g": "1000"}}),
        ("one_key_frame.ts", {"codec_options": {"g": "1000"}}),
        ("late.ts", {"milliseconds": range(50_000, 130_000, 500)}),
    ],
)
def test_long_videos_are_sampled_by_seeking(
    make_video: MakeVideo, name: str, writing: dict[str, Any]
) -> None:
    grays = tuple(range(40, 200))
    info, images = read(make_video(name, grays, fps=2, **writing), frames=8)
    assert info.duration == pytest.approx(80, abs=1)
    expected = [10, 30, 50, 70, 90, 110, 130, 150]
    np.testing.assert_allclose(sampled(images, grays), expected, atol=3)


BRIGHT_CORNER = np.kron(np.array([[1, 0, 0], [0, 0, 0]]), np.ones((24, 24)))[..., None].repeat(3, 2) * 255


@pytest.mark.parametrize(
    ("degrees", "mirror", "size", "corner"),
    [
        (0, {}, (72, 48), "top left"),
        (90, {}, (48, 72), "bottom left"),  # counterclockwise
        (180, {}, (72, 48), "bottom right"),
        (270, {}, (48, 72), "top right"),
        (0, {"hflip": True}, (72, 48), "top right"),
        (0, {"vflip": True}, (72, 48), "bottom left"),
        (3, {}, (72, 48), "top left"),  # small angles are ignored
    ],
)
def test_every_rotation_and_reflection_is_applied(
    make_video: MakeVideo, degrees: int, mirror: dict[str, bool], size: tuple[int, int], corner: str
) -> None:
    paint = {"size": (72, 48), "paint": lambda _: BRIGHT_CORNER.astype(np.uint8)}
    info, images = read(make_video("clip.mp4", **paint, rotate=degrees, mirror=mirror))
    assert (info.width, info.height) == images[0].size == size
    picture = np.asarray(images[0], float).mean(axis=2)
    inset = {
        "top left": picture[4:20, 4:20],
        "top right": picture[4:20, -20:-4],
        "bottom left": picture[-20:-4, 4:20],
        "bottom right": picture[-20:-4, -20:-4],
    }
    assert inset.pop(corner).min() > 200
    assert all(other.max() < 60 for other in inset.values())


def test_files_without_video_raise(tmp_path: Path, make_audio: Callable[[str], Path]) -> None:
    text = tmp_path / "notes.mp4"
    text.write_text("These are the notes of a meeting.\n" * 200)
    assert_rejected(text, "damaged or not a video")
    noise = tmp_path / "noise.mp4"
    noise.write_bytes(np.random.default_rng(0).bytes(20_000))
    assert_rejected(noise, "damaged or not a video")
    assert_rejected(make_audio("song.m4a"), "only audio")


@pytest.mark.parametrize("name", ["cut.mp4", "cut.avi", "cut.mkv"])
def test_files_with_truncated_header_raise(make_video: MakeVideo, name: str) -> None:
    path = make_video(name, codec="mpeg4" if name.endswith("avi") else "libx264")
    path.write_bytes(path.read_bytes()[:300])
    assert_rejected(path, "export it again|copy it again")


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [2, 12, 70])
@pytest.mark.parametrize(
    ("name", "writing"),
    [
        ("half.mp4", {"options": {"movflags": "faststart"}}),
        ("half.mkv", {}),
        ("half.webm", {"codec": "libvpx"}),
        ("half.avi", {"codec": "mpeg4"}),
        ("half.flv", {}),
    ],
)
def test_truncated_files_raise(
    make_video: MakeVideo, name: str, writing: dict[str, Any], seconds: int
) -> None:
    noise = np.random.default_rng(0)
    path = make_video(
        name,
        [0] * (4 * seconds),
        codec_options={"g": "8"},
        paint=lambda _: noise.integers(0, 255, (48, 64, 3), dtype=np.uint8),
        **writing,
    )
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert_rejected(path, r"breaks off after \d+\.\d of \d+\.\d s; it is truncated; copy it again")
    path.write_bytes(whole[:-100])  # all sampled frames are complete
    read(path)


def test_unknown_codec_is_reported(make_video: MakeVideo) -> None:
    path = make_video("clip.mp4")
    path.write_bytes(path.read_bytes().replace(b"avc1", b"zzzz"))
    assert_rejected(path, "unknown codec; export it")


@pytest.mark.parametrize(("aspect", "width"), [(1, 64), (16, 1024)])
def test_limits_are_enforced_for_pixels_as_displayed(make_video: MakeVideo, aspect: int, width: int) -> None:
    path = make_video("clip.mkv", aspect=Fraction(aspect, 1))
    assert f"{width}x48" in assert_rejected(path, "scale it down", VideoLimits(max_pixels=width * 48 - 1))
    info, images = read(path, limits=VideoLimits(max_pixels=width * 48))
    assert (info.width, info.height) == images[0].size == (width, 48)
    assert_rejected(path, "at most 1 s", VideoLimits(max_seconds=1.0))


def test_frames_that_grow_within_stream_raise(make_video: MakeVideo, tmp_path: Path) -> None:
    small, large = make_video("small.h264"), make_video("large.h264", size=(640, 480))
    both = tmp_path / "both.h264"
    both.write_bytes(small.read_bytes() + large.read_bytes())
    read(small, limits=VideoLimits(max_pixels=64 * 48))
    assert "640x480" in assert_rejected(both, "scale it down", VideoLimits(max_pixels=64 * 48))


NOT_FOLLOWED = "not in an accepted video format .*playlists are not followed"


@pytest.mark.parametrize("name", ["list.m3u8", "list.mp4"])
def test_playlists_do_not_open_other_files(make_video: MakeVideo, tmp_path: Path, name: str) -> None:
    make_video("real.ts")
    playlist = tmp_path / name
    playlist.write_text(
        "#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:2\n#EXT-X-MEDIA-SEQUENCE:0\n"
        f"#EXTINF:2.0,\n{tmp_path}/real.ts\n#EXT-X-ENDLIST\n"
    )
    if name == "list.m3u8":
        with av.open(str(playlist)) as container:  # by path, the playlist would be followed
            assert container.format.name == "hls"
    assert_rejected(playlist, "playlists are not followed|damaged or not a video")


def test_session_descriptions_do_not_open_network(tmp_path: Path) -> None:
    session = tmp_path / "camera.sdp"
    session.write_text(
        "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 96\n"
    )
    assert_rejected(session, "playlists are not followed|damaged or not a video")


def test_pictures_and_documents_raise(tmp_path: Path) -> None:
    from PIL import Image

    for name in ("still.png", "still.jpg", "still.webp"):
        Image.new("RGB", (32, 32), "white").save(tmp_path / name)
        assert_rejected(tmp_path / name, NOT_FOLLOWED)
    (tmp_path / "drawing.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>")
    assert_rejected(tmp_path / "drawing.svg", "playlists are not followed|damaged or not a video")


def test_stated_number_of_frames_above_the_number_of_bytes_is_replaced_by_a_count(
    make_video: MakeVideo,
) -> None:
    path = make_video("clip.mp4")
    assert read(path)[0].frames == 8
    content = bytearray(path.read_bytes())
    start = content.find(b"stts") + 12  # the number of frames of the first entry
    content[start : start + 4] = (1_000_000_000).to_bytes(4, "big")
    path.write_bytes(content)
    info, images = read(path)
    assert (info.frames, len(images)) == (8, 4)


@pytest.mark.parametrize("target", ["real.mp4", "{tmp}/real.mp4", "file:{tmp}/real.mp4"])
def test_scripts_do_not_open_other_files(make_video: MakeVideo, tmp_path: Path, target: str) -> None:
    make_video("real.mp4")
    script = tmp_path / "script.ffconcat"
    script.write_text(f"ffconcat version 1.0\nfile '{target.format(tmp=tmp_path)}'\n")
    assert_rejected(script, NOT_FOLLOWED)


# File name, ending that tells the muxer where the name doesn't, codec, pixel format and media type.
FILES = [
    ("a.mp4", None, "libx264", "yuv420p", "video/mp4"),
    ("IMG_0001.MOV", "mov", "libx264", "yuv420p", "video/mp4"),
    ("hevc.mov", None, "libx265", "yuv420p", "video/mp4"),
    ("prores.mov", None, "prores_ks", "yuv422p10le", "video/quicktime"),
    ("a.m4v", "mp4", "libx264", "yuv420p", "video/mp4"),
    ("a.3gp", None, "libx264", "yuv420p", "video/mp4"),
    ("av1.mp4", None, "libsvtav1", "yuv420p", "video/mp4"),
    ("a.webm", None, "libvpx", "yuv420p", "video/webm"),
    ("vp9.mkv", None, "libvpx-vp9", "yuv420p", "video/webm"),
    ("h264.mkv", None, "libx264", "yuv420p", "video/x-matroska"),
    ("webm named.mp4", "webm", "libvpx-vp9", "yuv420p", "video/webm"),
    ("mp4 named.avi", "mp4", "libx264", "yuv420p", "video/mp4"),
    ("page.html", "mp4", "libx264", "yuv420p", "video/mp4"),
    ("c.ts", None, "libx264", "yuv420p", "video/mp2t"),
    ("00001.MTS", "ts", "libx264", "yuv420p", "video/mp2t"),
    ("STREAM.M2TS", "ts", "libx264", "yuv420p", "video/mp2t"),
    ("a.avi", None, "mpeg4", "yuv420p", "video/x-msvideo"),
    ("a.wmv", None, "wmv2", "yuv420p", "video/x-ms-wmv"),
    ("a.flv", None, "flv", "yuv420p", "video/x-flv"),
    ("a.gif", None, "gif", "rgb8", "image/gif"),
]


@pytest.mark.parametrize(("name", "muxer", "codec", "pixels", "expected"), FILES)
def test_type_follows_from_the_decoded_streams(
    tmp_path: Path,
    make_video: MakeVideo,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    muxer: str | None,
    codec: str,
    pixels: str,
    expected: str,
) -> None:
    written = make_video(f"written.{muxer}" if muxer else name, codec=codec, pixels=pixels)
    path = written.rename(tmp_path / name)
    info, _ = read(path, frames=1)
    monkeypatch.setattr(mimetypes, "types_map", {})  # of a machine without a table
    assert media_type(name, info.container, info.codec) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("A.MOV", "video/mp4"),
        ("a.mpg", "video/mpeg"),
        ("a.webm", "video/webm"),
        ("a.ts", "video/mp2t"),
        ("a.ogv", "video/ogg"),
    ]
    + [(name, "application/octet-stream") for name in ("index.html", "a.svg", "a", "", "a.mp4.js")],
)
def test_name_decides_before_a_video_is_probed(name: str, expected: str) -> None:
    assert media_type(name, None, None) == expected


def test_no_type_can_run_a_script() -> None:
    names = [*(f"a{suffix}" for suffix in VIDEO_SUFFIXES), "a.html", "a.xml"]
    types = {
        media_type(name, container, None) for name in names for container in (None, "svg_pipe", "text/html")
    }
    assert {each.partition("/")[0] for each in types - {"application/octet-stream"}} == {"video", "image"}
    assert "image/svg+xml" not in types
