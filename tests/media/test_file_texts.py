"""What a video file carries: subtitle streams, chapters, tags, time and camera."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from av.stream import Disposition

from media import VideoDecoder
from media.timed_texts import FileTexts, TimedText, clean_text

Cues = Sequence[tuple[float, float, str]]
HEADER = (
    b"[Script Info]\nScriptType: v4.00+\n\n[V4+ Styles]\nFormat: Name, Fontname, Fontsize\nStyle: Default,Arial,16\n\n"
    b"[Events]\nFormat: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text\n"
)
MOVIE = [(0.5, 1.5, "Hello <i>there</i>"), (2.0, 3.0, "two\nlines"), (3.0, 3.5, "a\u202eb\x07c &amp; d")]
KARAOKE = [
    (0.5, 1.5, "0,0,Default,,0,0,0,,{\\k20}Ka{\\k10}ra{note}oke"),
    (2.0, 3.0, "1,0,Default,,0,0,0,,{\\p1}m 0 0 l"),
]


def write_film(
    path: Path,
    streams: Sequence[tuple[str, Cues]] = (),
    *,
    seconds: int = 4,
    languages: Sequence[str] = (),
    dispositions: Sequence[int] = (),
    metadata: dict[str, str] | None = None,
    chapters: Sequence[tuple[float, float, str]] = (),
) -> Path:
    options = {"movflags": "use_metadata_tags"} if path.suffix in (".mp4", ".mov") else {}
    with av.open(str(path), "w", options=options) as container:
        container.metadata.update(metadata or {})
        video: Any = container.add_stream("libvpx" if path.suffix == ".webm" else "libx264", rate=4)
        video.width, video.height, video.pix_fmt = 64, 48, "yuv420p"
        container.set_chapters(
            [
                {
                    "id": number,
                    "start": int(start * 1000),
                    "end": int(end * 1000),
                    "time_base": Fraction(1, 1000),
                    "metadata": {"title": title},
                }
                for number, (start, end, title) in enumerate(chapters, 1)
            ]
        )
        texts: list[Any] = []
        for number, (codec, _) in enumerate(streams):
            stream: Any = container.add_stream(codec)
            stream.time_base = Fraction(1, 1000)
            stream.codec_context.subtitle_header = HEADER
            if languages:
                stream.metadata["language"] = languages[number]
            if dispositions:
                stream.disposition = dispositions[number]
            texts.append(stream)
        for index in range(seconds * 4):
            picture = np.full((48, 64, 3), index * 9 % 255, np.uint8)
            container.mux(video.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
            for stream, (codec, cues) in zip(texts, streams, strict=True):
                for start, end, text in cues:
                    if index / 4 <= start < (index + 1) / 4:
                        raw = text.encode()
                        packet = av.Packet(len(raw).to_bytes(2, "big") + raw if codec == "mov_text" else raw)
                        packet.stream, packet.time_base = stream, Fraction(1, 1000)
                        packet.pts = packet.dts = int(start * 1000)
                        packet.duration = int((end - start) * 1000)
                        container.mux(packet)
        container.mux(video.encode(None))
    return path


def read(path: Path) -> FileTexts:
    with VideoDecoder() as decoder:
        texts = decoder.decode(path, frames=1, size=8).texts
    assert texts is not None
    return texts


@pytest.mark.parametrize(
    ("name", "codec", "cues", "words"),
    [
        ("film.mp4", "mov_text", MOVIE, ["Hello there", "two lines", "abc & d"]),
        ("film.mkv", "subrip", MOVIE, ["Hello there", "two lines", "abc & d"]),
        ("film.webm", "webvtt", MOVIE, ["Hello there", "two lines", "abc & d"]),
        ("film.mkv", "ass", KARAOKE, ["Karaoke"]),
    ],
)
def test_text_subtitles_become_timed_texts(
    tmp_path: Path, name: str, codec: str, cues: Cues, words: list[str]
) -> None:
    texts = read(write_film(tmp_path / name, [(codec, cues)], languages=["fre"]))
    assert [text.text for text in texts.subtitles] == words
    assert texts.subtitles[0][:2] == (0.5, 1.5)
    assert texts.language == "fre"
    assert texts.notes == []


def test_default_subtitles_are_read_before_others_and_forced_ones_last(tmp_path: Path) -> None:
    streams = [("subrip", [(1.0, 2.0, word)]) for word in ("forced", "other", "default")]
    dispositions = [Disposition.forced | Disposition.default, Disposition(0), Disposition.default]
    film = write_film(
        tmp_path / "film.mkv", streams, languages=["eng", "ger", "spa"], dispositions=dispositions
    )
    texts = read(film)
    assert ([text.text for text in texts.subtitles], texts.language) == (["default"], "spa")


def test_chapters_tags_time_and_camera_are_read(tmp_path: Path) -> None:
    metadata = {
        "title": "Harbour  at\nnight",
        "comment": "x" * 5000,
        "keywords": "cranes, ships",
        "creation_time": "2021-05-06T07:08:09Z",
        "com.apple.quicktime.creationdate": "2021-05-06T09:08:09+0200",
        "com.apple.quicktime.make": "Acme",
        "com.apple.quicktime.model": "Acme 5",
        "location": "+53.5+9.9/",
    }
    chapters = [(0.0, 2.0, "Loading"), (2.0, 3.0, "Chapter 2"), (3.0, 4.0, "03")]
    texts = read(write_film(tmp_path / "film.mkv", metadata=metadata, chapters=chapters))
    assert texts.chapters == [TimedText(0.0, 2.0, "Loading")]
    assert texts.tags == {
        "title": "Harbour at night",
        "comment": "x" * 2000,
        "keywords": "cranes, ships",
        "location": "+53.5+9.9/",
    }
    assert (texts.created, texts.camera) == ("2021-05-06T09:08:09+02:00", "Acme 5")
    # A camera without a clock.
    film = write_film(tmp_path / "old.mkv", metadata={"creation_time": "1970-01-01T00:00:00Z"})
    assert read(film) == FileTexts()


def test_subtitles_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from media import file_texts

    film = write_film(
        tmp_path / "film.mkv", [("subrip", [(n / 4, n / 4 + 0.2, f"line {n}") for n in range(16)])]
    )
    with av.open(str(film)) as container:
        monkeypatch.setattr(file_texts, "_MAX_CUES", 3)
        texts = file_texts.read_file_texts(container, 0.0, 4.0)
    assert len(texts.subtitles) == 3
    assert texts.notes == ["subtitles after 1 s are not read"]


def test_clean_text_removes_what_could_deceive_a_reader() -> None:
    assert clean_text(" a\u202e\u2067b\x00\x1b[31m\ud800c\u200d\n d ") == "ab[31mc\u200d d"
    assert len(clean_text("word " * 1000)) <= 500
