"""Texts with the time at which they are said or shown, and the texts that a video file carries."""

from __future__ import annotations

import html
import re
import unicodedata
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple, get_args

from cinestrata_schemas.choice_types import TextSource

SOURCES: tuple[TextSource, ...] = get_args(TextSource)  # in order of precedence
MAX_TEXT_CHARS = 500
# Marks and overrides of the direction of text, which could make a line read differently from what it says.
_BIDI = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
DRAWING = re.compile(r"\{[^{}]*\\p[1-9]")  # of SubStation Alpha
_SPEAKER = re.compile(r"<v(?:\.[^\s<>]*)?[ \t]+([^\s<>][^<>]*)>")
_TAG = re.compile(r"<[^<>]*>")
_STYLE = re.compile(r"\{\\[^{}]*\}")  # of SubStation Alpha, such as {\an8}
_BREAK = re.compile(r"\\[Nn]|<br ?/?>")


class TimedText(NamedTuple):
    """One line of text, cleaned and at most ``MAX_TEXT_CHARS`` long, with its time in seconds since the first frame."""

    start: float
    end: float
    text: str


@dataclass
class FileTexts:
    """The texts and facts that a video file carries besides pictures and sound."""

    subtitles: list[TimedText] = field(default_factory=list)  # the best text subtitle stream
    chapters: list[TimedText] = field(default_factory=list)
    tags: dict[str, str] = field(default_factory=dict)  # title, location and the like, by lower-case name
    created: str | None = None  # ISO 8601 time
    camera: str | None = None  # maker and model
    language: str | None = None  # of the subtitles, as the file states it
    notes: list[str] = field(default_factory=list)  # what is in the file but not read

    def __post_init__(self) -> None:
        # The decoder's response is JSON, which turns tuples into lists.
        self.subtitles = [TimedText(*fields) for fields in self.subtitles]
        self.chapters = [TimedText(*fields) for fields in self.chapters]


def clean_text(text: str, limit: int = MAX_TEXT_CHARS) -> str:
    """Return a text as one line without control and bidi characters, shortened to a limit of characters."""
    return _without_controls(_BIDI.sub("", text[: 8 * limit]))[:limit].rstrip()


def plain_lines(text: str) -> list[str]:
    """Split a cue of subtitles into lines without markup, but with speaker names."""
    if DRAWING.search(text):  # its text is coordinates
        return []
    text = _TAG.sub("", _BREAK.sub("\n", _SPEAKER.sub(r"\1: ", _STYLE.sub("", text))))
    return [*filter(None, map(_plain_text, text.replace("\\h", " ").split("\n")))]


def _plain_text(line: str) -> str:
    with suppress(ValueError):  # a character reference with thousands of digits
        line = html.unescape(line)
    return _without_controls(line)


def _without_controls(text: str) -> str:
    printable = "".join(c for c in text if c.isspace() or unicodedata.category(c) not in ("Cc", "Cs"))
    return " ".join(printable.split())
