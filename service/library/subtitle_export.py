"""Write a video's timed texts as subtitles: SubRip or WebVTT."""

from __future__ import annotations

from collections.abc import Collection

from cinestrata_schemas.choice_types import SubtitleFormat, TextSource
from service.library.library_listing import get_video


def write_subtitles(video_id: str, form: SubtitleFormat, sources: Collection[TextSource]) -> str:
    """Write the texts of some sources, in order of time; raise NotFound. Markup is written as text."""
    mark, header = (",", "") if form == "srt" else (".", "WEBVTT\n\n")
    cues = [cue for cue in get_video(video_id).transcript if cue.source in sources]
    blocks = [
        f"{number}\n{_clock(cue.start, mark)} --> {_clock(cue.end, mark)}\n{_escape(cue.text, form)}\n\n"
        for number, cue in enumerate(cues, 1)
    ]
    return header + "".join(blocks)


def _clock(seconds: float, mark: str) -> str:
    millis = round(seconds * 1000)
    hours, minutes, rest = millis // 3_600_000, millis // 60_000 % 60, millis % 60_000
    return f"{hours:02}:{minutes:02}:{rest // 1000:02}{mark}{rest % 1000:03}"


def _escape(text: str, form: SubtitleFormat) -> str:
    if form == "srt":  # which has no escapes: the arrow alone would begin another cue
        return text.replace("-->", "->")
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
