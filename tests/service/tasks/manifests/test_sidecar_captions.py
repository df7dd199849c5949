"""Captions and metadata from the sidecar files of a video, within the limits of a video."""

from __future__ import annotations

import io
import json
from typing import Any, BinaryIO

import pytest

from cinestrata_schemas.tasks import VideoSpec
from service.core import request_limits
from service.core.errors import InvalidInput
from service.tasks.manifests.side_files import SideFileNames, SideFiles, add_caption_from_name, read_sidecars


def read(files: dict[str, str | bytes], encoding: str = "utf-8") -> VideoSpec:
    def open_file(path: str) -> BinaryIO:
        content = files[path]
        return io.BytesIO(content.encode() if isinstance(content, str) else content)

    names = SideFileNames([*files, "day/clip.1.mp4"])
    return read_sidecars("day/clip.1.mp4", SideFiles(names.find, open_file, encoding))


def read_info(**fields: Any) -> VideoSpec:
    return read({"day/clip.1.info.json": json.dumps(fields)})


def cue_blocks(number: int, text: str) -> str:
    return "".join(f"00:01.000 --> 00:02.000\n{text} {cue}\n\n" for cue in range(number))


SRT = """1
00:00:01,000 --> 00:00:02,000
<i>Good
morning</i>

2
00:00:02,000 --> 00:00:03,000
{\\an8}Salt &amp; pepper
"""

VTT = """WEBVTT - of the day

STYLE
::cue { color: red }

NOTE nobody reads this

intro
00:01.000 --> 00:02.000 align:start
<c.yellow>Good</c> morning
00:02.000 --> 00:03.000
Stir <00:02.500>well
"""


def test_files_of_all_kinds_are_read_in_order() -> None:
    video = read(
        {
            "day/clip.1.txt": "\ufeffa pan\r\n\r\n  eggs \n",
            "day/clip.1.info.json": '{"title": "Breakfast", "description": "a pan", "uploader": "me"}',
            "day/clip.1.srt": SRT,
            "day/clip.1.vtt": VTT,
            "day/clip.txt": "of another video",
        }
    )
    assert video.uri == "day/clip.1.mp4"
    assert video.captions == ["a pan", "eggs", "Breakfast"]
    assert [cue.text for cue in video.transcript] == ["Good morning", "Salt & pepper"]
    assert video.metadata == {"uploader": "me"}
    assert read({}) == VideoSpec(uri="day/clip.1.mp4", captions=[], metadata=None)


def test_plain_fields_become_metadata() -> None:
    video = read_info(
        upload_date="20260102",
        tags=["rain", "snow"],
        duration=1.5,
        is_live=False,
        formats=[{"url": "x"}],
        thumbnails={},
        url="https://host/video?signature=secret",
        filename="folder/clip.mp4",
        _type="video",
        empty="",
        huge=2**70,
        prose="x" * 5000,
        nul="a\0b",
        surrogate="\ud800",
        none=None,
    )
    assert video.metadata == {
        "upload_date": "20260102",
        "tags": ["rain", "snow"],
        "duration": 1.5,
        "is_live": False,
    }
    assert read({"day/clip.1.info.json": '{"rate": NaN, "title": "x"}'}).metadata is None


def test_texts_are_kept_within_the_limits() -> None:
    limit = request_limits.MAX_CAPTION_CHARS
    video = read_info(
        title="a\u0007 \ud800title\n", description="word " * limit, **{f"k{n}": "x" * 900 for n in range(50)}
    )
    assert video.captions[0] == "a title"
    assert limit - 5 <= len(video.captions[1]) <= limit
    assert video.captions[1].endswith("word")
    assert len(json.dumps(video.metadata).encode()) <= request_limits.MAX_METADATA_BYTES


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("txt", b"a\nK\xfcche", "day/clip.1.txt:2: Byte 2 of the line is not UTF-8"),
        ("txt", b"a\0", "day/clip.1.txt:1: The line contains a NUL"),
        ("txt", "".join(f"{n}\n" for n in range(65)).encode(), "day/clip.1.txt: The sidecar files have 65"),
        ("srt", b"<html>", "day/clip.1.srt: It is in no known subtitle format"),
        (
            "vtt",
            b"WEBVTT\n\n00:01.000 --> 00:02.000\nK\xfcche",
            "day/clip.1.vtt:4: Byte 2 of the line is not UTF-8",
        ),
        ("vtt", f"WEBVTT\n\n{cue_blocks(20_001, 'a')}".encode(), "clip.1.vtt: It has more than"),
        ("vtt", f"WEBVTT\n\n{cue_blocks(510, 'x' * 1990)}".encode(), "clip.1.vtt: It has more than"),
        ("srt", (b"x" * 999 + b"\n") * 9000, "clip.1.srt: The file is larger than"),
        (
            "srt",
            b"\xff\xfe1",
            "day/clip.1.srt: The file begins with a UTF-16 byte order mark but is not UTF-16",
        ),
        ("info.json", b"{", "day/clip.1.info.json:1: The file is not JSON"),
        ("info.json", b'{"a":' * 100_000, "nested too deep"),
        ("info.json", b"[1]", "not a JSON object"),
    ],
)
def test_invalid_file_is_named(name: str, content: bytes, expected: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read({f"day/clip.1.{name}": content})
    assert expected in str(caught.value)


def read_cues(content: str, kind: str = "vtt") -> list[tuple[float, float, str]]:
    return [(cue.start, cue.end, cue.text) for cue in read({f"day/clip.1.{kind}": content}).transcript]


@pytest.mark.parametrize(
    ("uri", "caption"),
    [
        ("day/a-red_car.on.ice.mp4", ["a red car on ice"]),
        ("Küche (2).mov", ["Küche 2"]),
        ("0001.mp4", []),
        ("x_1.mp4", []),
        ("猫が歩く.mp4", ["猫が歩く"]),
    ],
)
def test_file_names_are_captions_if_they_have_words(uri: str, caption: list[str]) -> None:
    assert add_caption_from_name(VideoSpec(uri=uri)).captions == caption
    written = VideoSpec(uri=uri, captions=["written"])
    assert add_caption_from_name(written) is written
