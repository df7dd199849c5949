"""Captions, metadata and transcripts from the side files of a video, in the forms that programs write."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from cinestrata_schemas.tasks import VideoSpec
from service.core import request_limits
from service.core.errors import InvalidInput
from service.tasks.manifests.side_files import (
    SUBTITLE_SUFFIXES,
    SideFileNames,
    SideFiles,
    add_caption_from_name,
    read_sidecars,
)
from service.tasks.manifests.subtitle_files import read_subtitles


def read_files(files: dict[str, str | bytes], encoding: str = "utf-8") -> VideoSpec:
    def open_file(path: str) -> BinaryIO:
        content = files[path]
        return io.BytesIO(content.encode() if isinstance(content, str) else content)

    names = SideFileNames([*files, "day/clip.1.mp4"])
    return read_sidecars("day/clip.1.mp4", SideFiles(names.find, open_file, encoding))


def read_info(**fields: Any) -> VideoSpec:
    return read_files({"day/clip.1.info.json": json.dumps(fields)})


def cue_blocks(number: int, text: str) -> str:
    return "".join(f"00:01.000 --> 00:02.000\n{text} {cue}\n\n" for cue in range(number))


def test_files_of_all_kinds_are_read_in_order() -> None:
    video = read_files(
        {
            "day/clip.1.txt": "\ufeffa pan\r\n\r\n  eggs \n",
            "day/clip.1.info.json": '{"title": "Breakfast", "description": "a pan", "uploader": "me"}',
            "day/clip.1.srt": "1\n00:00:01,000 --> 00:00:02,000\n<i>Good\nmorning</i>\n",
            "day/clip.1.vtt": "WEBVTT\n\n00:01.000 --> 00:02.000\nnot read beside a better kind\n",
            "day/clip.txt": "of another video",
        }
    )
    assert video.uri == "day/clip.1.mp4"
    assert video.captions == ["a pan", "eggs", "Breakfast"]
    assert [cue.text for cue in video.transcript] == ["Good morning"]
    assert video.metadata == {"uploader": "me"}
    assert read_files({}) == VideoSpec(uri="day/clip.1.mp4", captions=[], metadata=None)


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
    plain = {"upload_date": "20260102", "tags": ["rain", "snow"], "duration": 1.5, "is_live": False}
    assert video.metadata == plain
    assert read_files({"day/clip.1.info.json": '{"rate": NaN, "title": "x"}'}).metadata is None


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
        (
            "txt",
            "".join(f"{chr(n)}\n" for n in range(200, 265)).encode(),
            "day/clip.1.txt: The sidecar files have 65",
        ),
        ("srt", b"<html>", "day/clip.1.srt: It is in no known subtitle format"),
        ("vtt", b"WEBVTT\n\n00:01.000 --> 00:02.000\nK\xfcche", "1.vtt:4: Byte 2 of the line is not UTF-8"),
        ("vtt", f"WEBVTT\n\n{cue_blocks(20_001, 'a')}".encode(), "clip.1.vtt: It has more than"),
        ("vtt", f"WEBVTT\n\n{cue_blocks(510, 'x' * 1990)}".encode(), "clip.1.vtt: It has more than"),
        ("srt", (b"x" * 999 + b"\n") * 9000, "clip.1.srt: The file is larger than"),
        ("srt", b"\xff\xfe1", "1.srt: The file begins with a UTF-16 byte order mark but is not UTF-16"),
        ("info.json", b"{", "day/clip.1.info.json:1: The file is not JSON"),
        ("info.json", b'{"a":' * 100_000, "nested too deep"),
        ("info.json", b"[1]", "not a JSON object"),
    ],
)
def test_invalid_file_is_named(name: str, content: bytes, expected: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_files({f"day/clip.1.{name}": content})
    assert expected in str(caught.value)


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


TIME = "00:00:01,000 --> 00:00:02,000"
SRT = f"1\n{TIME}\nthe photodiode hums\n"
HUMS = [(1.0, 2.0, "the photodiode hums")]


def read(text: str) -> list[tuple[float, float, str]]:
    return [(cue.start, cue.end, cue.text) for cue in read_subtitles(text, "clip.srt")]


@pytest.mark.parametrize("mark", ["", "WEBVTT\n\n"])
@pytest.mark.parametrize(
    "text",
    [
        SRT,
        SRT.replace("1\n", "1 \n", 1),
        SRT.removeprefix("1\n"),
        SRT.replace("\n", "\n\n"),
        SRT.replace("\n", "\r"),
        SRT.replace("\n", "\r\r\n"),
        f"1\n\n{TIME}\nthe photodiode\nhums\n",
        f"1\n{TIME}\n\nthe photodiode\nhums\n",
        f"\ufeff\ufeff{SRT}",
        f"\n\n\n{SRT}",
        f"Subtitles by OpenSubtitles.org\n\n{SRT}",
        *(SRT.replace("1\n", f"{number}\n", 1) for number in ("0", "#1", "1.", "\t1\t")),
        f"1\n \t{TIME}\n\tthe photodiode\u2028hums \n \t\n",
    ],
)
def test_numbers_and_empty_lines_do_not_matter(text: str, mark: str) -> None:
    assert read(mark + text) == HUMS


@pytest.mark.parametrize(
    "time",
    [
        "00:00:01,000 -> 00:00:02,000",
        "00:00:01,000-->00:00:02,000",
        "00:00:01,000 –> 00:00:02,000",
        "00:00:01,000 --> 00:00:02,000 X1:100 X2:600 Y1:1 Y2:50",
        "00:01,000 --> 00:02,000 align:start position:0%",
        "00:00:01 --> 00:00:02",
        "00:00:01, 000 --> 00:00:02, 000",
        "00:00:01:000 --> 00:00:02:000",
        "00:00:01.000 --> 00:00:02,000",
        "0:0:1,0 --> 0:0:2,0",
        "00:00:01,000000 --> 00:00:02,000000",
        "1.000 --> 2.000",
        "1 --> 2",
    ],
)
@pytest.mark.parametrize("head", ["1\n", "WEBVTT\n\n", ""])
def test_times_are_read_as_players_read_them(time: str, head: str) -> None:
    assert read(f"{head}{time}\nthe photodiode hums\n") == HUMS


def test_fractions_long_hours_and_frames() -> None:
    assert read("00:00:01,5 --> 00:00:02,25\nx") == [(1.5, 2.25, "x")]
    assert read("100:00:01,000 --> 100:00:02,000\nx") == [(360001, 360002, "x")]
    [(start, end, _)] = read("00:00:01:12 --> 00:00:02:00\nx")
    assert (int(start), int(end)) == (1, 2)


@pytest.mark.parametrize("number", ["\n\n2\n", "\n  \n2\n", "\n2\n", "\r\n\r\n2\r\n"])
def test_the_number_of_the_next_cue_is_no_text(number: str) -> None:
    text = f"1\n{TIME}\nthe photodiode hums{number}00:00:03,000 --> 00:00:04,000\nsecond"
    assert read(text) == [*HUMS, (3, 4, "second")]


def test_numbers_and_arrows_in_speech_are_text() -> None:
    text = (
        f"1\n{TIME}\n3\n2\n1\nlift off\n\n2\n00:00:02,000 --> 00:00:03,000\n1984\n\n"
        "3\n00:00:03,000 --> 00:00:04,000\ngo A --> B\nat 10,000 --> 20,000 rpm\n10 -> 20\n5 --> 6 rpm\n\n"
        "4\n00:00:04,000 --> 00:00:05,000\n42\n"
    )
    assert [words for _, _, words in read(text)] == [
        "3 2 1 lift off",
        "1984",
        "go A --> B at 10,000 --> 20,000 rpm 10 -> 20 5 --> 6 rpm",
        "42",
    ]


def test_only_the_texts_of_cues_are_read_from_webvtt() -> None:
    text = (
        "WEBVTT - made by X\nKind: captions\n\nSTYLE\n::cue { color: red }\n\nNOTE 00:00:09,000 --> 00:00:10,000 x\n\n"
        "NOTE\n00:00:03.000 --> 00:00:04.000\nleft out\n\nintro\n00:01,000 --> 00:02,000 align:start\n"
        "the photodiode hums\n\nREGION\nid:a\n\n2 of 2\n00:02.000 --> 00:03.000\nNOTE that\n"
    )
    assert read(text) == [*HUMS, (2, 3, "NOTE that")]
    rolling = (
        "WEBVTT\n\n00:00:00.160 --> 00:00:02.389 align:start position:0%\n \nhello<00:00:00.400><c> every</c>"
        "<00:00:00.800><c>one</c>\n\n00:00:02.389 --> 00:00:02.399 align:start position:0%\nhello everyone\n \n"
    )
    assert read(rolling) == [(0.16, 2.389, "hello everyone")]
    assert read("WEBVTT\n\n") == read("") == read(" \n\n") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"{\an8}the first\Nphotodiode\hhums", "the first photodiode hums"),
        (r"{\an8\pos(192,20)}the {\i1}first{\i0}\Nphotodiode\h\hhums{\r}", "the first photodiode hums"),
        (r"{\c&H00FFFF&}photodiode{\c} hums", "photodiode hums"),
        (r"{\k50}pho{\k30}to{\k20}diode hums", "photodiode hums"),
        (r"the first\nphotodiode hums", "the first photodiode hums"),
        (r"\Nthe first \N \N photodiode\N", "the first photodiode"),
        ("the first\\N\nphotodiode hums", "the first photodiode hums"),
        (r"<v Ann>photodiode&nbsp;hums &amp; stops<br>now</v>", "Ann: photodiode hums & stops now"),
        (r"{\p1}m 0 0 l 100 0 100 100{\p0}", None),
        ("{TS check this}photodiode hums", "{TS check this}photodiode hums"),
        (r"C:\temp, \d+ and \w in {curly} {x | x > 0}", r"C:\temp, \d+ and \w in {curly} {x | x > 0}"),
    ],
)
def test_markup_of_other_formats_is_removed(text: str, expected: str | None) -> None:
    texts = [words for _, _, words in read(f"1\n{TIME}\n{text}\n")]
    assert texts == ([] if expected is None else [expected])


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("WEBVTT\n\n00:00:61.000 --> 00:00:62.000\nx\n", 1),
        (f"1\n-{TIME}\nx\n\n2\n00:00:61,000 --> 00:01:99,000\ny\n", 2),
        ("Dialogue: 0,never,0:00:02.00,Default,,0,0,0,,x\n", 1),
    ],
)
def test_subtitles_without_valid_times_are_refused(text: str, count: int) -> None:
    with pytest.raises(InvalidInput, match=f"clip.srt: {count} of {count} cues has no valid time"):
        read(text)
    assert read(f"1\n-{TIME}\nx\n\n{SRT}") == HUMS


ASS = (
    "[Script Info]\nTitle: x\n\n[V4+ Styles]\nStyle: broken,style\n\n[Events]\n"
    "Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text\n"
    "Dialogue: 0,0:00:03.00,0:00:04.50,Default,,0,0,0,,{\\i1}then{\\i0}, it {a comment}stops\n"
    "Comment: 0,0:00:01.00,0:00:02.00,Default,,0,0,0,,nobody reads this\n"
    "Dialogue: Marked=0,0:00:01.00,0:00:02.00,Default,Ann,0,0,0,,the photodiode\\Nhums\n"
    "Dialogue: 0,0:00:05.00,0:00:06.00,Default,,0,0,0,,{\\p1}m 0 0 l 100 0{\\p0}\n"
    "Dialogue: 0,never,0:00:06.00,Default,,0,0,0,,no time\n"
)
TTML = (
    '<?xml version="1.0" encoding="utf-8"?>\n<tt xmlns="http://www.w3.org/ns/ttml" xml:lang="en"><body><div>\n'
    '<p begin="00:00:01.000" end="00:00:02.000">the <span>photodiode</span><br/>hums</p>\n'
    '<p begin="3s" dur="1.5s">then, it {x} stops &amp; ends</p></div></body></tt>'
)
FRAMES = "{25}{50}the photodiode|hums\n{75}{100}{y:i}then, it stops\n"


def test_other_formats_are_told_apart_by_content() -> None:
    assert read(ASS) == [*HUMS, (3, 4.5, "then, it stops")]
    assert read(TTML) == [*HUMS, (3, 4.5, "then, it {x} stops & ends")]
    old = TTML.replace("http://www.w3.org/ns/ttml", "http://www.w3.org/2006/10/ttaf1")
    assert read(old) == read(TTML)
    assert read("{1}{1}25\n" + FRAMES) == [*HUMS, (3, 4, "then, it stops")]
    with pytest.raises(InvalidInput, match=r"clip\.srt: It counts frames, but does not say"):
        read(FRAMES)


@pytest.mark.parametrize(
    "text",
    [
        f'<!DOCTYPE tt [<!ENTITY a "{"x" * 99}">]>' + TTML,
        TTML + f"<!--{' ' * 3 * 1024**2}-->",
        TTML.replace("</p>", "", 1),
        TTML.replace('"3s"', '"12f"'),
        '<tt xmlns="http://www.w3.org/ns/ttml"><body><div><p begin="1s" end="2s">'
        + "<span xmlns='http://www.w3.org/ns/ttml'>" * 9000
        + "</span>" * 9000
        + "</p></div></body></tt>",
        "{1}{1}25\n{1}{9" + "9" * 1500 + "}x\n",
        "<html>",
        "nothing",
        "[Script Info]\n",
    ],
)
def test_hostile_and_damaged_subtitles_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"clip\.srt: "):
        read(text)


@pytest.mark.parametrize(
    "text",
    [
        "Dialogue: 0,0:00:01.00,0:00:02.00,Default,,0,0,0,,{\\p{\\p" + "{\\p" * 300_000,
        "{1}{1}25\n{25}{50}" + "{y:" * 300_000,
        f"{TIME}\n" + "1" * 300_000 + " -->" * 100_000 + "\n" + "<br" * 100_000,
        TTML.replace("hums", "hums" + "<br/>a" * 50_000),
        (f"{TIME}\n" + " " * 10_000 + "\n") * 50,
    ],
)
def test_hostile_subtitles_are_read_in_little_time(text: str) -> None:
    assert len(read(text)) <= 2


def test_browser_reads_the_same_subtitles() -> None:
    script = (Path(__file__).parents[4] / "api/static/uploads/selected_files.js").read_text(encoding="utf-8")
    (endings,) = re.findall(r"SIDECAR = /\\\.\(([^)]*)\)", script)
    assert {f".{ending}" for ending in endings.split("|")} >= set(SUBTITLE_SUFFIXES)
