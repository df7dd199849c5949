"""Index the words of all searchable videos in memory.

The index is computed from catalog rows alone, so a killed process or a restored backup cannot make it differ from them.
Videos are added before the first snapshot that contains them is served. Edits show in the next search: each search
compares the last edit's number with the index's, which reads one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import NamedTuple

import numpy as np
import structlog
from sqlalchemy import select

from index.arrays import Ids, batches
from index.words.word_index import VideoText, WordIndex
from service.catalog.catalog_reads import CatalogReads
from service.catalog.column_types import is_damaged
from service.catalog.database import session_scope
from service.catalog.domain_videos import read_edited_videos, read_last_edit
from service.catalog.tables import Passage, Video
from service.catalog.transcripts import TimedText
from service.core.errors import Unavailable
from service.search.words.domain_captions import CaptionsOfSnapshots
from service.search.words.judged_texts import JudgedTexts, read_judged_texts
from service.search.words.rows_by_video import RowsByVideo
from service.search.words.transcript_words import TranscriptWords
from service.search.words.video_positions import VideoPositions
from service.search.words.video_texts import texts_of

log = structlog.get_logger(__name__)

_CHUNK = 10_000  # videos whose texts are held in memory at a time
_IDS_PER_QUERY = 500
_VIDEOS = Video.__table__.c
_TEXTS = RowsByVideo(
    select(_VIDEOS.vector_id, _VIDEOS.uri, _VIDEOS.captions, _VIDEOS["metadata"]), _VIDEOS.vector_id
)
_PASSAGES = Passage.__table__.c
_CUES = RowsByVideo(
    select(_PASSAGES.video_vector_id, _PASSAGES.cues).order_by(_PASSAGES.video_vector_id, _PASSAGES.number),
    _PASSAGES.video_vector_id,
)


class ReadTexts(NamedTuple):
    """Texts by vector ID, also for videos without any.

    Attributes:
        texts: Texts of each video.
        passages: Cues of each video's transcript passages.
    """

    texts: dict[int, Sequence[VideoText]]
    passages: dict[int, list[list[TimedText]]]

    @classmethod
    def none(cls, videos: Ids) -> ReadTexts:
        """Create a result in which the videos have no texts."""
        return cls(dict.fromkeys(videos.tolist(), ()), {video: [] for video in videos.tolist()})


class _State(NamedTuple):
    """The words as of one time; replaced as a whole.

    Attributes:
        words: Index of the videos' texts.
        transcripts: Index of their transcripts.
        judged: Confirmed and refused texts.
        videos: ``int64``, ascending; vector IDs of the videos.
        edit: Number of the last edit in the index; None before the first videos.
    """

    words: WordIndex
    transcripts: TranscriptWords
    judged: JudgedTexts
    videos: Ids
    edit: int | None

    def replace(self, read: ReadTexts) -> _State:
        """Replace the texts of videos. A refused text is not a text of its video."""
        own = ((video, [text for text in found if text.votes >= 0]) for video, found in read.texts.items())
        return self._replace(
            words=self.words.replace(own),
            transcripts=self.transcripts.replace(read.passages),
            judged=self.judged.replace(read.texts),
        )


class LibraryWords:
    """The words of a process's searchable videos. Thread-safe.

    Args:
        reads: Catalog reads, whose wait is bounded.

    Attributes:
        captions: Caption facts by snapshot.
    """

    def __init__(self, reads: CatalogReads | None = None) -> None:
        self._reads = reads or CatalogReads()
        self.captions = CaptionsOfSnapshots()
        self._state = _State(
            WordIndex.empty(), TranscriptWords.empty(), JudgedTexts(), np.empty(0, np.int64), None
        )
        self._preparation = Lock()  # one at a time
        self._replacement = Lock()  # for the state; not held while many videos are read

    def prepare(self, videos: Ids) -> None:
        """Add the texts of videos that the index lacks. Searches continue meanwhile.

        Args:
            videos: ``int64``, ascending and distinct; vector IDs of all videos in a snapshot about to be served.

        Raises:
            Unavailable: The catalog cannot be read. The videos read so far are in the index.
        """
        with self._preparation:
            missing = np.setdiff1d(videos, self._state.videos, assume_unique=True)
            if not len(missing):
                return
            since = read_last_edit()
            for chunk in batches(missing, _CHUNK):
                read = read_texts(chunk)
                with self._replacement:
                    known, edit = self._state.videos, self._state.edit
                    # Edits since then concern videos that the index did not know: read those again.
                    self._state = self._state.replace(read)._replace(
                        videos=np.insert(known, np.searchsorted(known, chunk), chunk),
                        edit=since if edit is None else min(edit, since),
                    )

    def count_captions(self, positions: VideoPositions) -> None:
        """Count the captions of a snapshot about to be served, so that no search waits for it."""
        self.captions.of(self._state.words, positions)

    def retain(self, videos: Ids) -> None:
        """Drop the words of all other videos, once the snapshot of the given ones is served."""
        with self._preparation, self._replacement:
            known = self._state.videos
            gone = np.setdiff1d(known, videos, assume_unique=True)
            if len(gone):
                removed = self._state.replace(ReadTexts.none(gone))
                self._state = removed._replace(videos=np.setdiff1d(known, gone, assume_unique=True))

    def follow_edits(self) -> int | None:
        """Read all edits committed before the call.

        Returns:
            Number of the last edit; None before the first videos, or if the catalog is unreachable: the words then
            lack later edits.
        """
        edit = self._state.edit
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
        return self._state.words

    @property
    def index(self) -> WordIndex:
        """Words of the videos, at least as new as the last :meth:`follow_edits`."""
        return self._state.words

    @property
    def transcripts(self) -> TranscriptWords:
        """Transcript words, likewise."""
        return self._state.transcripts

    @property
    def judged(self) -> JudgedTexts:
        """Confirmed and refused texts, likewise."""
        return self._state.judged

    def _apply_edits(self, number: int) -> None:
        with self._replacement:
            state = self._state
            known, edit = state.videos, state.edit
            if edit is None or number <= edit:  # another search read them
                return
            edited = np.sort(np.array(self._reads.read(lambda: read_edited_videos(edit)), np.int64))
            # numpy's set operations would sort all known IDs.
            first, end = (np.searchsorted(known, edited, side) for side in ("left", "right"))
            for chunk in batches(edited[end > first], _IDS_PER_QUERY):
                read = self._reads.read(lambda chunk=chunk: read_texts(chunk))  # type: ignore[misc]
                state = state.replace(read)
            self._state = state._replace(edit=number)


def read_texts(videos: Ids) -> ReadTexts:
    """Read the texts and transcripts of videos from the catalog.

    Damaged captions or metadata yield no texts, and neither does a deleted video.

    Args:
        videos: ``int64``, ascending; vector IDs.

    Raises:
        Unavailable: The catalog cannot be read.
    """
    found = ReadTexts.none(videos)
    for batch in batches(videos, _IDS_PER_QUERY):
        _read_batch(batch.tolist(), found)
    return found


def _read_batch(videos: Sequence[int], found: ReadTexts) -> None:
    with session_scope() as session:
        texts: dict[int, list[VideoText]] = {}
        for video, uri, captions, metadata in _TEXTS.read(session, videos):
            if is_damaged(captions) or is_damaged(metadata):
                log.warning("texts_not_read", vector_id=video)
            texts[video] = texts_of(uri, captions, metadata)
        for video, judged in read_judged_texts(session, videos).items():
            texts.get(video, []).extend(judged)
        for video, passage in _CUES.read(session, videos):
            if is_damaged(passage):
                log.warning("passage_not_read", vector_id=video)
            found.passages[video].append(passage)
    found.texts.update(texts)
