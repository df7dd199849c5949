"""Side files in the folders that the command line reads: what they become, and what it says about them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cinestrata_schemas.tasks import VideoSpec
from cli.commands.video_sources import read_videos
from service.core.errors import InvalidInput

SRT = "1\n00:00:01,000 --> 00:00:02,000\nthe photodiode hums\n"
VTT = "WEBVTT\n\n00:01.000 --> 00:02.000\nthe photodiode hums\n"
HUMS = [(1.0, 2.0, "the photodiode hums")]


def srt(text: str) -> str:
    return SRT.replace("the photodiode hums", text)


class Folder:
    """A folder of videos with side files, as the command line reads it."""

    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._path = path
        self._capsys = capsys
        self.printed = ""

    def read(self, videos: str, files: Mapping[str, str | bytes], **options: Any) -> dict[str, VideoSpec]:
        """Write videos, whose names are separated by ``;``, and side files, and read the folder."""
        for name in videos.split(";"):
            self._write(name, b"video " + name.encode())
        for name, content in files.items():
            self._write(name, content.encode() if isinstance(content, str) else content)
        listing = read_videos(self._path, **options)
        listing.require_all()
        self.printed = " ".join(self._capsys.readouterr().out.split())
        return {video.uri: video for video in listing.videos}

    def _write(self, name: str, content: bytes) -> None:
        path = self._path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


@pytest.fixture
def folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Folder:
    return Folder(tmp_path / "v", capsys)


def cues(video: VideoSpec) -> list[tuple[float, float, str]]:
    return [(cue.start, cue.end, cue.text) for cue in video.transcript]


def said(videos: dict[str, VideoSpec]) -> dict[str, str]:
    """The texts of the videos that have a transcript."""
    return {
        uri: " | ".join(cue.text for cue in video.transcript)
        for uri, video in videos.items()
        if video.transcript
    }


SUFFIXES = """
    en.sdh.srt pt_BR.srt English.srt default.en.srt zh-Hans.srt eng.srt en-US.srt es-419.srt forced.srt sdh.eng.srt
    en.default.forced.srt zh-Hant-TW.srt sr-Latn.vtt en.hi.srt English_(SDH).srt English[CC].srt en-orig.vtt en-en.vtt
    a.en.vtt en-nP7-2PuUl7o.vtt EN.SRT ENG.srt en.SDH.SRT En.Forced.Srt PT-BR.srt mp4.srt
"""


@pytest.mark.parametrize("suffix", SUFFIXES.split())
def test_subtitles_may_have_a_language_and_kinds(folder: Folder, suffix: str) -> None:
    name = f"clip.{suffix.replace('_(', ' (')}"
    video = folder.read("clip.mp4", {name: VTT if name.endswith("vtt") else SRT})["clip.mp4"]
    assert cues(video) == HUMS
    assert "not used" not in folder.printed


@pytest.mark.parametrize(
    "name", ["clip.draft3.srt", "clip.rushes.en.srt", "clipper.srt", "clip.2_English.srt"]
)
def test_subtitles_that_belong_to_no_video_are_named(folder: Folder, name: str) -> None:
    video = folder.read("clip.mp4", {name: SRT})["clip.mp4"]
    assert (video.captions, video.transcript) == ([], [])
    assert f"{name} belongs to no video, and is not used" in folder.printed


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        ("en.forced en.sdh en de", "en"),
        ("en.forced en.sdh de", "en.sdh"),
        ("en.forced de", "de"),
        ("en en.sdh de .", "."),
        ("en en-orig", "en"),
        ("en EN.FORCED", "en"),
    ],
)
def test_the_best_of_several_subtitles_is_read(folder: Folder, names: str, chosen: str) -> None:
    files = {f"clip.{name}.srt".replace("...", "."): srt(name) for name in names.split()}
    assert said(folder.read("clip.mp4", files)) == {"clip.mp4": chosen}


def test_subtitles_belong_to_the_longest_name_that_they_begin_with(folder: Folder) -> None:
    names = ["clip.2", "clip.en", "clip.directors.cut", "Show.S01E02.1080p.WEB"]
    files = {f"{name}.srt": srt(name) for name in names} | {"clip.sdh.en.srt": srt("clip.sdh")}
    files["Show.S01E02.1080p.WEB.pt-BR.hi.srt"] = files.pop("Show.S01E02.1080p.WEB.srt")
    listing = folder.read(";".join(f"{name}.mp4" for name in ["clip", "clip.sdh", *names]), files)
    assert said(listing) == {f"{name}.mp4": name for name in ["clip.sdh", *names]}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("CAPTIONS.CSV", "FILE,CAPTION\r\nCLIP.MP4,a dog runs\r\n"),
        ("CLIP.TXT", "a dog runs\n"),
        ("CLIP.JSON", '{"caption": "a dog runs"}'),
        ("DATA.JSONL", '{"file": "CLIP.MP4", "caption": "a dog runs"}\n'),
        ("DATA.TSV", "FILE\tCAPTION\nCLIP.MP4\ta dog runs\n"),
    ],
)
def test_tables_and_texts_may_have_upper_case_endings(folder: Folder, name: str, content: str) -> None:
    assert folder.read("CLIP.MP4", {name: content})["CLIP.MP4"].captions == ["a dog runs"]


def test_sloppy_subtitles_are_read_and_unreadable_ones_are_named(folder: Folder) -> None:
    assert said(folder.read("clip.mp4", {"clip.srt": SRT.replace("\n", "\r")})) == {"clip.mp4": HUMS[0][2]}
    for content, problem in [
        ("<!DOCTYPE html><html><title>404</title>", "It is in no known subtitle format"),
        ("1\n00:00:61,000 --> 00:01:99,000\nodd\n", "1 of 1 cues has no valid time"),
        (b"\x1f\x8b\x08\x00\x00\x00\x00\x00", "The line contains a NUL"),
    ]:
        with pytest.raises(InvalidInput, match=rf"b\.en\.SRT(:1)?: {problem}"):
            folder.read("b.mp4", {"b.en.SRT": content})


def test_each_text_has_an_encoding_of_its_own(folder: Folder) -> None:
    texts = {name: srt("café") for name in "abcd"}
    encodings = {"a": "cp1252", "b": "utf-8", "c": "utf-16", "d": "utf-8-sig"}
    files = {f"{name}.srt": text.encode(encodings[name]) for name, text in texts.items()}
    files["e.srt"] = srt("“Ã©” is naïve")
    expected = {f"{name}.mp4": "café" for name in texts} | {"e.mp4": "“Ã©” is naïve"}
    for options in ({}, {"encoding": "cp1252"}):
        assert said(folder.read("a.mp4;b.mp4;c.mp4;d.mp4;e.mp4", files, **options)) == expected
        assert ("a.srt is not UTF-8, and was read as cp1252; --encoding" in folder.printed) is (not options)
    with pytest.raises(InvalidInput, match="'klingon' is not supported"):
        folder.read("a.mp4", {}, encoding="klingon")


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("cp1251", "Привет, мир, как дела"),
        ("cp1250", "żółw idzie"),
        ("gb18030", "你好世界"),
        ("shift_jis", "こんにちは"),
        ("cp949", "안녕하세요"),
    ],
)
def test_other_code_pages_are_read_as_asked_or_with_a_note(folder: Folder, encoding: str, text: str) -> None:
    files = {"a.srt": srt(text).encode(encoding), "b.srt": srt(text)}
    assert said(folder.read("a.mp4;b.mp4", files, encoding=encoding)) == {"a.mp4": text, "b.mp4": text}
    assert said(folder.read("a.mp4;b.mp4", files))["b.mp4"] == text
    assert "a.srt is not UTF-8, and was read as" in folder.printed


SEGMENTS = [{"id": 0, "start": 1.0, "end": 2.0, "text": " the photodiode hums", "tokens": [1, 2]}]
WHISPER = {
    "clip.srt": SRT,
    "clip.vtt": VTT,
    "clip.tsv": "start\tend\ttext\n1000\t2000\tthe photodiode hums\n",
    "clip.txt": "the photodiode hums\n",
    "clip.json": json.dumps({"text": " the photodiode hums", "segments": SEGMENTS, "language": "en"}),
}


@pytest.mark.parametrize(
    "names", ["srt vtt tsv txt json", "srt tsv", "srt json", "vtt txt", "json txt", "tsv txt", "tsv", "json"]
)
def test_speech_recognized_by_whisper_is_the_transcript(folder: Folder, names: str) -> None:
    files = {f"clip.{name}": WHISPER[f"clip.{name}"] for name in names.split()}
    video = folder.read("clip.mp4", files)["clip.mp4"]
    assert (video.captions, cues(video)) == ([], HUMS)


@pytest.mark.parametrize(
    "document",
    [
        {
            "segments": [{**SEGMENTS[0], "words": [{"word": "photodiode"}]}],
            "word_segments": [],
            "language": "en",
        },
        {
            "result": {"language": "en"},
            "transcription": [{"offsets": {"from": 1000, "to": 2000}, "text": " the photodiode hums"}],
        },
        {"text": "…", "chunks": [{"timestamp": [1.0, None], "text": " the photodiode hums"}]},
        {"task": "transcribe", "language": "english", "duration": 2.0, "text": "…", "segments": SEGMENTS},
    ],
)
@pytest.mark.parametrize("name", ["clip.json", "clip.mp4.json", "all.json"])
def test_speech_recognized_by_other_programs(folder: Folder, document: dict[str, Any], name: str) -> None:
    video = folder.read("clip.mp4", {name: json.dumps(document)})["clip.mp4"]
    assert (video.captions, cues(video)) == ([], [] if name == "all.json" else HUMS)
    assert ("all.json is not used: recognized speech" in folder.printed) is (name == "all.json")


def test_captions_beside_speech_stay_captions(folder: Folder) -> None:
    videos = "clip.mp4;text.mp4;both.mp4;empty.mp4;table.mp4"
    files = {name: text for name, text in WHISPER.items() if name != "clip.txt"}
    files |= {"captions.tsv": "file\tcaption\nclip.mp4\ta machine\n", "text.txt": "a dog runs\na dog plays\n"}
    files |= {"both.srt": SRT, "both.txt": "a field at dawn\n"}
    files |= {"empty.json": '{"text": "", "segments": [], "language": "en"}', "empty.txt": ""}
    files |= {"empty.tsv": "start\tend\ttext\n", "t.tsv": "file\tstart\tend\ttext\ntable.mp4\t0\t2\ta cat\n"}
    listing = folder.read(videos, files)
    assert [listing[name].captions for name in videos.split(";")] == [
        ["a machine"],
        ["a dog runs", "a dog plays"],
        ["a field at dawn"],
        [],
        ["a cat"],
    ]
    assert said(listing) == {"clip.mp4": "the photodiode hums", "both.mp4": "the photodiode hums"}


CHAT = (
    '{"replayChatItemAction":{"actions":[{}],"videoOffsetTimeMsec":"0"}}\n'
    '{"replayChatItemAction":{"actions":[],"videoOffsetTimeMsec":"9"}}\n'
)


def test_what_a_downloader_leaves_beside_a_video_is_no_caption(folder: Folder) -> None:
    described = {"title": "A dog runs", "description": "In the park"}
    info = {**described, "extractor": "y", "comments": [{"text": "first!"}]}
    playlist = {"_type": "playlist", "id": "PL1", "title": "Dogs", "entries": [], "extractor": "youtube:tab"}
    json3 = '{"wireMagic": "pb3", "events": [{"tStartMs": 1000, "segs": [{"utf8": "the photodiode hums"}]}]}'
    files = dict.fromkeys(("clip.live_chat.json", "clip.live_chat.jsonl", "clip.live_chat.json.part"), CHAT)
    files |= {"gone.live_chat.json": CHAT, "Talk [x].live_chat.json": CHAT, "clip.en.json": json3}
    files |= {"clip.rechat.json": '[{"message": {"body": "lol"}}]', "clip.comments.json": "[]"}
    files |= {"clip.info.json": json.dumps(info), "clip.description": "In the park", "archive.txt": "y x\n"}
    files |= {"Dogs [PL1].info.json": json.dumps(playlist), "clip.en.json3": json3}
    files |= {"clip.annotations.xml": "<a/>"}
    listing = folder.read("clip.mp4;Talk [x].mp4", files)
    assert [video.captions for video in listing.values()] == [[], ["A dog runs", "In the park"]]
    assert said(listing) == {}


def takeout(description: str | None = "Grandma blows out candles", **fields: Any) -> str:
    described = {} if description is None else {"description": description}
    taken = {"timestamp": "1258375918", "formatted": "…"}
    return json.dumps(
        {"title": "clip.mp4", "imageViews": "3", "photoTakenTime": taken, **described, **fields}
    )


CUT_NAMES = ". .supplemental-metadata. .supplemental-metada. .supplemen. .suppl. .s. .."


@pytest.mark.parametrize(
    ("video", "name"),
    [
        *(("clip.mp4", f"clip.mp4{middle}json") for middle in CUT_NAMES.split()),
        ("clip(1).mp4", "clip.mp4.supplemental-metadata(1).json"),
        ("clip(1).mp4", "clip.mp4(1).json"),
    ],
)
def test_descriptions_of_google_takeout_are_metadata(folder: Folder, video: str, name: str) -> None:
    listing = folder.read(f"{video};clip.mp4", {name: takeout()})
    assert all(not each.captions for each in listing.values())
    assert {uri: each.metadata for uri, each in listing.items() if each.metadata} == {
        video: {"description": "Grandma blows out candles", "photoTakenTime": "2009-11-16T12:51:58+00:00"}
    }


def test_a_folder_of_google_takeout_is_read(folder: Folder) -> None:
    place = {"latitude": 48.1, "longitude": 11.5, "altitude": 0.0}
    odd = takeout(
        None, geoData=place, people=[{"name": "Ann"}], creationTime={"timestamp": "x"}, url="https://x"
    )
    album = (
        '{"title": "Summer", "description": "", "access": "protected", "date": {"timestamp": "1258375918"}}'
    )
    files = {
        "clip.mp4.supplemental-metadata.json": takeout(),
        "clip.mp4.supplemental-metadata(1).json": takeout("Second cake"),
        "odd.mp4.json": odd,
        "long.mp4.json": takeout("many\nwords " * 300),
        "metadata.json": album,
        "Metadaten.json": album,
        "print-subscriptions.json": "{}",
        "long_nam.json": takeout(),  # named after a cut name
        "IMG_1.jpg": "x",
        "IMG_1.jpg.supplemental-metadata.json": takeout("a photo", title="IMG_1.jpg"),
        "table.mp4.json": '{"file": "table.mp4", "caption": "a cat"}',
        "captions.csv": "file,caption\nclip.mp4,a dog runs\n",
    }
    listing = folder.read("clip.mp4;clip(1).mp4;odd.mp4;long.mp4;table.mp4;clip-edited.mp4", files)
    captions = {uri: video.captions for uri, video in listing.items() if video.captions}
    assert captions == {"clip.mp4": ["a dog runs"], "table.mp4": ["a cat"]}
    assert "long_nam.json is not used: metadata of Google Takeout" in folder.printed
    assert (listing["clip(1).mp4"].metadata or {})["description"] == "Second cake"
    taken = "2009-11-16T12:51:58+00:00"
    expected = {"photoTakenTime": taken, "latitude": 48.1, "longitude": 11.5, "people": ["Ann"]}
    assert listing["odd.mp4"].metadata == expected
    assert len((listing["long.mp4"].metadata or {})["description"]) <= 1000


@pytest.mark.parametrize(
    ("content", "captions"),
    [
        ("sep=;\r\nfile;caption\r\nclip.mp4;a dog runs\r\n", ["a dog runs"]),
        ('sep=,\r\nfile,caption\r\nclip.mp4,"a dog, running"\r\n', ["a dog, running"]),
        ('"sep=;"\nfile;caption\nclip.mp4;a dog runs\n', ["a dog runs"]),
        ("sep=\t\r\nfile\tcaption\r\nclip.mp4\ta dog runs\r\n", ["a dog runs"]),
        ("sep=;\r\n\r\nfile;caption\r\nclip.mp4;a dog runs\r\n", ["a dog runs"]),
        ("sep=;\rfile;caption\rclip.mp4;a dog runs\r", ["a dog runs"]),
        ("\ufeffsep=;\r\nfile;caption\r\nclip.mp4;café\r\n", ["café"]),
        ("sep=;\r\nfile;caption\r\nclip.mp4;café\r\n".encode("utf-16"), ["café"]),
        ("file,caption\r\nclip.mp4,sep=; is the first line\r\n", ["sep=; is the first line"]),
        ("separator,file,caption\r\na,clip.mp4,a dog\r\n", ["a dog"]),
    ],
)
def test_the_delimiter_line_of_excel_is_skipped(
    folder: Folder, content: str | bytes, captions: list[str]
) -> None:
    assert folder.read("clip.mp4", {"captions.csv": content})["clip.mp4"].captions == captions


@pytest.mark.parametrize(
    ("cell", "captions"),
    [
        ("['a dog runs', 'a dog plays']", ["a dog runs", "a dog plays"]),
        (repr(["a man's dog", 'he says "sit"', 'it\'s a "big" dog', "a, b; c]"]), None),
        (str(np.array(["a dog runs", "a dog plays"], dtype=object)), ["a dog runs", "a dog plays"]),
        ("['a dog runs'\n 'a dog plays']", ["a dog runs", "a dog plays"]),
        ("array(['a dog runs', 'a dog plays'], dtype=object)", ["a dog runs", "a dog plays"]),
        ("[['a dog runs', 'a dog plays']]", ["a dog runs", "a dog plays"]),
        ("[None, 'a dog runs', nan]", ["a dog runs"]),
        ("[]", []),
        ("[None]", []),
        *(
            (text, [text])
            for text in (
                "[music] a man sings",
                "[a dog runs]",
                "['80s style] a dog runs",
                "a dog [runs]",
                '"Don\'t stop" he says',
                "['a dog runs', 'a dog",
                "(a dog runs)",
                "['\\x']",
                "[__import__('os').system('false')]",
                "[" * 2000,
            )
        ),
    ],
)
def test_lists_as_python_prints_them_are_several_captions(
    folder: Folder, cell: str, captions: list[str] | None
) -> None:
    expected = (
        ["a man's dog", 'he says "sit"', 'it\'s a "big" dog', "a, b; c]"] if captions is None else captions
    )
    quoted = cell.replace('"', '""')
    files = {"captions.csv": f'file,captions\nclip.mp4,"{quoted}"\n'}
    files["data.jsonl"] = json.dumps({"file": "b.mp4", "caption": cell.strip()})
    listing = folder.read("clip.mp4;b.mp4", files)
    assert listing["clip.mp4"].captions == expected
    if "\n" not in cell and cell not in ("[]",):
        assert listing["b.mp4"].captions == expected


MSVD = "VideoID,Start,End,WorkerID,Source,AnnotationTime,Language,Description\n"


def test_clips_of_msvd_are_named_after_their_start_and_end(folder: Folder) -> None:
    videos = "mv89psg6zh4_33_46.avi;mv89psg6zh4_100_110.avi;x/-4wsuPCjDBc_5_15.avi;a_1_2_3_4.avi;k_000033_000046.mp4"
    table = (
        f"{MSVD}mv89psg6zh4,33,46,588702,unverified,55,English,A bird is bathing in a sink.\n"
        "mv89psg6zh4,33.0,46.0,362812,unverified,87,Slovene,Papagaj se umiva.\n"
        "mv89psg6zh4,100,110,1,clean,9,English,A parrot eats.\nmv89psg6zh4,200,210,1,clean,9,English,Not here.\n"
        "-4wsuPCjDBc,5,15,1,clean,9,English,A squirrel eats.\na_1_2,3,4,1,clean,9,English,A dog runs.\n"
        "k,33,46,1,clean,9,English,A cat.\n"
    )
    listing = folder.read(videos, {"MSVD.csv": table})
    assert {uri: video.captions for uri, video in listing.items()} == {
        "mv89psg6zh4_33_46.avi": ["A bird is bathing in a sink.", "Papagaj se umiva."],
        "mv89psg6zh4_100_110.avi": ["A parrot eats."],
        "x/-4wsuPCjDBc_5_15.avi": ["A squirrel eats."],
        "a_1_2_3_4.avi": ["A dog runs."],
        "k_000033_000046.mp4": ["A cat."],
    }
    metadata = listing["mv89psg6zh4_33_46.avi"].metadata or {}
    assert (metadata["Language"], metadata["Source"]) == (["English", "Slovene"], "unverified")
    assert "1 row has no file in the folder and is left out: mv89psg6zh4_200_210." in folder.printed


def test_endings_may_have_any_case(folder: Folder) -> None:
    telemetry = (
        '1\n00:00:00,000 --> 00:00:00,033\n<font size="28">FrameCnt: 1, DiffTime: 33ms\n'
        "2023-05-01 10:00:00.123\n[iso: 100] [latitude: 48.1]</font>\n"
    )
    files: dict[str, str] = {f"DJI_0001.{kind}": "x" for kind in ("LRF", "THM", "JPG", "AAC")}
    files |= {"DJI_0001.SRT": telemetry, "DJI_0001.TXT": "a field\n", "c.VTT": VTT, "D.srt": SRT}
    files |= {"b.srt": srt("lower"), "b.SRT": srt("not"), "B.SRT": srt("upper")}
    listing = folder.read("DJI_0001.MP4;b.mp4;B.mp4;c.Mp4;D.MOV", files)
    assert listing["DJI_0001.MP4"].captions == ["a field"]
    assert said(listing) == {
        "DJI_0001.MP4": "FrameCnt: 1, DiffTime: 33ms 2023-05-01 10:00:00.123 [iso: 100] [latitude: 48.1]",
        "b.mp4": "lower",
        "B.mp4": "upper",
        "c.Mp4": "the photodiode hums",
        "D.MOV": "the photodiode hums",
    }


def test_damaged_bytes_do_not_change_the_encoding(folder: Folder) -> None:
    content = srt("Привет café ").encode()[:-1] + b"\xff\n"
    assert said(folder.read("a.mp4", {"a.srt": content})) == {"a.mp4": "Привет café"}
    assert "a.srt is not UTF-8, and was read as damaged UTF-8" in folder.printed
    table = "file;caption\r\na.mp4;ein Mädchen läuft\r\n"
    files = {"captions.csv": table.encode("cp1252"), "b.srt": srt("café")}
    listing = folder.read("a.mp4;b.mp4", files, encoding="cp1252")
    assert (listing["a.mp4"].captions, said(listing)["b.mp4"]) == (["ein Mädchen läuft"], "café")


def test_speech_of_many_lines_is_no_caption(folder: Folder) -> None:
    lines = [f"sentence {number}" for number in range(80)]
    blocks = [
        f"{n}\n00:00:{n % 60:02},000 --> 00:00:{n % 60:02},900\n{line}\n" for n, line in enumerate(lines)
    ]
    video = folder.read("clip.mp4", {"clip.txt": "\n".join(lines), "clip.srt": "\n".join(blocks)})["clip.mp4"]
    assert (video.captions, len(video.transcript)) == ([], 80)


def test_tables_named_like_side_files_are_read(folder: Folder) -> None:
    files = {"live_chat.json": '[{"file": "clip.mp4", "caption": "a dog runs"}]'}
    assert folder.read("clip.mp4", files)["clip.mp4"].captions == ["a dog runs"]
    with pytest.raises(InvalidInput, match="match no known caption format"):
        folder.read("clip.mp4", {"unknown.json": '{"actions": "clip"}'})


def test_the_delimiter_line_of_excel_is_counted(folder: Folder) -> None:
    with pytest.raises(InvalidInput, match=r"captions\.csv:4\b"):
        folder.read("clip.mp4", {"captions.csv": "sep=;\nfile;caption\nclip.mp4;x\nclip.mp4;x;y\n"})
    with pytest.raises(InvalidInput, match="It lists no videos"):
        folder.read("clip.mp4", {"captions.csv": "sep=;\r\n"})


def test_an_id_with_start_and_end_names_the_whole_video_only_without_a_clip(folder: Folder) -> None:
    files = {"MSVD.csv": f"{MSVD}v,33,46,1,clean,9,English,A bird.\nw,1,2,1,clean,9,English,A cat.\n"}
    listing = folder.read("v.mp4;v_33_46.avi;w.mp4", files)
    assert {uri: video.captions for uri, video in listing.items()} == {
        "v_33_46.avi": ["A bird."],
        "w.mp4": ["A cat."],
        "v.mp4": [],
    }
    with pytest.raises(InvalidInput, match=r"None of the videos it names is in the folder.*ID_33_46\.avi"):
        folder.read("v.mp4", {"MSVD.csv": f"{MSVD}q,33,46,1,clean,9,English,A bird.\n"})


def test_annotations_of_images_that_coco_files_lack_are_counted(folder: Folder) -> None:
    images = [{"id": 1, "file_name": "1.mp4"}, {"id": 2, "file_name": "gone.mp4"}]
    annotations = [{"image_id": number, "caption": f"caption {number}"} for number in (1, 2, 9, 9)]
    coco = json.dumps({"images": images, "annotations": annotations})
    listing = folder.read("1.mp4;9.mp4", {"coco.json": coco})
    assert {uri: video.captions for uri, video in listing.items()} == {"1.mp4": ["caption 1"], "9.mp4": []}
    assert "2 rows have no file in the folder and are left out: gone.mp4, images.id=9." in folder.printed
