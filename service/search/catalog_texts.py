"""Read what searches use of videos from the catalog: captions, metadata, names, feedback, timed texts, moments."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from posixpath import splitext
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sqlalchemy import Select, select
from sqlalchemy.orm import Session
from sqlalchemy.sql.elements import KeyedColumnElement

from cinestrata_schemas.uris import is_source_uri
from index.arrays import Ids, batches
from index.words.text_analysis import SEGMENTATION
from index.words.video_columns import VideoFacts
from index.words.word_forms import STEMMING, words_key
from index.words.word_index import TextKind, VideoText
from media.sources.media_source import file_name
from service.catalog.database import id_chunks, session_scope
from service.catalog.tables import Feedback, Moment, Passage, Video
from service.catalog.video_texts import SourcedCues

# Version of all that decides which terms a video has: written with them, and to be changed with the texts below.
ANALYSIS = f"texts/1 {SEGMENTATION} {STEMMING}"
MAX_TEXT_CHARS = 2000  # per text, like a caption
MAX_VALUES = 256  # metadata values per video
_LOWER, _UPPER = "a-z\u00df-\u00f6\u00f8-\u00ff0-9", "A-Z\u00c0-\u00d6\u00d8-\u00de"
_CAMEL_CASE = re.compile(
    f"(?<=[{_LOWER}])(?=[{_UPPER}])|(?<=[{_UPPER}])(?=[{_UPPER}][a-z\u00df-\u00f6\u00f8-\u00ff])"
)
MAX_VOTES = 15  # more do not change the weight
MAX_FEEDBACK_TEXTS = 256  # per video
_KINDS = {"speech": TextKind.SPEECH, "screen": TextKind.SCREEN}
IDS_PER_QUERY = 500
_NO_IDS = np.empty(0, np.int64)
# Table columns, which are faster to read than objects; with the column of the vector ID.
_VIDEOS, _PASSAGES, _FEEDBACK = Video.__table__.c, Passage.__table__.c, Feedback.__table__.c
_MOMENTS = Moment.__table__.c
_TEXTS = (
    select(_VIDEOS.vector_id, _VIDEOS.uri, _VIDEOS.captions, _VIDEOS["metadata"], _VIDEOS.duration),
    _VIDEOS.vector_id,
)
_SPANS = (
    select(_MOMENTS.video_vector_id, _MOMENTS.start_seconds, _MOMENTS.end_seconds).order_by(
        _MOMENTS.vector_id
    ),
    _MOMENTS.video_vector_id,
)
_CUES = (
    select(_PASSAGES.video_vector_id, _PASSAGES.source, _PASSAGES.cues).order_by(
        _PASSAGES.video_vector_id, _PASSAGES.number
    ),
    _PASSAGES.video_vector_id,
)
_VERDICTS = (
    select(_FEEDBACK.video_vector_id, _FEEDBACK.verdict, _FEEDBACK.text).order_by(_FEEDBACK.id),
    _FEEDBACK.video_vector_id,
)


def timed_text(passage: SourcedCues) -> VideoText:
    """Join a passage's cues to one text."""
    kind = _KINDS.get(passage.source, TextKind.TRANSCRIPT)
    return VideoText(kind, " ".join(text for *_, text in passage.cues))


class ReadTexts(NamedTuple):
    """Texts by vector ID, also for videos without any, the passages of each video, and facts; None if it is deleted."""

    texts: dict[int, Sequence[VideoText]]
    passages: dict[int, list[SourcedCues]]
    facts: dict[int, VideoFacts | None]

    @classmethod
    def none(cls, videos: Ids) -> ReadTexts:
        """Create a result in which the videos have no texts."""
        ids = videos.tolist()
        return cls(dict.fromkeys(ids, ()), {video: [] for video in ids}, dict.fromkeys(ids))


@dataclass(frozen=True)
class RelevanceFeedback:
    """The relevance feedback of a library: texts with positive or negative votes for a video; immutable.

    Texts are given by vector ID, each with the key of its words; negative ones have negative votes.
    """

    texts: Mapping[int, Sequence[tuple[str, VideoText]]] = field(default_factory=dict)

    @classmethod
    def from_json(cls, values: Iterable[Sequence[Any]]) -> RelevanceFeedback:
        """Invert :meth:`to_json`."""
        texts: dict[int, list[tuple[str, VideoText]]] = {}
        for video, key, text, votes in values:
            texts.setdefault(video, []).append((key, VideoText(TextKind.CONFIRMED, text, votes=votes)))
        return cls(texts)

    def to_json(self) -> list[Any]:
        """Convert to JSON values."""
        return [[v, key, text.text, text.votes] for v, group in self.texts.items() for key, text in group]

    def replace(self, texts: Mapping[int, Sequence[VideoText]]) -> RelevanceFeedback:
        """Replace the texts of videos. Other kinds of texts among them are ignored."""
        voted = {
            video: [(words_key(text.text) or "", text) for text in group if text.votes]
            for video, group in texts.items()
        }
        changed = {video: group for video, group in voted.items() if group or video in self.texts}
        merged = {**self.texts, **changed}
        return (
            RelevanceFeedback({video: group for video, group in merged.items() if group}) if changed else self
        )

    @cached_property
    def _negative(self) -> dict[str, dict[int, int]]:
        """Votes against each video, by the key of the words, then by vector ID."""
        negative: dict[str, dict[int, int]] = {}
        for video, group in self.texts.items():
            for key, text in group:
                if text.votes < 0:
                    negative.setdefault(key, {})[video] = -text.votes
        return negative

    def negative_videos(self, queries: Sequence[str]) -> tuple[Ids, npt.NDArray[np.int64]]:
        """Find the videos with negative feedback for any of some texts: ascending IDs, and the votes against each."""
        if not self._negative:
            return _NO_IDS, _NO_IDS
        votes: dict[int, int] = {}
        for key in {words_key(query) for query in queries}:
            for video, against in self._negative.get(key or "", {}).items():
                votes[video] = max(against, votes.get(video, 0))
        videos = np.array(sorted(votes), np.int64)
        return videos, np.array([votes[video] for video in videos.tolist()], np.int64)


def read_texts(videos: Ids) -> ReadTexts:
    """Read the texts, transcripts and facts of videos, given by ascending vector ID; raises Unavailable.

    Damaged captions or metadata yield no texts, and neither does a deleted video.
    """
    read = ReadTexts.none(videos)
    for batch in batches(videos, IDS_PER_QUERY):
        ids, texts = batch.tolist(), dict[int, list[VideoText]]()
        with session_scope() as session:
            moments: dict[int, list[tuple[float, float]]] = {}
            for video, start, end in _rows(session, _SPANS, ids):
                moments.setdefault(video, []).append((start, end))
            for video, uri, captions, metadata, duration in _rows(session, _TEXTS, ids):
                texts[video] = texts_of(uri, captions, metadata)
                read.facts[video] = VideoFacts(duration, metadata, moments.get(video, ()))
            for video, voted in read_feedback_texts(session, ids).items():
                texts.get(video, []).extend(voted)
            for video, source, cues in _rows(session, _CUES, ids):
                read.passages[video].append(SourcedCues(source, cues))
        read.texts.update(texts)
    return read


def read_feedback_texts(session: Session, videos: Sequence[int]) -> dict[int, list[VideoText]]:
    """Read the texts with relevance feedback, most votes first; texts with negative feedback have negative votes.

    A text's votes are its positive less its negative feedback. A text without a majority is left out.
    """
    votes: dict[tuple[int, str], int] = {}
    texts: dict[tuple[int, str, str], str] = {}
    for video, verdict, text in _rows(session, _VERDICTS, videos):
        key = words_key(text) or ""  # rows of an earlier version have another one
        votes[video, key] = votes.get((video, key), 0) + (1 if verdict == "right" else -1)
        texts.setdefault((video, key, verdict), text)
    voted: dict[int, list[VideoText]] = {}
    for (video, key), sum_of_votes in sorted(votes.items(), key=lambda entry: -abs(entry[1])):
        listed = voted.setdefault(video, [])
        if sum_of_votes and len(listed) < MAX_FEEDBACK_TEXTS:
            text = texts[video, key, "right" if sum_of_votes > 0 else "wrong"]
            counted = max(-MAX_VOTES, min(sum_of_votes, MAX_VOTES))
            listed.append(VideoText(TextKind.CONFIRMED, text, votes=counted))
    return voted


def read_positive_texts(session: Session, videos: Sequence[int]) -> dict[int, list[str]]:
    """Read the texts of videos with positive feedback, given by vector ID; videos without any are left out."""
    positive_texts: dict[int, list[str]] = {}
    for chunk in id_chunks(sorted(videos)):
        for video, texts in read_feedback_texts(session, chunk).items():
            if positive := [text.text for text in texts if text.votes > 0]:
                positive_texts[video] = positive
    return positive_texts


def _rows(
    session: Session, query: tuple[Select[Any], KeyedColumnElement[Any]], videos: Sequence[int]
) -> Iterable[Any]:
    """Read the rows of videos, at most as many as fit in a query."""
    rows, video = query
    return session.connection().execute(rows.where(video.in_(videos)))


def texts_of(uri: str, captions: Sequence[str], metadata: Mapping[str, Any]) -> list[VideoText]:
    """Collect the texts of a video.

    Captions come first, then metadata values: strings and numbers, also those in lists and in objects, whose field is
    ``outer.inner``. Booleans are skipped. The file name loses its extension; a camel-case name is also added as
    separate words.
    """
    texts = [VideoText(TextKind.CAPTION, caption[:MAX_TEXT_CHARS]) for caption in captions]
    # A stack instead of recursion: metadata may be nested as deep as its size allows.
    stack: list[tuple[str, Any]] = list(metadata.items())[::-1]
    most = len(texts) + MAX_VALUES
    while stack and len(texts) < most:
        field, value = stack.pop()
        if isinstance(value, Mapping):
            stack.extend((f"{field}.{name}", inner) for name, inner in list(value.items())[::-1])
        elif isinstance(value, list):
            stack.extend((field, inner) for inner in reversed(value))
        elif isinstance(value, str):
            texts.append(VideoText(TextKind.METADATA, value[:MAX_TEXT_CHARS], field))
        elif isinstance(value, int | float) and not isinstance(value, bool):
            shown = int(value) if isinstance(value, float) and value.is_integer() else value
            texts.append(VideoText(TextKind.METADATA, str(shown), field))
    file = file_name(uri) if is_source_uri(uri) else uri.rpartition("/")[2]
    name = splitext(file)[0].replace("_", " ")
    names = dict.fromkeys([name, _CAMEL_CASE.sub(" ", name)])
    texts += [VideoText(TextKind.NAME, name[:MAX_TEXT_CHARS]) for name in names]
    return [text for text in texts if text.text.strip()]
