"""Read what a video file says besides pictures and sound: subtitles, chapters, tags, time and camera of the recording.

Other streams are not decoded, and where the container has an index, not even read.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

import av
from av.container import InputContainer
from av.stream import Disposition

from media.timed_texts import DRAWING, FileTexts, TimedText, clean_text, plain_lines

_TEXT_CODECS = frozenset(("ass", "mov_text", "srt", "ssa", "subrip", "text", "webvtt"))
_WITH_COMMENTS = ("ass", "ssa")
_BRACES = re.compile(r"\{[^{}]*\}")
_MAX_CUES = 20_000
_MAX_CHAPTERS = 1000
_MAX_CHARS = 1_000_000
_MAX_SECONDS = 20.0  # of reading a subtitle stream
_SHORTEST = 1.0  # seconds, for a cue that does not state its end
_TAGS = ("title", "description", "synopsis", "comment", "keywords")
_LOCATIONS = ("location", "iso6709")
_MAX_TAG_CHARS = 2000
_CREATED = ("creationdate", "creation_time", "date")  # the first has a time zone
_FIRST_YEAR = 1980  # containers count from 1904 or 1970, and cameras without a clock stay there
_MAKES, _MODELS = ("make", "manufacturer"), ("model",)
_UNTITLED = re.compile(r"(chapter )?[\W\d_]*", re.IGNORECASE)  # what tools write: "Chapter 2", "02"


def read_file_texts(container: InputContainer, start: float, duration: float) -> FileTexts:
    """Read what a file carries.

    Args:
        container: At its beginning; afterwards, it may be anywhere.
        start: Time of the first frame, in seconds.
        duration: Of the pictures, in seconds; later subtitles are left out.
    """
    tags = _read_tags(container.metadata)
    for stream in container.streams.video[:1]:
        tags = _read_tags(stream.metadata) | tags
    make, model = (next((tags[key] for key in keys if key in tags), "") for keys in (_MAKES, _MODELS))
    place = next((tags[key] for key in _LOCATIONS if key in tags), None)
    camera = model if model.startswith(make) else f"{make} {model}".strip()
    texts = FileTexts(
        chapters=[*_read_chapters(container, start)],
        tags={key: tags[key] for key in _TAGS if key in tags} | ({"location": place} if place else {}),
        created=next(filter(None, (_read_time(tags[key]) for key in _CREATED if key in tags)), None),
        camera=camera or None,
    )
    _read_subtitles(container, start, duration, texts)
    return texts


def _read_tags(metadata: dict[str, str]) -> dict[str, str]:
    """Read tags by their lower-case names without prefixes such as ``com.apple.quicktime.``."""
    tags = {
        key.lower().rpartition(".")[2]: clean_text(value, _MAX_TAG_CHARS) for key, value in metadata.items()
    }
    return {key: value for key, value in tags.items() if value}


def _read_time(text: str) -> str | None:
    try:
        created = datetime.fromisoformat(text)
    except ValueError:
        return None
    return created.isoformat() if created.year >= _FIRST_YEAR else None


def _read_chapters(container: InputContainer, start: float) -> Iterator[TimedText]:
    for chapter in container.chapters()[:_MAX_CHAPTERS]:
        title = clean_text(chapter["metadata"].get("title", ""))
        if not _UNTITLED.fullmatch(title):
            begins, ends = (
                max(0.0, round(chapter[key] * float(chapter["time_base"] or 1) - start, 3))
                for key in ("start", "end")
            )
            yield TimedText(begins, max(begins, ends), title)


def _read_subtitles(container: InputContainer, start: float, duration: float, texts: FileTexts) -> None:
    """Add the cues of the best stream of subtitles: default and not forced, or the first."""
    streams = [stream for stream in container.streams.subtitles if stream.codec_context is not None]
    readable = [stream for stream in streams if stream.codec_context.name in _TEXT_CODECS]
    if len(readable) < len(container.streams.subtitles):
        texts.notes.append("subtitles that are pictures are not read")
    if not readable:
        return
    best = min(
        readable,
        key=lambda stream: (
            bool(stream.disposition & Disposition.forced),
            not stream.disposition & Disposition.default,
        ),
    )
    if best.language and best.language != "und":
        texts.language = clean_text(best.language, 35)
    for stream in container.streams:
        if stream.index != best.index:
            stream.discard = av.stream.Discard.all
    deadline = time.monotonic() + _MAX_SECONDS
    chars, previous = 0, ""
    try:
        for begins, ends, lines in _cues(container.demux(best), start):
            # Scrolling subtitles repeat the last line.
            new = lines[1:] if lines and lines[0] == previous else lines
            previous = lines[-1] if lines else previous
            text = clean_text(" ".join(new))
            if not text or not 0 <= begins <= duration:
                continue
            chars += len(text)
            if len(texts.subtitles) >= _MAX_CUES or chars > _MAX_CHARS or time.monotonic() > deadline:
                texts.notes.append(f"subtitles after {begins:.0f} s are not read")
                break
            texts.subtitles.append(TimedText(begins, ends, text))
    except av.FFmpegError:
        texts.notes.append("the subtitles are damaged")
    texts.subtitles.sort()


def _cues(packets: Iterable[Any], start: float) -> Iterator[tuple[float, float, list[str]]]:
    for packet in packets:
        if packet.pts is None or not packet.size:
            continue
        try:
            decoded = packet.decode()
        except av.FFmpegError:
            continue
        # The library turns every format into fields of SubStation Alpha, of which the text is the last.
        raw = b"\\N".join(line.ass.split(b",", 8)[-1] for line in decoded if line.type == b"ass")
        text = raw.decode("utf-8", "replace")
        if packet.stream.codec_context.name in _WITH_COMMENTS and not DRAWING.search(text):
            text = _BRACES.sub("", text)
        begins = round(float(packet.pts * packet.time_base) - start, 3)
        length = float((packet.duration or 0) * packet.time_base)
        ends = round(begins + length, 3) if length > 0 and math.isfinite(length) else begins + _SHORTEST
        yield begins, ends, plain_lines(text)
