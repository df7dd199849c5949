"""Index the words of all searchable videos in memory.

The index is computed from catalog rows alone, so a killed process or a restored backup cannot make it differ from them.
Videos are added before the first snapshot that contains them is served. Edits show in the next search: each search
compares the last edit's number with the index's, which reads one row.

Transcripts are indexed apart from other texts: two hours of subtitles have as many words as a thousand captions. In a
shared index, they would make caption words look common, and lookups would stop at the first passages.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from posixpath import splitext
from threading import Lock
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
from sqlalchemy import Select, select
from sqlalchemy.orm import Session
from sqlalchemy.sql.elements import KeyedColumnElement

from cinestrata_schemas.uris import is_source_uri
from index.arrays import Ids, batches, find_ids, moment_ids
from index.words.word_evidence import CaptionStatistics
from index.words.word_forms import words_key
from index.words.word_index import TextKind, VideoText, WordIndex
from media.sources.media_source import file_name
from service.catalog.database import CatalogReads, id_chunks, read_last_edit, session_scope
from service.catalog.domain_videos import read_edited_videos
from service.catalog.tables import Feedback, Passage, Video
from service.catalog.video_texts import SourcedCues, with_following
from service.core.errors import Unavailable

MAX_TEXT_CHARS = 2000  # per text, like a caption
MAX_VALUES = 256  # metadata values per video
_LOWER, _UPPER = "a-z\u00df-\u00f6\u00f8-\u00ff0-9", "A-Z\u00c0-\u00d6\u00d8-\u00de"
_CAMEL_CASE = re.compile(
    f"(?<=[{_LOWER}])(?=[{_UPPER}])|(?<=[{_UPPER}])(?=[{_UPPER}][a-z\u00df-\u00f6\u00f8-\u00ff])"
)
MAX_VOTES = 15  # more do not change the weight
MAX_FEEDBACK_TEXTS = 256  # per video
_KINDS = {"speech": TextKind.SPEECH, "screen": TextKind.SCREEN}
_CHUNK = 10_000  # videos whose texts are held in memory at a time
_IDS_PER_QUERY = 500
_MAX_SPARSITY = 16  # table entries per video; more widely scattered IDs are searched instead
_FREE_ENTRIES = 1 << 20
_RECOUNTED = 50  # recount once one in this many library texts has changed
# Table columns, which are faster to read than objects; with the column of the vector ID.
_VIDEOS, _PASSAGES, _FEEDBACK = Video.__table__.c, Passage.__table__.c, Feedback.__table__.c
_TEXTS = select(_VIDEOS.vector_id, _VIDEOS.uri, _VIDEOS.captions, _VIDEOS["metadata"]), _VIDEOS.vector_id
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
_NONE = np.empty(0, np.int64)


@dataclass(frozen=True)
class RelevanceFeedback:
    """The relevance feedback of a library: texts with positive or negative votes for a video; immutable.

    Texts are given by vector ID, each with the key of its words; negative ones have negative votes.
    """

    texts: Mapping[int, Sequence[tuple[str, VideoText]]] = field(default_factory=dict)

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
            return _NONE, _NONE
        votes: dict[int, int] = {}
        for key in {words_key(query) for query in queries}:
            for video, against in self._negative.get(key or "", {}).items():
                votes[video] = max(against, votes.get(video, 0))
        videos = np.array(sorted(votes), np.int64)
        return videos, np.array([votes[video] for video in videos.tolist()], np.int64)


@dataclass(frozen=True)
class TranscriptWords:
    """An index of passages of timed texts, which use the IDs of moments, and their number in each video with some."""

    index: WordIndex = field(default_factory=WordIndex.empty)
    counts: Mapping[int, int] = field(default_factory=dict)

    def replace(self, passages: Mapping[int, Sequence[SourcedCues]]) -> TranscriptWords:
        """Replace the passages of videos; a video without any is removed."""
        texts: dict[int, list[VideoText]] = {}
        counts = dict(self.counts)
        for video, parts in passages.items():
            texts |= {passage: [] for passage in moment_ids(video, counts.pop(video, 0)).tolist()}
            if parts:
                counts[video] = len(parts)
                spoken = zip(moment_ids(video, len(parts)).tolist(), parts, [*parts[1:], None], strict=True)
                texts |= {
                    passage: [timed_text(with_following(part, following))]
                    for passage, part, following in spoken
                }
        return TranscriptWords(self.index.replace(texts.items()), counts) if texts else self


def timed_text(passage: SourcedCues) -> VideoText:
    """Join a passage's cues to one text."""
    kind = _KINDS.get(passage.source, TextKind.TRANSCRIPT)
    return VideoText(kind, " ".join(text for *_, text in passage.cues))


class ReadTexts(NamedTuple):
    """Texts by vector ID, also for videos without any, and the passages of each video."""

    texts: dict[int, Sequence[VideoText]]
    passages: dict[int, list[SourcedCues]]

    @classmethod
    def none(cls, videos: Ids) -> ReadTexts:
        """Create a result in which the videos have no texts."""
        return cls(dict.fromkeys(videos.tolist(), ()), {video: [] for video in videos.tolist()})


class LibraryTexts(NamedTuple):
    """The texts of a library as of one time; replaced as a whole."""

    words: WordIndex = WordIndex.empty()
    transcripts: TranscriptWords = TranscriptWords()
    feedback: RelevanceFeedback = RelevanceFeedback()
    videos: Ids = _NONE  # int64, ascending; vector IDs of the videos
    edit: int | None = None  # number of the last edit in the index; None before the first videos

    def replace(self, read: ReadTexts) -> LibraryTexts:
        """Replace the texts of videos. A text with negative feedback is not a text of its video."""
        indexed = (
            (video, [text for text in texts if text.votes >= 0]) for video, texts in read.texts.items()
        )
        return self._replace(
            words=self.words.replace(indexed),
            transcripts=self.transcripts.replace(read.passages),
            feedback=self.feedback.replace(read.texts),
        )


class LibraryWords:
    """The words of a process's searchable videos. Thread-safe.

    Attributes:
        texts: Texts of the videos, at least as new as the last :meth:`follow_edits`.
    """

    def __init__(self, reads: CatalogReads | None = None) -> None:
        self._reads = reads or CatalogReads()
        self.texts = LibraryTexts()
        self._captions: WeakKeyDictionary[VideoTasks, DomainCaptions] = WeakKeyDictionary()
        self._captions_lock = Lock()
        self._preparation = Lock()  # one at a time
        self._replacement = Lock()  # for the state; not held while many videos are read

    def prepare(self, videos: Ids) -> None:
        """Add the texts of videos that the index lacks, before a snapshot of these videos is served.

        Searches continue meanwhile. Raises Unavailable; the videos read so far are then in the index.
        """
        with self._preparation:
            missing = np.setdiff1d(videos, self.texts.videos, assume_unique=True)
            if not len(missing):
                return
            since = read_last_edit()
            for chunk in batches(missing, _CHUNK):
                read = read_texts(chunk)
                with self._replacement:
                    indexed, edit = self.texts.videos, self.texts.edit
                    # Edits since then concern videos that the index did not have: read those again.
                    self.texts = self.texts.replace(read)._replace(
                        videos=np.insert(indexed, np.searchsorted(indexed, chunk), chunk),
                        edit=since if edit is None else min(edit, since),
                    )

    def captions_of(self, videos: VideoTasks, words: WordIndex | None = None) -> DomainCaptions:
        """Get the caption facts for a snapshot's videos and some words, the newest by default.

        They are counted before the snapshot is served, so no search waits for them.
        """
        words = words or self.texts.words
        with self._captions_lock:
            captions = self._captions.get(videos)
            # Statistics are kept until enough texts were added or removed.
            if captions is None or abs(words.documents - captions.counted) * _RECOUNTED > captions.counted:
                captions = self._captions[videos] = DomainCaptions(words, videos)
            elif words.captioned_version != captions.version:
                captions = self._captions[videos] = DomainCaptions(
                    words, videos, statistics=captions.statistics, counted=captions.counted
                )
            return captions

    def retain(self, videos: Ids) -> None:
        """Drop the words of all other videos, once the snapshot of the given ones is served."""
        with self._preparation, self._replacement:
            indexed = self.texts.videos
            gone = np.setdiff1d(indexed, videos, assume_unique=True)
            if len(gone):
                remaining = np.setdiff1d(indexed, gone, assume_unique=True)
                self.texts = self.texts.replace(ReadTexts.none(gone))._replace(videos=remaining)

    def follow_edits(self) -> int | None:
        """Read all edits committed before the call, and return the number of the last one.

        None before the first videos, or if the catalog is unreachable: the words then lack later edits.
        """
        edit = self.texts.edit
        if edit is None:
            return None
        try:
            number = self._reads.read(read_last_edit)
            if number > edit:
                self._apply_edits(number)
        except Unavailable:
            return None
        return number

    def current(self) -> WordIndex:
        """Get the index with all edits committed before the call; see :meth:`follow_edits`."""
        self.follow_edits()
        return self.texts.words

    def _apply_edits(self, number: int) -> None:
        with self._replacement:
            state = self.texts
            indexed, edit = state.videos, state.edit
            if edit is None or number <= edit:  # another search read them
                return
            edited = np.sort(np.array(self._reads.read(lambda: read_edited_videos(edit)), np.int64))
            # numpy's set operations would sort all IDs.
            first, end = (np.searchsorted(indexed, edited, side) for side in ("left", "right"))
            for chunk in batches(edited[end > first], _IDS_PER_QUERY):
                read = self._reads.read(lambda chunk=chunk: read_texts(chunk))  # type: ignore[misc]
                state = state.replace(read)
            self.texts = state._replace(edit=number)


class VideoTasks:
    """Maps videos to the indices of their tasks.

    Args:
        videos: Each of T tasks' video vector IDs, without moments; a video belongs to one task.

    Attributes:
        videos: ``int64 [n]``, ascending; vector IDs of all videos.
        by_task: ``int64 [n]``; vector IDs task by task, ascending within each; task t starts at ``starts[t]``.
        order: ``int64 [n]``; row in ``by_task`` of each ID in ``videos``.
        counts: ``int64 [T]``; number of videos in each task.
    """

    def __init__(self, videos: Sequence[Ids]) -> None:
        ids: Ids = np.concatenate([np.empty(0, np.int64), *videos])
        self.by_task = ids
        self.starts: Ids = np.cumsum([0, *(len(ids_of_task) for ids_of_task in videos)], dtype=np.int64)
        self.counts: npt.NDArray[np.int64] = np.diff(self.starts)
        tasks = np.repeat(np.arange(len(videos), dtype=np.int32), self.counts)
        order = np.argsort(ids, kind="stable")
        self.order = order
        self.videos: Ids = ids[order]
        self._tasks = tasks[order]
        self._first = int(self.videos[0]) if len(ids) else 0
        span = int(self.videos[-1]) - self._first + 1 if len(ids) else 0
        self._table: npt.NDArray[np.int32] | None = None
        if span <= _MAX_SPARSITY * len(ids) + _FREE_ENTRIES:
            # The last entry is for all IDs outside the table.
            self._table = np.full(span + 1, -1, np.int32)
            self._table[self.videos - self._first] = self._tasks

    def locate(self, ids: Ids) -> npt.NDArray[np.int32]:
        """Find the index of each video's task, ``int32 [len(ids)]``; -1 for unknown IDs."""
        if self._table is not None:
            entries = ids - self._first
            last = len(self._table) - 1
            return self._table[np.where((entries < 0) | (entries > last), last, entries)]
        is_stored, rows = find_ids(self.videos, ids)
        indices = np.full(len(ids), -1, np.int32)
        indices[is_stored] = self._tasks[rows]
        return indices


class DomainCaptions:
    """What word evidence needs to know about the captions of a snapshot's tasks. Immutable.

    Args:
        words: Words of the library.
        videos: Videos of the snapshot's tasks.
        statistics: Caption statistics; counted if None.

    Attributes:
        version: Version of the words' captioned videos.
        counted: Number of library texts when the statistics were counted.
        statistics: Caption statistics of the T tasks.
        uncaptioned_counts: Number of videos without captions in each task, ``[T]``.
    """

    def __init__(
        self,
        words: WordIndex,
        videos: VideoTasks,
        statistics: CaptionStatistics | None = None,
        counted: int | None = None,
    ) -> None:
        self.version = words.captioned_version
        self.counted = words.documents if counted is None else counted
        self._videos = videos
        self._is_captioned = words.captioned(videos.by_task)
        sums = np.concatenate([[0], np.cumsum(~self._is_captioned)])
        self.uncaptioned_counts: npt.NDArray[np.int64] = np.diff(sums[videos.starts])
        self.statistics = statistics or self._count(words)

    def uncaptioned(self, task: int) -> Ids:
        """Find the videos without captions in the task at an index: vector IDs, ascending."""
        if not self.uncaptioned_counts[task]:
            return self._videos.by_task[:0]
        rows = slice(self._videos.starts[task], self._videos.starts[task + 1])
        return self._videos.by_task[rows][~self._is_captioned[rows]]

    def are_captioned(self, videos: Ids, tasks: npt.NDArray[np.integer]) -> npt.NDArray[np.bool_]:
        """Check whether each video of the snapshot has a caption, given the indices of their tasks."""
        are_captioned = self.uncaptioned_counts[tasks] == 0
        (unknown,) = np.nonzero(~are_captioned)
        rows = self._videos.order[find_ids(self._videos.videos, videos[unknown])[1]]
        are_captioned[unknown] = self._is_captioned[rows]
        return np.asarray(are_captioned)

    def _count(self, words: WordIndex) -> CaptionStatistics:
        captions, lengths = words.count_captions(self._videos.locate, len(self._videos.counts))
        uncaptioned = self.uncaptioned_counts.astype(np.float64)
        return CaptionStatistics(
            int(captions.sum()),
            lengths / np.maximum(captions, 1),
            self._videos.counts - uncaptioned,
            uncaptioned,
        )


def read_texts(videos: Ids) -> ReadTexts:
    """Read the texts and transcripts of videos, given by ascending vector ID; raises Unavailable.

    Damaged captions or metadata yield no texts, and neither does a deleted video.
    """
    read = ReadTexts.none(videos)
    for batch in batches(videos, _IDS_PER_QUERY):
        ids, texts = batch.tolist(), dict[int, list[VideoText]]()
        with session_scope() as session:
            for video, uri, captions, metadata in _rows(session, _TEXTS, ids):
                texts[video] = texts_of(uri, captions, metadata)
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
