"""Read transcripts from the output of speech recognition: Whisper, its relatives, and the libraries that run it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from service.tasks.manifests.subtitle_files import TimedText

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
