"""Measure what is heard and read in recordings whose words are known, beside the libraries called alone.

    python -m benchmarks.reading.reading_figures FOLDER [--to reading]

Each line of ``FOLDER/manifest.jsonl`` is a recording, ``{"kind": …, "parts": [[FILE, WORDS], …]}``: sounds or pictures
that follow each other in one clip, and what they say, line by line. Kinds of sounds are ``speech``, ``unclear``
(English that the model does not understand), ``foreign`` and ``quiet`` (silence, noise, music, applause); of pictures
``pictures``, each shown for three seconds, and ``screen`` (animated recordings of screens). ``--to`` replaces the rows
of ``benchmarks/results/NAME.json``:

- the share of words that are wrong in a transcript, by edit distance, or that are not read in a picture, also for the
  library alone, with the same model and parameters, on the same file, or on the frames that differ from the one before;
- CPU time over that of the library alone, and seconds of video read in one second;
- up to three words of each line in a part of at most twelve seconds, searched in a library of all clips, served by
  ``cinestrata up``: whether their clip comes first, also with a word added that is in no clip, and plays from within
  two seconds of the words.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
from faster_whisper import decode_audio
from PIL import Image, ImageSequence

from benchmarks.clips.caption_tfidf import caption_words
from benchmarks.ingest.embedded_service import (
    create,
    embedded_service,
    process_memory,
    processor_seconds,
    wait_ready,
)
from benchmarks.queries.query_kinds import is_content_word
from benchmarks.reporting.publish_queries import format_file
from benchmarks.reporting.render_results import RESULTS, load
from cinestrata_schemas.choice_types import TextSource
from media.reading import VideoReader
from media.reading.screen import ScreenReader
from media.reading.speech import DECODING, SpeechReader
from media.video_limits import sample_times

_RATE, _PAUSE = 16000, 1.0  # samples per second; seconds between sounds
_SIZE, _FPS, _SHOWN = (1280, 720), 10, 3.0  # of pictures; seconds of a still one
_QUERY_WORDS, _QUERY_SECONDS, _NEAR_SECONDS = 3, 12.0, 2.0
_UNKNOWN_WORD = "giraffe"  # in none of the recordings

Pixels = npt.NDArray[np.uint8]
Sound = npt.NDArray[np.float32]


@dataclass
class Recording:
    """A clip, its words, and what was read in it."""

    kind: str
    clip: Path
    parts: list[tuple[float, float, str]] = field(default_factory=list)  # start and end in seconds, and words
    frames: list[Pixels] = field(default_factory=list)  # BGR, that the reader sees, without repeated ones
    note: str | None = None  # of the reader
    # Words, those that were read wrongly by the reader and by the library alone, and cues, and then, in seconds, the
    # CPU time of both, the reader's time, and the clip's.
    figures: tuple[float, ...] = ()
    answers: list[list[bool]] = field(default_factory=list)  # clip first, with an unknown word, right second

    @property
    def is_sound(self) -> bool:
        return self.kind not in ("pictures", "screen")

    def count_errors(self, text: str) -> int:
        """Count the words that were heard wrongly, or that were not read in the picture."""
        words, read = self.words, caption_words(text)
        return edit_distance(words, read) if self.is_sound else (Counter(words) - Counter(read)).total()

    @property
    def words(self) -> list[str]:
        return caption_words("\n".join(words for *_, words in self.parts))


def write_recordings(folder: Path, clips: Path) -> Iterator[Recording]:
    """Write a clip for each line of a folder's manifest."""
    for number, line in enumerate((folder / "manifest.jsonl").read_text(encoding="utf-8").splitlines()):
        content = json.loads(line)
        recording = Recording(content["kind"], clips / f"{number:03}.mkv")
        pictures: list[Pixels] = []
        sounds: list[Sound] = [np.zeros(1, np.float32)]
        for file, words in content["parts"]:
            start = sum(map(len, sounds)) / _RATE + len(pictures) / _FPS
            if recording.is_sound:
                sounds += [decode_audio(str(folder / file), _RATE), np.zeros(int(_PAUSE * _RATE), np.float32)]
                end = start + len(sounds[-2]) / _RATE
            else:
                pictures += _repeated_pictures(folder / file)
                end = len(pictures) / _FPS
            recording.parts.append((start, end, words))
        for index in [int(_FPS * moment) for moment in sample_times(end, math.ceil(end))] if pictures else ():
            frame = np.ascontiguousarray(pictures[index][:, :, ::-1])
            if not recording.frames or (frame != recording.frames[-1]).any():
                recording.frames.append(frame)
        pictures = pictures or [np.zeros((64, 64, 3), np.uint8)] * math.ceil(_FPS * end)
        _encode(recording.clip, pictures, np.concatenate(sounds))
        yield recording


def _repeated_pictures(path: Path) -> list[Pixels]:
    pictures: list[Pixels] = []
    seconds = 0.0
    for image in ImageSequence.Iterator(Image.open(path)):
        canvas, shown = Image.new("RGB", _SIZE), image.convert("RGB")
        shown.thumbnail(_SIZE)
        canvas.paste(shown)
        seconds += image.info["duration"] / 1000 if image.info.get("duration") else _SHOWN
        pictures += [np.asarray(canvas)] * (round(seconds * _FPS) - len(pictures))
    return pictures


def _encode(path: Path, pictures: Sequence[Pixels], sound: Sound) -> None:
    with av.open(str(path), "w") as container:
        video: Any = container.add_stream("libx264", rate=_FPS)
        video.height, video.width = pictures[0].shape[:2]
        video.pix_fmt = "yuv420p"
        audio: Any = container.add_stream("pcm_s16le", rate=_RATE, layout="mono")
        for picture in pictures:
            container.mux(video.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(video.encode(None))
        samples = (np.clip(sound, -1, 1) * 32767).astype(np.int16)[None]
        frame = av.AudioFrame.from_ndarray(samples, "s16", "mono")
        frame.sample_rate, frame.pts, frame.time_base = _RATE, 0, Fraction(1, _RATE)
        container.mux(audio.encode(frame))
        container.mux(audio.encode(None))


def read_all(recordings: Sequence[Recording]) -> int:
    """Read recordings of a kind in one child, and by the library alone; returns the child's peak memory in bytes."""
    hear, see = SpeechReader(None).model.transcribe, ScreenReader().ocr
    with VideoReader() as reader:
        source: TextSource = "speech" if recordings[0].is_sound else "screen"
        reader.read(recordings[0].clip, [source])  # loads the models
        pid = reader.child_pid or 0
        for recording in recordings:
            used, began = processor_seconds(pid), time.perf_counter()
            reading = reader.read(recording.clip, [source])[source]
            taken, used = time.perf_counter() - began, processor_seconds(pid) - used
            began = time.process_time()
            if recording.is_sound:
                lines = [part.text for part in hear(str(recording.clip), **DECODING)[0]]
            else:
                lines = [line for frame in recording.frames for line in see(frame, use_cls=False).txts or ()]
            alone_used = time.process_time() - began
            recording.note = reading.note
            texts = [text.text for text in reading.texts]
            wrong = [recording.count_errors(" ".join(read)) for read in (texts, lines)]
            counts = len(recording.words), *wrong, len(texts)
            recording.figures = *counts, used, alone_used, taken, recording.parts[-1][1]
        return process_memory(pid).peak


def edit_distance(one: Sequence[str], other: Sequence[str]) -> int:
    """Count the substitutions, insertions and deletions between two sequences (Levenshtein)."""
    row = list(range(len(other) + 1))
    for count, word in enumerate(one, 1):
        before, row = row, [count]
        for place, read in enumerate(other):
            row.append(min(row[-1] + 1, before[place + 1] + 1, before[place] + (word != read)))
    return row[-1]


def find_all(recordings: Sequence[Recording], folder: Path) -> None:
    """Search the known words in a library of the clips, after its videos are read."""
    settings = {"CINESTRATA_MEDIA_ROOT": str(recordings[0].clip.parent), "CINESTRATA_LOG_LEVEL": "WARNING"}
    with embedded_service(folder, settings) as api:
        videos = [{"uri": str(recording.clip)} for recording in recordings]
        domain = create(api, "/tasks", {"name": "recordings", "videos": videos, "read": "speech,screen"})
        wait_ready(api, domain)
        while api.get(f"/tasks/{domain}/reading").raise_for_status().json()["remaining"]:
            time.sleep(2)
        for recording in recordings:
            for query, start, end in _queries(recording):
                firsts = [
                    api.get("/search", params={"q": text, "k": 1}).raise_for_status().json()["results"][0]
                    for text in (query, f"{query} {_UNKNOWN_WORD}")
                ]
                is_first = [first["uri"].endswith(recording.clip.name) for first in firsts]
                plays = re.search(r"#t=([\d.]+)", firsts[0]["stream_url"]) if is_first[0] else None
                is_near = plays and start - _NEAR_SECONDS <= float(plays[1]) <= end + _NEAR_SECONDS
                recording.answers.append([*is_first, bool(is_near)])


def _queries(recording: Recording) -> Iterator[tuple[str, float, float]]:
    """Yield words in a row, and the seconds from and until which they may start."""
    for start, end, text in recording.parts if recording.kind != "unclear" else ():
        for words in map(caption_words, text.splitlines() if end - start <= _QUERY_SECONDS else ()):
            place = next((place for place, word in enumerate(words) if is_content_word(word)), None)
            if place is not None:
                said = start + (end - start) * place / len(words)
                times = (said, said) if recording.is_sound else (start, end)
                yield " ".join(words[place : place + _QUERY_WORDS]), *times


def row_of(kind: str, recordings: Sequence[Recording]) -> list[Any]:
    """Make the table's row of a kind's recordings."""
    words, wrong, alone_wrong, cues, used, alone_used, taken, seconds = (
        sum(column) for column in zip(*(recording.figures for recording in recordings), strict=True)
    )
    answers = [answer for recording in recordings for answer in recording.answers]
    notes = Counter(recording.note for recording in recordings if recording.note)
    return [
        f"{kind}, {len(recordings)} clips, {seconds:,.0f} s",
        *((words, 100 * wrong / words, 100 * alone_wrong / words) if words else (None,) * 3),
        cues,
        f"{used / alone_used:.2f}" if words else None,
        seconds / taken,
        *([f"{sum(right)} of {len(answers)}" for right in zip(*answers, strict=True)] or (None,) * 3),
        "; ".join(f"{count}: {note}" for note, count in notes.items()) or None,
    ]


def main() -> None:
    """Measure, print the rows, and put them into a file of ``benchmarks/results``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reading.reading_figures")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--to", metavar="NAME", help="name of a file in benchmarks/results")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cinestrata-reading-") as temporary:
        clips = Path(temporary, "clips")
        clips.mkdir()
        recordings = list(write_recordings(options.folder, clips))
        kinds = {one.kind: [each for each in recordings if each.kind == one.kind] for one in recordings}
        peak = max(map(read_all, kinds.values()))
        find_all(recordings, Path(temporary, "library"))
    content: dict[str, Any] = {"rows": [row_of(kind, group) for kind, group in kinds.items()]}
    content["interval"] = f"the child used at most {peak / 2**20:.0f} MiB"
    print(json.dumps(content, indent=1, ensure_ascii=False))
    if options.to:
        (RESULTS / f"{options.to}.json").write_text(format_file(load(options.to) | content), encoding="utf-8")


if __name__ == "__main__":
    main()
