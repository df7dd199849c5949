"""Texts of subtitles in the formats SubRip (``.srt``) and WebVTT (``.vtt``), without their times."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import BinaryIO

from service.tasks.manifests.manifest_lines import read_lines

__all__ = ["read_subtitles"]

_MARKUP = re.compile(r"<[^<>]*>|\{\\[^{}]*\}")
_MAX_CUE_CHARS = 10_000


def read_subtitles(stream: BinaryIO, name: str, encoding: str = "utf-8") -> Iterator[str]:
    """Yield the text of each cue in order, without markup. Headers, notes and styles have no times and are skipped.

    Args:
        stream: Content of the file.
        name: Name of the file in errors.
        encoding: Encoding of the text.

    Raises:
        InvalidInput: a line is too long or cannot be decoded.
    """
    text: str | None = None  # of the current cue; None outside of a cue
    for line in read_lines(stream, name, encoding):
        stripped = line.strip()
        if "-->" in stripped or not stripped:
            if text:
                yield text
            text = "" if stripped else None
        elif text is not None and len(text) < _MAX_CUE_CHARS:
            words = html.unescape(_MARKUP.sub("", stripped[:_MAX_CUE_CHARS])).split()
            text = " ".join(filter(None, (text, *words)))
    if text:
        yield text
