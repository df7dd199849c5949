"""Texts with the time at which they are said or shown, and the texts that a video file carries."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field
from typing import NamedTuple, get_args

from cinestrata_schemas.choice_types import TextSource

SOURCES: tuple[TextSource, ...] = get_args(TextSource)  # in order of precedence
MAX_TEXT_CHARS = 500
# Marks and overrides of the direction of text, which could make a line read differently from what it says.
_BIDI = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


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
    tags: dict[str, str] = field(default_factory=dict)  # title, description and the like, by lower-case name
    created: str | None = None  # ISO 8601 time
    camera: str | None = None  # maker and model
    language: str | None = None  # of the subtitles, as the file states it
    notes: list[str] = field(default_factory=list)  # what is in the file but not read

    def __post_init__(self) -> None:
        # JSON has turned them into lists.
        self.subtitles = [TimedText(*each) for each in self.subtitles]
        self.chapters = [TimedText(*each) for each in self.chapters]


def clean_text(text: str, limit: int = MAX_TEXT_CHARS) -> str:
    """Return a text as one line without control and bidi characters, shortened to a limit of characters."""
    text = _BIDI.sub("", text[: 8 * limit])
    kept = "".join(c for c in text if c.isspace() or unicodedata.category(c) not in ("Cc", "Cs"))
    return " ".join(kept.split())[:limit].rstrip()
