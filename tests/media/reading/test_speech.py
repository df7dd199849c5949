"""What of a speech model's output counts as said, with a fake model, and with recordings if there are any."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import pytest
from faster_whisper.transcribe import Segment, Word

from media.pyav_decoding import open_video
from media.reading import SourceReading, VideoReader, speech
from media.video_limits import VideoLimits
from tests.media.reading.clips import RATE, draw, write_clip

ENGLISH = "the quick brown fox jumps over the lazy dog today"
RECORDINGS = os.environ.get("CINESTRATA_TEST_RECORDINGS")


def segment(
    text: str, *, start: float = 0.0, window: int = 0, log: float = -0.3, silent: float = 0.1
) -> Segment:
    """Build a segment of a second for each word."""
    words = [Word(start + n, start + n + 0.9, f" {word}", 0.9) for n, word in enumerate(text.split())]
    return Segment(
        id=1,
        seek=window,
        start=start,
        end=start + len(words),
        text=f" {text}",
        tokens=list(range(len(words))),
        avg_logprob=log,
        compression_ratio=1.0,
        no_speech_prob=silent,
        words=words,
        temperature=0.0,
    )


@dataclass
class FakeModel:
    """A model that returns given segments; its word pieces are whole words, or single letters."""

    segments: list[Segment]
    pieces: int = 1  # per word
    is_multilingual: bool = False
    model: Any = field(init=False)
    hf_tokenizer: Any = field(init=False)

    def __post_init__(self) -> None:
        self.model = self
        self.hf_tokenizer = SimpleNamespace(decode=lambda tokens: "a" * len(tokens))
        for each in self.segments:
            each.tokens = each.tokens * self.pieces

    def transcribe(self, sound: Any, **_: object) -> tuple[list[Segment], Any]:
        seconds = len(sound) / RATE
        return self.segments, SimpleNamespace(duration=seconds, duration_after_vad=seconds)


def hear(fake: FakeModel, folder: Path, monkeypatch: pytest.MonkeyPatch, voice: float = 0.9) -> SourceReading:
    monkeypatch.setattr(speech, "WhisperModel", lambda *_, **__: fake)
    monkeypatch.setattr(speech, "get_vad_model", lambda: lambda sound: np.full(len(sound) // 512, voice))
    clip = write_clip(folder / "clip.mkv", [draw([])] * 24, (np.zeros(12 * RATE, np.float32),))
    with ExitStack() as stack, clip.open("rb") as file:
        video = open_video(stack, file, clip.stat().st_size, "clip", VideoLimits())
        return speech.SpeechReader(None).read(video, lambda: None)


def test_a_long_segment_is_divided_and_keeps_its_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = hear(FakeModel([segment(ENGLISH, start=1.0)]), tmp_path, monkeypatch)
    assert reading.note is None
    assert " ".join(text.text for text in reading.texts) == ENGLISH
    assert [text.start for text in reading.texts] == [1.0, 6.0]
    assert all(text.end - text.start <= 8 for text in reading.texts)


@pytest.mark.parametrize(
    "segments",
    [[segment(ENGLISH, log=-0.9)], [segment(ENGLISH, log=-0.6, silent=0.8)], [segment("we " * 80)]],
)
def test_improbable_and_repeated_speech_is_another_language(
    segments: list[Segment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = hear(FakeModel(segments), tmp_path, monkeypatch)
    assert (reading.texts, reading.note) == ([], "speech in another language, not read (or too unclear)")


def test_words_outside_the_vocabulary_are_another_language(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not hear(FakeModel([segment(ENGLISH)], pieces=3), tmp_path, monkeypatch).texts


@pytest.mark.parametrize(
    ("extra", "voice"),
    [
        ([segment("okay", start=n) for n in range(5)], 0.9),
        ([segment("Thank you for watching!", log=-0.7)], 0.9),
        ([segment("Subtitles by the Amara.org community", log=-0.7)], 0.9),
        ([segment("...", start=11)], 0.9),
    ],
)
def test_inventions_beside_speech_are_left_out(
    extra: list[Segment], voice: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = hear(FakeModel([segment(ENGLISH), *extra]), tmp_path, monkeypatch, voice)
    assert " ".join(text.text for text in reading.texts) == ENGLISH


def test_speech_without_voice_is_invented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not hear(FakeModel([segment(ENGLISH)]), tmp_path, monkeypatch, voice=0.02).texts


def test_a_model_of_all_languages_is_asked_for_no_language(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeModel([segment(ENGLISH, log=-0.9)], pieces=3, is_multilingual=True)
    assert hear(fake, tmp_path, monkeypatch).texts


def test_long_sound_is_divided_where_it_is_quiet(tmp_path: Path) -> None:
    sound = np.full(200 * RATE, 0.5, np.float32)
    sound[140 * RATE : 141 * RATE] = 0
    # It is a single packet, which decoders return as a whole.
    with av.open(str(write_clip(tmp_path / "long.mkv", [draw([])], (sound,)))) as container:
        windows = list(speech.windows(speech._pieces(container, container.streams.audio[0])))
    assert [round(start) for start, _ in windows] == [0, 140]
    assert sum(len(window) for _, window in windows) == len(sound)


@pytest.mark.skipif(not RECORDINGS, reason="CINESTRATA_TEST_RECORDINGS names no folder of recordings")
def test_a_recording_is_understood(tmp_path: Path) -> None:
    """``jfk.flac`` of Whisper's repository."""
    from faster_whisper.audio import decode_audio

    sound = decode_audio(str(Path(str(RECORDINGS)) / "jfk.flac"))
    clip = write_clip(tmp_path / "speech.mkv", [draw([])] * 22, (sound,))
    with VideoReader() as reader:
        texts = reader.read(clip, ["speech"])["speech"].texts
    assert "what your country can do for you" in " ".join(text.text for text in texts)
    assert texts[-1].end == pytest.approx(11, abs=1)
