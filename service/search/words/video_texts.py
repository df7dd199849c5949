"""Collect a video's searchable texts: captions, metadata values and file name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from posixpath import splitext
from typing import Any

from index.words.word_index import TextKind, VideoText
from media.sources.media_source import file_name, is_source_uri

MAX_TEXT_CHARS = 2000  # per text, like a caption
MAX_VALUES = 256  # metadata values per video
_LOWER, _UPPER = "a-z\u00df-\u00f6\u00f8-\u00ff0-9", "A-Z\u00c0-\u00d6\u00d8-\u00de"
_CAMEL_CASE = re.compile(
    f"(?<=[{_LOWER}])(?=[{_UPPER}])|(?<=[{_UPPER}])(?=[{_UPPER}][a-z\u00df-\u00f6\u00f8-\u00ff])"
)


def texts_of(uri: str, captions: Sequence[str], metadata: Mapping[str, Any]) -> list[VideoText]:
    """Collect the texts of a video.

    Captions come first, then metadata values: strings and numbers, also those in lists and in objects, whose field is
    ``outer.inner``. Booleans are skipped. The file name loses its extension; a camel-case name is also added as
    separate words.

    Args:
        metadata: User-supplied metadata.
    """
    texts = [VideoText(TextKind.CAPTION, caption[:MAX_TEXT_CHARS]) for caption in captions]
    if metadata:  # most videos have none, and libraries are large
        texts += islice(_values(metadata), MAX_VALUES)
    texts += [VideoText(TextKind.NAME, name[:MAX_TEXT_CHARS]) for name in _names(uri)]
    return [text for text in texts if text.text.strip()]


def _values(metadata: Mapping[str, Any]) -> Iterator[VideoText]:
    # A stack instead of recursion: metadata may be nested as deep as its size allows.
    stack: list[tuple[str, Any]] = list(metadata.items())[::-1]
    while stack:
        field, value = stack.pop()
        if isinstance(value, Mapping):
            stack.extend((f"{field}.{name}", inner) for name, inner in list(value.items())[::-1])
        elif isinstance(value, list):
            stack.extend((field, inner) for inner in reversed(value))
        elif isinstance(value, str):
            yield VideoText(TextKind.METADATA, value[:MAX_TEXT_CHARS], field)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            shown = int(value) if isinstance(value, float) and value.is_integer() else value
            yield VideoText(TextKind.METADATA, str(shown), field)


def _names(uri: str) -> list[str]:
    file = file_name(uri) if is_source_uri(uri) else uri.rpartition("/")[2]
    name = splitext(file)[0].replace("_", " ")
    return list(dict.fromkeys([name, _CAMEL_CASE.sub(" ", name)]))
