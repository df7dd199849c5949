"""Subtitles in the forms that players show: sloppy SubRip and WebVTT, and SubStation Alpha."""

from __future__ import annotations

import pytest

from service.core.errors import InvalidInput
from service.tasks.manifests.subtitle_files import read_subtitles

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
        (
            r"{\an8\fad(200,200)\pos(192,20)}the {\i1}first{\i0}\Nphotodiode\h\hhums{\r}",
            "the first photodiode hums",
        ),
        (r"{\c&H00FFFF&}photodiode{\c} hums", "photodiode hums"),
        (r"{\k50}pho{\k30}to{\k20}diode hums", "photodiode hums"),
        (r"the first\nphotodiode hums", "the first photodiode hums"),
        (r"\Nthe first \N \N photodiode\N", "the first photodiode"),
        ("the first\\N\nphotodiode hums", "the first photodiode hums"),
        (
            r"<v Ann>the first\Nphotodiode&nbsp;hums &amp; stops<br>now</v>",
            "Ann: the first photodiode hums & stops now",
        ),
        (r"{\p1}m 0 0 l 100 0 100 100{\p0}", None),
        ("{TS check this}photodiode hums", "{TS check this}photodiode hums"),
        (r"C:\temp, \d+ and \w in {curly} {x | x > 0}", r"C:\temp, \d+ and \w in {curly} {x | x > 0}"),
    ],
)
def test_markup_of_other_formats_is_removed(text: str, expected: str | None) -> None:
    found = [words for _, _, words in read(f"1\n{TIME}\n{text}\n")]
    assert found == ([] if expected is None else [expected])


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


def test_substation_alpha_is_told_apart_by_content() -> None:
    assert read(ASS) == [*HUMS, (3, 4.5, "then, it stops")]


@pytest.mark.parametrize("text", ["<html>", "nothing", "[Script Info]\n", "{1}{1}25\n{25}{50}frames\n"])
def test_texts_in_no_known_format_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"clip\.srt: It is in no known subtitle format"):
        read(text)


@pytest.mark.parametrize(
    "text",
    [
        "Dialogue: 0,0:00:01.00,0:00:02.00,Default,,0,0,0,,{\\p{\\p" + "{\\p" * 300_000,
        f"{TIME}\n" + "1" * 300_000 + " -->" * 100_000 + "\n" + "<br" * 100_000,
        (f"{TIME}\n" + " " * 10_000 + "\n") * 50,
    ],
)
def test_hostile_subtitles_are_read_in_little_time(text: str) -> None:
    assert len(read(text)) <= 2
