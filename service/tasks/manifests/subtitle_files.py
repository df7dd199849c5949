"""Read transcripts from subtitle files: SubRip (``.srt``) or WebVTT (``.vtt``), told apart by content."""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import BinaryIO

from webvtt import srt, vtt
from webvtt.errors import MalformedFileError
from webvtt.models import Caption, Timestamp

from cinestrata_schemas.videos import MAX_CUES, Cue
from service.core import request_limits
from service.core.errors import InvalidInput
from service.tasks.manifests.manifest_lines import read_lines

_MAX_CHARS = 8 * 1024**2  # per file; parsed, it takes some 20 times as much memory
_SHORTEST = 1.0  # seconds, for a cue that does not end after its start
_SPEAKER = re.compile(r"<v(?:\.[^\s<>]*)?[ \t]+([^\s<>][^<>]*)>")
_POSITION = re.compile(r"\{\\[^{}]*\}")  # and other SubStation Alpha styles, such as {\an8}


def read_subtitles(stream: BinaryIO, name: str, encoding: str = "utf-8") -> Iterator[Cue]:
    """Read the cues in a subtitle file.

    Texts have no markup, and begin with the speaker's name if the file gives it. A line that repeats the end of the
    previous cue, as in scrolling subtitles, is dropped. Cues with invalid times are skipped.

    Args:
        stream: Content of the file.
        name: File name for errors.

    Raises:
        InvalidInput: The file is not a subtitle file, is too large, or cannot be decoded.
    """
    last = ""
    cues = chars = 0
    for caption in _parse(_read_lines(stream, name, encoding), name):
        lines = _plain_lines(caption)
        new = lines[1:] if lines and lines[0] == last else lines
        last = lines[-1] if lines else last
        if not new:
            continue
        text = " ".join(new)[: request_limits.MAX_CUE_CHARS]
        cues, chars = cues + 1, chars + len(text)
        if cues > MAX_CUES or chars > request_limits.MAX_TRANSCRIPT_CHARS:
            raise InvalidInput.at(
                name,
                f"It has more than {MAX_CUES} texts, or {request_limits.MAX_TRANSCRIPT_CHARS} characters.",
                "Keep the subtitles of one video.",
            )
        start, end = (
            Timestamp.from_string(time).in_milliseconds() / 1000 for time in (caption.start, caption.end)
        )
        yield Cue(start=start, end=end if end > start else start + _SHORTEST, text=text)


def _read_lines(stream: BinaryIO, name: str, encoding: str) -> list[str]:
    lines: list[str] = []
    remaining = _MAX_CHARS
    for line in read_lines(stream, name, encoding):
        remaining -= len(line)
        if remaining < 0:
            raise InvalidInput.at(
                name, f"The file has more than {_MAX_CHARS} characters.", "Keep the subtitles of one video."
            )
        if lines or line.strip():
            lines.append(line.rstrip("\r\n"))
    return lines


def _parse(lines: Sequence[str], name: str) -> Sequence[Caption]:
    if not lines:
        return ()
    try:
        return vtt.parse(lines).captions if lines[0].startswith("WEBVTT") else srt.parse(lines)
    except MalformedFileError:
        raise InvalidInput.at(
            name, "The file is neither SubRip nor WebVTT.", "Convert it to WebVTT, or remove it."
        ) from None


def _plain_lines(caption: Caption) -> list[str]:
    """Split a cue into lines without markup, but with speaker names."""
    caption.text = _SPEAKER.sub(r"\1: ", caption.raw_text)
    lines = (_plain_text(line) for line in caption.text.split("\n"))
    return [line for line in lines if line]


def _plain_text(line: str) -> str:
    text = _POSITION.sub("", line)
    with suppress(ValueError):  # a character reference with thousands of digits
        text = html.unescape(text)
    return " ".join(
        "".join(c for c in text if c.isspace() or unicodedata.category(c) not in ("Cc", "Cs")).split()
    )
