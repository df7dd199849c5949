"""Read transcripts from subtitle files: SubRip, WebVTT, SubStation Alpha, TTML or MicroDVD, told apart by content.

SubRip and WebVTT are read as players do, whatever their numbers, empty lines and decimal marks. pysubs2 reads the other
formats; its SubRip reader takes the times within YouTube's lines for those of cues.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import dropwhile, takewhile
from typing import Any

from pysubs2 import SSAFile
from pysubs2.exceptions import UnknownFPSError

from cinestrata_schemas.videos import MAX_CUES, Cue
from media.timed_texts import DRAWING, plain_lines
from service.core import request_limits
from service.core.errors import InvalidInput
from service.tasks.manifests.text_files import check_line_number

TimedText = tuple[float | None, float | None, str]  # start and end in seconds, and lines

_INVALID: TimedText = (None, None, "")
_SHORTEST = 1.0  # seconds, for a cue that does not end after its start
_MAX_TIME = 2**53
# pysubs2 takes quadratic time in the length of a line, and in that of a paragraph in TTML.
_MAX_LINE_CHARS = request_limits.MAX_CUE_CHARS
_MAX_CHARS = 1024**2
_ARROW = re.compile(r"[-–—]{1,2}>")
_TIME = re.compile(r"(?:(?:(\d{1,10}):)?(\d{1,2}):)?(\d{1,6})(?:\s?[.,:]\s?(\d{1,9}))?(?=\s|$)")
_CUE_NUMBER = re.compile(r"\W*\d+\W*")
_DIALOGUE = re.compile(r"Dialogue:[^,]*(,([^,]*),([^,]*),.*)")
_FRAMES = re.compile(r"\{ *\d+ *\} *\{ *\d+ *\}")


def read_subtitles(text: str, name: str) -> Iterator[Cue]:
    """Read the cues in a subtitle file; raise InvalidInput."""
    lines = [line.strip("\ufeff \t\v\f\0") for line in re.split(r"\r\n?|\n", text)]
    check_line_number(len(lines), name)
    lines = [*dropwhile(lambda line: not line, lines)]
    if not any(lines[1::2]):  # an empty line after each one
        lines = lines[::2]
    if not lines:
        return iter(())
    is_vtt = lines[0].startswith("WEBVTT")
    has_arrows = is_vtt or any(map(_read_times, lines))
    timed = _read_arrows(lines, is_vtt) if has_arrows else _read_with_pysubs2(lines, name)
    return build_cues(timed, name)


def build_cues(timed: Iterable[TimedText], name: str) -> Iterator[Cue]:
    """Build cues from timed texts, except those without a valid start; raise InvalidInput.

    Texts have no markup, and begin with the speaker's name if the file gives it. A line that repeats the end of the
    previous cue, as in scrolling subtitles, is dropped.
    """
    last = ""
    invalid = valid = cues = chars = 0
    for start, end, raw in timed:
        if start is None or not 0 <= start < _MAX_TIME:
            invalid += 1
            continue
        valid += 1
        lines = plain_lines(raw)
        new = lines[1:] if lines and lines[0] == last else lines
        last = lines[-1] if lines else last
        if not new:
            continue
        text = " ".join(new)[: request_limits.MAX_CUE_CHARS]
        cues, chars = cues + 1, chars + len(text)
        if cues > MAX_CUES or chars > request_limits.MAX_TRANSCRIPT_CHARS:
            limits = f"{MAX_CUES} texts, or {request_limits.MAX_TRANSCRIPT_CHARS} characters"
            raise InvalidInput.at(name, f"It has more than {limits}.", "Keep the subtitles of one video.")
        if end is None or not start < end < _MAX_TIME:
            end = start + _SHORTEST
        yield Cue(start=start, end=end, text=text)
    if invalid and not valid:
        problem = f"{invalid} of {invalid} cues has no valid time."
        raise InvalidInput.at(name, problem, "Write times such as 00:00:01,000 --> 00:00:02,000.")


def _read_arrows(lines: Iterable[str], is_vtt: bool) -> Iterator[TimedText]:
    """Read SubRip or WebVTT."""
    times: tuple[float | None, float | None] | None = None
    texts: list[str] = []
    is_note = is_numbered = False
    previous = ""
    for line in lines:
        is_note = is_vtt and bool(line) and (is_note or (not previous and line.startswith("NOTE")))
        previous = line
        next_times = None if is_note else _read_times(line)
        if next_times is None:
            texts += [] if is_note else [line]
            continue
        while texts and not texts[-1]:
            texts.pop()
        has_number = bool(texts) and _CUE_NUMBER.fullmatch(texts[-1]) is not None
        if times is None:
            is_numbered = has_number
        else:
            yield *times, _join(texts[:-1] if is_numbered and has_number else texts, is_vtt)
        times, texts = next_times, []
    if times is not None:
        yield *times, _join(texts, is_vtt)


def _join(texts: Iterable[str], is_vtt: bool) -> str:
    if is_vtt:  # the next cue's identifier, or a comment, follows an empty line
        texts = takewhile(bool, dropwhile(lambda line: not line, texts))
    return "\n".join(texts)


def _read_times(line: str) -> tuple[float | None, float | None] | None:
    """Read a cue's start and end in seconds, None if they are invalid; None for any other line."""
    arrow = _ARROW.search(line[:200])
    if arrow is None:
        return None
    left, right = line[: arrow.start()].strip(), line[arrow.end() :].strip()
    if not re.fullmatch(r"-?\d[\d:.,\s]*", left):
        return None
    start, end = _TIME.fullmatch(left), _TIME.match(right)
    if ":" not in left and (len(arrow[0]) < 3 or end is None or end.end() < len(right)):
        return None  # a text about numbers
    seconds = start and _seconds(start), end and _seconds(end)
    return (None, None) if None in seconds else seconds


def _seconds(time: re.Match[str]) -> float | None:
    hours, minutes, seconds, fraction = time.groups("0")
    if ":" in time[0] and (int(seconds) > 59 or (time[1] and int(minutes) > 59)):
        return None
    return round(int(hours) * 3600 + int(minutes) * 60 + float(f"{seconds}.{fraction}"), 3)


def _read_with_pysubs2(lines: Sequence[str], name: str) -> Iterator[TimedText]:
    """Read SubStation Alpha, TTML or MicroDVD."""
    hint = "Convert it to WebVTT, or remove it."
    text = "\n".join(line[:_MAX_LINE_CHARS] for line in lines)
    if text.startswith("<") and "<tt" in text[:_MAX_LINE_CHARS]:
        kind, text = "ttml", re.sub(r"\sdur=", " duration=", "\n".join(lines))
        text = re.sub(r"(?<=http://www\.w3\.org/)\d{4}/\d\d/ttaf1", "ns/ttml", text)
        if "<!DOCTYPE" in text:  # whose entities may multiply
            raise InvalidInput.at(name, "It has a document type.", hint)
    elif events := [*filter(None, map(_DIALOGUE.match, text.split("\n")))]:
        kind = "ass"
        valid = [each[1] for each in events if all(_TIME.fullmatch(each[n].strip()) for n in (2, 3))]
        text = "\n".join(f"Dialogue: 0{fields}" for fields in valid)
        yield from [_INVALID] * (len(events) - len(valid))
    elif any(map(_FRAMES.match, lines)):
        kind = "microdvd"
    else:
        raise InvalidInput.at(name, "It is in no known subtitle format.", hint)
    if kind != "ass" and len(text) > _MAX_CHARS:
        raise InvalidInput.at(name, f"It has more than {_MAX_CHARS} characters of {kind}.", hint)
    try:
        cues = SSAFile.from_string(text, kind).events
    except UnknownFPSError:
        problem = "It counts frames, but does not say in its first line how many there are per second."
        raise InvalidInput.at(name, problem, hint) from None
    except Exception as error:  # parsers of untrusted text may raise anything
        problem = f"The {kind.upper()} subtitles are damaged ({type(error).__name__})."
        raise InvalidInput.at(name, problem, hint) from None
    cues.sort(key=lambda event: event.start)
    for event in cues:
        is_marked_up = kind != "ttml" and not DRAWING.search(event.text)  # braces are styles or comments
        words = re.sub(r"\{[^{}]*\}", "", event.text) if is_marked_up else event.text
        yield event.start / 1000, event.end / 1000, words


SPEECH_COLUMNS = ["start", "end", "text"]  # the header of Whisper's .tsv; times are milliseconds


def find_segments(document: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Find the segments of speech in a JSON object; None if it is no output of speech recognition."""
    for key in ("segments", "transcription", "chunks"):
        segments = document.get(key)
        if isinstance(segments, list) and all(isinstance(s, dict) and "text" in s for s in segments):
            return segments
    return None


def read_segments(segments: list[dict[str, Any]]) -> Iterator[TimedText]:
    """Read segments, which have ``start`` and ``end``, both as ``timestamp``, or ``offsets`` in milliseconds."""
    for segment in segments:
        offsets = segment.get("offsets")
        times = segment.get("timestamp", [segment.get("start"), segment.get("end")])
        if isinstance(offsets, dict):
            times = [offsets.get("from"), offsets.get("to")]
        if isinstance(times, list) and len(times) == 2:
            start, end = (time if type(time) in (int, float) else None for time in times)
            scale = 1000 if offsets else 1
            if start is not None:
                yield start / scale, end and end / scale, str(segment["text"])


def read_speech_table(text: str) -> Iterator[TimedText]:
    """Read a table of Whisper; other tables have no speech."""
    header, *rows = [line.split("\t", 2) for line in text.splitlines()] or [[]]
    for start, end, words in (row for row in rows if header == SPEECH_COLUMNS and len(row) == 3):
        if start.isdecimal() and end.isdecimal() and len(start + end) < 32:
            yield int(start) / 1000, int(end) / 1000, words
