"""Read what is written in a video's picture: RapidOCR on frames that have changed, and lines that stay as one text.

The models are the packaged ones; they are named by path, so that none is ever downloaded.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image
from rapidocr import RapidOCR
from rapidocr.main import RapidOCRError

from media.errors import MediaError
from media.pyav_decoding import OpenVideo
from media.reading.reader_packages import OCR, describe_model
from media.reading.video_reader import SourceReading
from media.timed_texts import MAX_TEXT_CHARS, TimedText, clean_text
from media.video_limits import sample_times

_FRAMES = 450  # per video, as long as the period stays within these limits
_MIN_PERIOD, _MAX_PERIOD = 1.0, 4.0  # seconds between frames
_MAX_SIDE = 1920  # pixels of a frame
_DETECTION = (480, 960)  # limits of the longest side in which lines are looked for: half of the frame's
_CELL = 10  # pixels; frames are compared by the means of such squares
_PATCH = (64, 8)  # size to which lines are shrunk to compare them
_MAX_DIFFERENCE = 12  # of the same picture that is encoded twice
_MAX_LINES = 80  # in a frame, largest first
_MIN_HEIGHT = 7  # pixels
_MIN_SCORE, _MIN_SHORT_SCORE, _SHORT = 0.85, 0.93, 4  # confidence of a line, and of one with few characters
_SAME_RATIO = 0.8  # of the characters of two readings of a line
_MAX_GAP = 10.0  # seconds for which a line may be covered
_STANDING = 5  # times after which a text that comes back counts once
_PLACE = 40  # pixels within which a counter stays
_PACE = 2.0  # CPU seconds per second of video, after the first minute
_MAX_CUES = 5000


class _Line(NamedTuple):
    text: str  # empty if it is not credible
    score: float
    box: tuple[int, int, int, int]  # left, top, right, bottom
    patch: npt.NDArray[np.int16]

    def is_near(self, other: _Line) -> bool:
        """Whether two lines of one video are in the same place."""
        height = max(self.box[3] - self.box[1], other.box[3] - other.box[1])
        overlaps = self.box[0] < other.box[2] and other.box[0] < self.box[2]
        return overlaps and abs(self.box[1] + self.box[3] - other.box[1] - other.box[3]) < height


@dataclass
class _Track:
    """A line that is on display for a while."""

    line: _Line
    key: str
    start: float
    end: float


class ScreenReader:
    """The loaded models of text in pictures."""

    def __init__(self) -> None:
        detection, recognition = (str(Path(OCR.locate() or "", file)) for file, _ in OCR.digests)
        self.ocr: Any = RapidOCR(
            params={
                "Global.log_level": "critical",
                "Det.model_path": detection,
                "Det.limit_type": "max",
                "Rec.model_path": recognition,
                "Rec.rec_batch_num": 1,  # a batch is padded to its longest line, which takes time and memory
                "EngineConfig.onnxruntime.intra_op_num_threads": 1,
                "EngineConfig.onnxruntime.inter_op_num_threads": 1,
            }
        )
        self.description = describe_model(OCR, "PP-OCRv6 small")

    def read(self, video: OpenVideo, progress: Callable[[], None]) -> SourceReading:
        """Read the text in a video; ``progress`` is called at each frame."""
        duration = video.extent.duration
        period = min(max(duration / _FRAMES, _MIN_PERIOD), _MAX_PERIOD)
        times = sample_times(duration, max(1, math.ceil(duration / period)))
        period = duration / len(times)
        tracks: list[_Track] = []
        active: list[_Track] = []
        lines: list[_Line] = []
        shown: Image.Image | None = None
        cells: npt.NDArray[np.int16] | None = None
        budget = time.process_time() + 60 + _PACE * duration
        note = None
        try:
            for moment, picture in zip(times, video.pictures(times), strict=True):
                progress()
                start, end = moment - period / 2, moment + period / 2
                if picture is not shown:
                    shown, previous = picture, cells
                    size = (max(1, picture.width // _CELL), max(1, picture.height // _CELL))
                    cells = _shrink(picture, size)
                    if previous is None or _differs(previous, cells):
                        lines = self._read_lines(picture, lines)
                active = [track for track in active if start - track.end <= _MAX_GAP]
                for line in lines:
                    if line.text:
                        _extend(active, tracks, line, start, end)
                if time.process_time() > budget or len(tracks) > _MAX_CUES:
                    note = f"only the first {end:.0f} s are read, since there is so much text"
                    break
        except MediaError as error:
            note = error.reason
        return SourceReading(_join(_count_once(tracks)), self.description, note)

    def _read_lines(self, picture: Image.Image, previous: Iterable[_Line]) -> list[_Line]:
        """Read the lines of a picture; of those that have not changed, the text is known."""
        if max(picture.size) > _MAX_SIDE:
            picture = picture.copy()
            picture.thumbnail((_MAX_SIDE, _MAX_SIDE))
        pixels = np.ascontiguousarray(np.asarray(picture)[:, :, ::-1])  # blue, green, red
        detector = self.ocr._load_det_model()
        detector.limit_side_len = int(np.clip(max(picture.size) / 2, *_DETECTION))
        try:
            crops, detected = self.ocr.detect_and_crop(pixels, {})
        except RapidOCRError:  # there is no text
            return []
        lines: list[_Line] = []
        unread: list[tuple[_Line, Any]] = []
        candidates = zip(crops, detected.boxes, strict=True)
        for crop, corners in sorted(candidates, key=lambda pair: -min(pair[0].shape[:2]))[:_MAX_LINES]:
            (left, top), (right, bottom) = corners.min(0), corners.max(0)
            patch = _shrink(Image.fromarray(crop), _PATCH)
            line = _Line("", 0.0, (int(left), int(top), int(right), int(bottom)), patch)
            if min(crop.shape[:2]) < _MIN_HEIGHT:
                continue
            same = [old for old in previous if old.is_near(line) and not _differs(old.patch, patch)]
            if same:
                lines.append(same[0])
            else:
                unread.append((line, crop))
        if unread:
            read = self.ocr.recognize_txt([crop for _, crop in unread])
            for (line, _), text, score in zip(unread, read.txts, read.scores, strict=True):
                lines.append(line._replace(text=_credible(text, score), score=float(score)))
        return sorted(lines, key=lambda line: (line.box[1], line.box[0]))


def _shrink(image: Image.Image, size: tuple[int, int]) -> npt.NDArray[np.int16]:
    return np.asarray(image.convert("L").resize(size, Image.Resampling.BOX), np.int16)


def _differs(one: npt.NDArray[np.int16], other: npt.NDArray[np.int16]) -> bool:
    return one.shape != other.shape or bool(np.abs(one - other).max() > _MAX_DIFFERENCE)


def _credible(text: str, score: float) -> str:
    """Return a line's text, empty if it may be texture."""
    text = clean_text(text)
    letters = sum(map(str.isalnum, text))
    least = _MIN_SHORT_SCORE if letters < _SHORT else _MIN_SCORE
    return text if letters > 1 and 2 * letters >= len(text.replace(" ", "")) and score >= least else ""


def _key(text: str) -> str:
    return "".join(filter(str.isalnum, text.casefold()))


def _extend(active: list[_Track], tracks: list[_Track], line: _Line, start: float, end: float) -> None:
    """Extend the line on display that this is a reading of, or begin one."""
    key = _key(line.text)
    for track in active:
        if track.key == key or (track.line.is_near(line) and _is_same(track.key, key)):
            track.end = end
            is_better = (len(key), line.score) > (len(track.key), track.line.score)
            if is_better and (not _is_counter(key) or key.startswith(track.key)):  # or a number is typed
                track.line, track.key = line, key
            return
    active.append(_Track(line, key, start, end))
    tracks.append(active[-1])


def _is_same(one: str, other: str) -> bool:
    """Whether two readings in one place are of one line: a counter, a line that is typed, or a reading with errors."""
    if _is_counter(one) and _is_counter(other):
        return True
    if one.startswith(other) or other.startswith(one):
        return True
    digits = ["".join(filter(str.isdigit, key)) for key in (one, other)]
    return digits[0] == digits[1] and SequenceMatcher(None, one, other).ratio() >= _SAME_RATIO


def _is_counter(key: str) -> bool:
    return 2 * sum(map(str.isdigit, key)) >= len(key)


def _count_once(tracks: Iterable[_Track]) -> list[_Track]:
    """Join the tracks of a text that comes back again and again, such as a logo, and of one whose digits change."""
    groups: dict[tuple[str, ...], list[_Track]] = defaultdict(list)
    for track in tracks:
        letters = "".join(c for c in track.key if not c.isdigit())
        left, top, *_ = track.line.box
        place = (str(left // _PLACE), str(top // _PLACE)) if letters != track.key else ()
        groups[letters, *place].append(track)
    for group in groups.values():
        if len(group) >= _STANDING:
            group[0].end = max(track.end for track in group)
            del group[1:]
    return [track for group in groups.values() for track in group]


def _join(tracks: Iterable[_Track]) -> list[TimedText]:
    """Join the lines that appear and disappear together to one text, as far as they fit."""
    texts: list[TimedText] = []
    for track in sorted(tracks, key=lambda each: (each.start, each.end, each.line.box[1], each.line.box[0])):
        start, end, text = max(0.0, round(track.start, 2)), round(track.end, 2), track.line.text
        last = texts[-1] if texts else None
        if last and last[:2] == (start, end) and len(last.text) + len(text) + 3 <= MAX_TEXT_CHARS:
            texts[-1] = last._replace(text=f"{last.text} · {text}")
        else:
            texts.append(TimedText(start, end, text))
    return texts
