"""Media types of real files: from their container and codec, not from their name."""

from __future__ import annotations

import mimetypes
from collections.abc import Callable
from pathlib import Path

import pytest

from media.video_limits import VIDEO_SUFFIXES, media_type
from tests.media.test_pyav_decoding import read

# File name, muxer where the name doesn't tell it, codec, pixel format and media type.
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
    ("00001.MTS", "mpegts", "libx264", "yuv420p", "video/mp2t"),
    ("STREAM.M2TS", "mpegts", "libx264", "yuv420p", "video/mp2t"),
    ("a.avi", None, "mpeg4", "yuv420p", "video/x-msvideo"),
    ("a.wmv", None, "wmv2", "yuv420p", "video/x-ms-wmv"),
    ("a.flv", None, "flv", "yuv420p", "video/x-flv"),
    ("a.gif", None, "gif", "rgb8", "image/gif"),
]


@pytest.mark.parametrize(("name", "muxer", "codec", "pixels", "expected"), FILES)
def test_type_follows_from_the_decoded_streams(
    tmp_path: Path,
    make_video: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    muxer: str | None,
    codec: str,
    pixels: str,
    expected: str,
) -> None:
    written = make_video(
        f"written.{_ENDINGS.get(muxer or '', muxer)}" if muxer else name, codec=codec, pixels=pixels
    )
    path = written.rename(tmp_path / name)
    info, _ = read(path, frames=1)
    monkeypatch.setattr(mimetypes, "types_map", {})  # of a machine without a table
    assert media_type(name, info.container, info.codec) == expected


_ENDINGS = {"mpegts": "ts"}


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
    found = {
        media_type(name, container, None) for name in names for container in (None, "svg_pipe", "text/html")
    }
    assert {each.partition("/")[0] for each in found - {"application/octet-stream"}} == {"video", "image"}
    assert "image/svg+xml" not in found
