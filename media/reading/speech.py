"""Transcribe the speech in a video with faster-whisper, in windows of bounded memory, and reject hallucinations.

Whisper writes fluent sentences for noise, music and languages that it does not know. These are recognized by their
mean log-probability, by repetition, by how little voice there is, and, in English, by words that are not in the model's
vocabulary. A list of phrases comes last.
"""

from __future__ import annotations

import itertools
import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import av
import ctranslate2
import numpy as np
import numpy.typing as npt
from av.audio.resampler import AudioResampler
from av.audio.stream import AudioStream
from av.container import InputContainer
from faster_whisper import WhisperModel
from faster_whisper.transcribe import Segment, Word
from faster_whisper.vad import get_vad_model

from media.pyav_decoding import OpenVideo, intact_frames
from media.reading.reader_packages import FASTER_WHISPER, TINY_EN, describe_model
from media.reading.video_reader import SourceReading
from media.timed_texts import TimedText, clean_text

Sound = npt.NDArray[np.float32]  # mono

_RATE = 16000  # samples per second
_WINDOW_SECONDS = 150  # of sound in memory, whose spectrum takes ten times as much
_CUT_SECONDS = 30  # at the end of a window, in which it is cut where it is quietest
_QUIET_SAMPLES = _RATE // 5
_PIECE_SAMPLES = 10 * _RATE  # a packet of uncompressed sound may hold an hour
_GAP_SECONDS = 0.3  # between timestamps, which is filled with silence
_MIN_LOG_PROBABILITY = {True: -0.75, False: -1.0}  # mean of a decoded window's tokens, by "is English only"
_MIN_SHORT_LOG_PROBABILITY = -0.6  # of a first window of few words, whose mean varies
_FEW_WORDS = 10
_MAX_PIECES_PER_WORD = 1.5  # word pieces of the model; English has 1.1
_WORD = re.compile(r"[^\W\d_]+")
_MIN_LANGUAGE_SHARE = 0.4  # accepted share of the voice, below which it counts as another language
_MAX_NO_SPEECH, _SURE_LOG_PROBABILITY = 0.6, -0.5
_MAX_COMPRESSION = 2.4
_MIN_VOICE = 0.1  # mean probability of a segment, and share of the sound
_MIN_VOICE_SECONDS = 2.0  # of unread speech that a note mentions
_MAX_REPETITIONS = 2
_PAUSE_SECONDS = 1.0
_PART_SECONDS = 8.0
_MIN_SECONDS = 0.1  # of a part; the time of a word at the end of a window may be empty
_MAX_CUES = 20_000
DECODING: dict[str, Any] = {
    "vad_filter": True,
    "condition_on_previous_text": False,  # otherwise, one hallucination would lead to the next
    # Only a repetition is decoded again. The usual six attempts at sound without speech take very long.
    "temperature": (0.0, 0.4),
    "best_of": 1,
    "log_prob_threshold": None,
    "no_speech_threshold": None,
    "word_timestamps": True,
}
_HALLUCINATIONS = re.compile(
    r"\W*(thank(s| you)( so much| very much)?( for (watching|listening|your attention))?|bye"
    r"|(please )?(like and )?subscribe.*|(i('| wi)ll )?see you (in the )?next (time|video|one)"
    r"|.*(subtitles|captions|transcri\w+) by .*|.*amara\.org.*|untertitel.*|sous-titr(es|age).*|sottotitoli.*"
    r"|subt[ií]tulos.*|legendas? .*|ondertitel\w*.*|napisy .*|субтитры.*|продолжение следует"
    r"|спасибо за (просмотр|внимание)|gracias por ver.*|merci d'avoir regardé.*|vielen dank f.r.*"
    r"|ご視聴ありがとうございました|字幕.*|请不吝点赞.*|시청해\s?주셔서.*)\W*",
    re.IGNORECASE,
)


class SpeechReader:
    """A loaded model: the packaged one (None), one of faster-whisper by its name, or one in a folder."""

    def __init__(self, model: str | None) -> None:
        ctranslate2.set_random_seed(1)
        self.model = (
            WhisperModel(str(TINY_EN.locate()), device="cpu", compute_type="int8", cpu_threads=1)
            if model is None
            else WhisperModel(model, device="auto", compute_type="default", cpu_threads=4)
        )
        self._is_english_only = not self.model.model.is_multilingual
        self.description = describe_model(FASTER_WHISPER, Path(model or "Whisper tiny.en").name)

    def read(self, video: OpenVideo, progress: Callable[[], None]) -> SourceReading:
        """Transcribe the sound of a video; ``progress`` is called for each half minute of voice."""
        container = video.container
        streams = [stream for stream in container.streams.audio if stream.codec_context is not None]
        if not streams:
            note = "no sound in a known format" if container.streams.audio else "no sound"
            return SourceReading([], self.description, note)
        default = [stream for stream in streams if stream.disposition & av.stream.Disposition.default]
        stream = (default or streams)[0]
        notes = [f"sound track {streams.index(stream) + 1} of {len(streams)}"] if len(streams) > 1 else []
        texts: list[TimedText] = []
        duration = voice = accepted = 0.0  # seconds
        try:
            for begins, sound in windows(_pieces(container, stream)):
                if begins - video.start > video.limits.max_seconds:
                    break
                segments, info = self.model.transcribe(sound, **DECODING)
                duration, voice = duration + info.duration, voice + info.duration_after_vad
                for _, group in itertools.groupby(segments, key=lambda segment: segment.seek):
                    progress()
                    decoded = list(group)
                    if self._is_credible(decoded, bool(texts)):
                        accepted += sum(segment.end - segment.start for segment in decoded)
                        texts += self._timed_texts(decoded, sound, begins - video.start)
                progress()
        except (av.FFmpegError, ValueError, EOFError):
            notes.append(
                "the sound is damaged" if not texts else f"the sound is damaged after {texts[-1].end:.0f} s"
            )
        if self._is_english_only and accepted < _MIN_LANGUAGE_SHARE * voice:
            texts = []
            if voice > max(_MIN_VOICE_SECONDS, _MIN_VOICE * duration):
                notes.append("speech in another language, not read (or too unclear)")
        return SourceReading(texts[:_MAX_CUES], self.description, "; ".join(notes) or None)

    def _is_credible(self, decoded: list[Segment], follows: bool) -> bool:
        """Decide whether a decoded window of up to 30 s, which may follow others, is speech the model knows."""
        first = decoded[0]  # whose means are those of the window
        least = _MIN_LOG_PROBABILITY[self._is_english_only]
        if self._is_english_only:
            words = _WORD.findall(" ".join(segment.text for segment in decoded))
            vocabulary = self.model.hf_tokenizer
            pieces = [vocabulary.decode([token]) for segment in decoded for token in segment.tokens]
            if sum(map(bool, map(_WORD.search, pieces))) > _MAX_PIECES_PER_WORD * len(words):
                return False
            least = _MIN_SHORT_LOG_PROBABILITY if len(words) <= _FEW_WORDS and not follows else least
        if first.no_speech_prob > _MAX_NO_SPEECH:
            least = max(least, _SURE_LOG_PROBABILITY)
        text = "".join(segment.text for segment in decoded).encode()
        return first.avg_logprob >= least and len(text) <= _MAX_COMPRESSION * len(zlib.compress(text))

    def _timed_texts(self, decoded: Iterable[Segment], sound: Sound, offset: float) -> Iterator[TimedText]:
        """Yield what is said in short parts, with times since the first frame."""
        for _, repeated in itertools.groupby(decoded, key=lambda segment: segment.text.strip()):
            same = list(repeated)
            for segment in same if len(same) <= _MAX_REPETITIONS else ():
                text = clean_text(segment.text)
                excerpt = sound[int(segment.start * _RATE) : int(segment.end * _RATE) + 1]
                is_phrase = _HALLUCINATIONS.fullmatch(text) and segment.avg_logprob < _SURE_LOG_PROBABILITY
                if any(map(str.isalnum, text)) and not is_phrase and _voice(excerpt) >= _MIN_VOICE:
                    for words in _parts(segment.words or []):
                        begins = max(words[0].start + offset, 0.0)
                        ends = max(words[-1].end + offset, begins + _MIN_SECONDS)
                        text = clean_text("".join(word.word for word in words))
                        yield TimedText(round(begins, 2), round(ends, 2), text)


def _parts(words: list[Word]) -> Iterator[list[Word]]:
    """Divide a segment at pauses, and a long one into parts of about the same length."""
    length = words[-1].end - words[0].start if words else 0.0
    longest = length / max(1, math.ceil(length / _PART_SECONDS))
    first = 0
    for index in range(1, len(words)):
        pause = words[index].start - words[index - 1].end
        if pause > _PAUSE_SECONDS or words[index].start - words[first].start >= longest:
            yield words[first:index]
            first = index
    if words:
        yield words[first:]


def _voice(sound: Sound) -> float:
    """Compute the mean probability of voice."""
    padded = np.pad(sound, (0, -len(sound) % 512 or 512))
    return float(np.mean(get_vad_model()(padded)))


def windows(timed: Iterable[tuple[float | None, Sound]]) -> Iterator[tuple[float, Sound]]:
    """Join pieces of sound with their times in seconds to windows that are cut where it is quiet."""
    pieces: list[Sound] = []
    begins, samples = 0.0, 0
    for time, piece in timed:
        gap = 0.0 if time is None else time - begins - samples / _RATE
        if samples and gap > _CUT_SECONDS:
            yield begins, np.concatenate(pieces)
            pieces, samples = [], 0
        if not samples:
            begins = time or begins
        elif gap > _GAP_SECONDS:
            pieces.append(np.zeros(int(gap * _RATE), np.float32))
            samples += len(pieces[-1])
        pieces.append(piece)
        samples += len(piece)
        if samples >= _WINDOW_SECONDS * _RATE:
            sound = np.concatenate(pieces)
            tail = sound[len(sound) - _CUT_SECONDS * _RATE :].reshape(-1, _QUIET_SAMPLES)
            cut = len(sound) - tail.size + int(np.argmin(np.square(tail).mean(1))) * _QUIET_SAMPLES
            yield begins, sound[:cut]
            pieces, samples = [sound[cut:]], len(sound) - cut
            begins += cut / _RATE
    if samples:
        yield begins, np.concatenate(pieces)


def _pieces(container: InputContainer, stream: AudioStream) -> Iterator[tuple[float | None, Sound]]:
    """Decode the sound, and yield its pieces with their times, skipping damaged packets."""
    resampler = AudioResampler("flt", "mono", _RATE)
    for frame in intact_frames(container, stream):
        time = frame.time
        try:
            resampled = resampler.resample(frame)
        except ValueError:  # the sound changes its rate or layout
            resampler = AudioResampler("flt", "mono", _RATE)
            resampled = resampler.resample(frame)
        for mono in resampled:
            sound = mono.to_ndarray()[0]
            for first in range(0, len(sound), _PIECE_SAMPLES):
                yield time, sound[first : first + _PIECE_SAMPLES]
                time = None
    for mono in resampler.resample(None):
        yield None, mono.to_ndarray()[0]
