"""Index words and metadata of all searchable videos: in files that all processes map, in memory what changed since.

The index is computed from catalog rows alone, so a killed process or a restored backup cannot make it differ from them.
A worker writes the words of the library to files (:mod:`index.words.word_files`) once it has published videos, and in
its maintenance. Other processes map the newest generation, and read from the catalog only the videos that it lacks and
those edited since. Videos are added before the first snapshot that contains them is served. A background
thread reads edits every second; a search reads those of its own caller (:mod:`service.core.change_sequence`).

Transcripts are indexed apart from other texts: two hours of subtitles have as many words as a thousand captions. In a
shared index, they would make caption words look common, and lookups would stop at the first passages.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from threading import Lock, Thread
from types import MappingProxyType
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import structlog

from index.arrays import Ids, Rows, batches, find_ids, first_moment_ids, moment_ids
from index.errors import WordsUnreadable
from index.words.video_columns import VideoColumns
from index.words.word_evidence import CaptionStatistics
from index.words.word_files import FileStamp, StoredWords, WordFiles
from index.words.word_index import VideoText, WordIndex
from service.catalog.database import CatalogReads, read_last_edit
from service.catalog.domain_videos import read_edited_videos
from service.catalog.video_texts import SourcedCues, with_following
from service.core.errors import Unavailable
from service.core.settings import Settings, settings
from service.search.catalog_texts import (
    ANALYSIS,
    IDS_PER_QUERY,
    ReadTexts,
    RelevanceFeedback,
    read_texts,
    timed_text,
)
from service.storage.index_manifest import searchable_videos

log = structlog.get_logger(__name__)

_CHUNK = 1 << 16  # videos whose texts are held in memory at a time
_READ_FIRST = 20_000  # videos that a starting server reads before it answers; more are read while it does
_RETRY_SECONDS = 5.0
_MAX_SPARSITY = 16  # table entries per video; more widely scattered IDs are searched instead
_FREE_ENTRIES = 1 << 20
_FEW, _MANY = 256, 64  # more videos without captions than these, and one in so many, are many
_RECOUNTED = 50  # recount once one in this many library texts has changed
_NONE = np.empty(0, np.int64)


def replace_passages(index: WordIndex, passages: Mapping[int, Sequence[SourcedCues]]) -> WordIndex:
    """Replace the passages of videos in an index of passages, which use the IDs of moments."""
    videos = np.array(sorted(passages), np.int64)
    starts, ends = first_moment_ids(videos), first_moment_ids(videos + 1)
    texts: dict[int, list[VideoText]] = {passage: [] for passage in index.between(starts, ends).tolist()}
    for video, parts in passages.items():
        if parts:
            spoken = zip(moment_ids(video, len(parts)).tolist(), parts, [*parts[1:], None], strict=True)
            texts |= {
                passage: [timed_text(with_following(part, following))] for passage, part, following in spoken
            }
    return index.replace(texts.items()) if texts else index


class LibraryTexts(NamedTuple):
    """The texts of a library as of one time; replaced as a whole."""

    words: WordIndex = WordIndex.empty()
    transcripts: WordIndex = WordIndex.empty()
    columns: VideoColumns = VideoColumns()
    feedback: RelevanceFeedback = RelevanceFeedback()
    videos: Ids = _NONE  # int64, ascending; vector IDs of the videos
    edit: int | None = None  # the index has all edits up to this number; None before the first videos
    later: Mapping[int, int] = MappingProxyType({})  # numbers of later edits in the index, by vector ID

    def has(self, edit: int) -> bool:
        """Check whether the index has an edit."""
        return self.edit is None or edit <= self.edit or edit in self.later.values()

    def replace(self, read: ReadTexts) -> LibraryTexts:
        """Replace the texts and facts of videos. A text with negative feedback is not a text of its video."""
        indexed = (
            (video, [text for text in texts if text.votes >= 0]) for video, texts in read.texts.items()
        )
        return self._replace(
            words=self.words.replace(indexed),
            transcripts=replace_passages(self.transcripts, read.passages),
            columns=self.columns.replace(read.facts.items()),
            feedback=self.feedback.replace(read.texts),
        )


def write_words(added: Ids | None = None, *, compact: bool = False) -> None:
    """Write the words of the library to its files; see :meth:`LibraryWords.write`.

    Failures are only logged, since processes read from the catalog what the files lack.
    """
    try:
        if settings().index_dir.exists():
            LibraryWords(files=word_files(settings())).write(added, compact=compact)
    except (OSError, Unavailable) as error:
        log.warning("words_not_written", error=str(error), kind=type(error).__name__)


def word_files(configured: Settings) -> WordFiles:
    """Get the word files of a library."""
    return WordFiles(configured.index_dir, ANALYSIS)


class LibraryWords:
    """The words of a process's searchable videos. Thread-safe.

    Args:
        files: Files with the words of the library; None: all are read from the catalog.

    Attributes:
        texts: Texts of the videos, at least as new as the last :meth:`follow_edits`.
    """

    def __init__(self, reads: CatalogReads | None = None, files: WordFiles | None = None) -> None:
        self._reads, self._files = reads or CatalogReads(), files
        self._stamp: FileStamp | None = None  # of the generation that was mapped, or cannot be
        self._verified: FileStamp | None = None
        self._reader: LibraryWords | None = None  # reads all texts while searches go on without words
        self._wanted = _NONE  # videos of the newest snapshot
        self.texts = LibraryTexts()
        self._captions: WeakKeyDictionary[VideoTasks, DomainCaptions] = WeakKeyDictionary()
        self._captions_lock = Lock()
        self._preparation = Lock()  # one at a time
        self._replacement = Lock()  # for the state; not held while many videos are read

    @property
    def problem(self) -> str | None:
        """Why searches do without words of videos; None if they do not."""
        if (reader := self._reader) is None:
            return None
        done = f"{len(reader.texts.videos):,} of {len(self._wanted):,} videos"
        return f"words are being read from the catalog ({done}); until then, searches rank by the visual score alone"

    def prepare(self, videos: Ids, *, in_background: bool = False) -> None:
        """Add the texts of videos that the index lacks, before a snapshot of these videos is served.

        Searches continue meanwhile. Raises Unavailable; the videos read so far are then in the index.

        Args:
            in_background: Whether to read those of many videos in a thread.
        """
        with self._preparation:
            self._wanted = videos
            if self._reader is not None:
                return
            self._map_files()
            missing = _without(videos, self.texts.videos)
            if not len(missing):
                return
            if in_background and len(missing) > _READ_FIRST:
                self._read_in_background()
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

    def _map_files(self) -> LibraryTexts | None:
        """Map a new generation of the word files, and add later edits; without a usable one, the texts stay.

        Returns what the files contain.
        """
        if self._files is None or (stamp := self._files.stamp()) in (None, self._stamp):
            return None
        number, self._stamp = read_last_edit(), stamp
        try:
            stored = self._files.read()
            if stored.edit > number:
                raise WordsUnreadable("the words are newer than the catalog")
        except WordsUnreadable as error:
            log.warning("words_not_mapped", error=str(error))
            return None
        feedback = RelevanceFeedback.from_json(stored.feedback)
        state = LibraryTexts(
            stored.words, stored.transcripts, stored.columns, feedback, stored.videos, stored.edit
        )
        with self._replacement:
            stored.words.captioned_version = self.texts.words.captioned_version + 1
            edited = read_edited_videos(stored.edit)
            changed = state
            for chunk in batches(np.array(sorted(edited), np.int64), IDS_PER_QUERY):
                changed = self._with_edited(changed, chunk, edited)
            later = {video: edit for video, edit in changed.later.items() if edit > number}
            self.texts = changed._replace(edit=number, later=later)
        return state

    def write(self, added: Ids | None = None, *, compact: bool = False) -> None:
        """Write the words of all searchable videos as the next generation of the files, unless the newest has them.

        Args:
            added: Videos that were published since; None: the index tells which videos there are.
            compact: Whether to write all segments again that have texts of deleted or edited videos.

        Raises:
            OSError: The files cannot be written; TimeoutError: another process writes them.
            Unavailable: The catalog or the index cannot be read.
        """
        if self._files is None:
            raise AssertionError("there is no folder for the words")
        with self._files.lock(0):
            stored = self._map_files()
            videos = searchable_videos() if added is None else np.union1d(self.texts.videos, added)
            self.prepare(videos)
            self.retain(videos)
            self.follow_edits()
            if compact:
                texts = self.texts
                self.texts = texts._replace(
                    words=texts.words.compacted(),
                    transcripts=texts.transcripts.compacted(),
                    columns=texts.columns.compacted(),
                )
            words, transcripts, columns, feedback, indexed, edit, _ = self.texts
            is_new = stored is None or any(map(operator.is_not, self.texts[:5], stored[:5]))
            if is_new and edit is not None:
                self._files.write(StoredWords(words, transcripts, columns, indexed, feedback.to_json(), edit))

    def verify(self) -> None:
        """Compare a new generation of the files with its checksums; if it is damaged, read the words again."""
        if self._files is None or self._stamp in (None, self._verified) or self._reader is not None:
            return
        self._verified = self._stamp
        if damage := self._files.find_damage():
            log.error("words_damaged", error=damage)
            self._files.discard()
            with self._preparation, self._replacement:
                self.texts = LibraryTexts()
                self._read_in_background()

    def _read_in_background(self) -> None:
        self._reader = LibraryWords(self._reads, self._files)
        Thread(target=self._read_all, args=[self._reader], name="read-words", daemon=True).start()

    def _read_all(self, reader: LibraryWords) -> None:
        """Write the words of all videos, or wait for another process that writes them, then use them."""
        while True:
            try:
                reader.write()
                break
            except Exception as error:
                log.warning("words_not_written", error=str(error), kind=type(error).__name__)
                if isinstance(error, OSError) and len(reader.texts.videos):
                    break  # without files, the words stay in memory
            time.sleep(_RETRY_SECONDS)
        with self._preparation, self._replacement:
            self.texts, self._reader = reader.texts, None
        with suppress(Unavailable):  # the next snapshot tries again
            self.prepare(self._wanted)

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
            gone = _without(self.texts.videos, videos)
            if len(gone):
                remaining = _without(self.texts.videos, gone)
                self.texts = self.texts.replace(ReadTexts.none(gone))._replace(videos=remaining)

    def follow_edits(
        self, required: int | None = None, edits: tuple[int, Mapping[int, int]] | None = None
    ) -> None:
        """Read all edits committed before the call, or those up to a required one; raises Unavailable.

        Searches continue meanwhile: many videos are replaced in several steps.

        Args:
            edits: The number up to which all edits are complete, and the numbers of the videos edited after one that
                the index has, if they were read since the call.
        """
        videos, edit, later = self.texts.videos, self.texts.edit, self.texts.later
        if edit is None or (required is not None and self.texts.has(required)):
            return
        number, edited = edits or self._reads.read(lambda: (read_last_edit(), read_edited_videos(edit)))
        new = sorted(video for video, n in edited.items() if n > edit and later.get(video) != n)
        for chunk in batches(np.array(new, np.int64), IDS_PER_QUERY):
            with self._replacement:
                self.texts = self._with_edited(self.texts, chunk, edited)
        if required is None:
            with self._replacement:
                # Otherwise, videos were added meanwhile, whose edits are to be read yet.
                if self.texts.videos is videos:
                    remaining = {video: n for video, n in self.texts.later.items() if n > number}
                    self.texts = self.texts._replace(edit=max(number, edit), later=remaining)

    def current(self) -> WordIndex:
        """Get the index with all edits committed before the call, unless the catalog is unreachable."""
        with suppress(Unavailable):
            self.follow_edits()
        return self.texts.words

    def _with_edited(self, state: LibraryTexts, videos: Ids, edited: Mapping[int, int]) -> LibraryTexts:
        """Read some edited videos again, with the numbers of their edits."""
        # numpy's set operations would sort all IDs.
        first, end = (np.searchsorted(state.videos, videos, side) for side in ("left", "right"))
        if not len(indexed := videos[end > first]):
            return state
        later = {**state.later, **{video: edited[video] for video in indexed.tolist()}}
        return state.replace(self._reads.read(lambda: read_texts(indexed)))._replace(later=later)


def _without(ids: Ids, others: Ids) -> Ids:
    """Leave out other IDs; both are ascending."""
    if np.array_equal(ids, others):
        return ids[:0]
    return ids[~find_ids(others, ids)[0]]


class VideoTasks:
    """Maps videos to the indices of their tasks.

    Args:
        videos: Each of T tasks' video vector IDs, without moments; a video belongs to one task.

    Attributes:
        videos: ``int64 [n]``, ascending; vector IDs of all videos.
        by_task: ``int64 [n]``; vector IDs task by task, ascending within each; task t starts at ``starts[t]``.
        counts: ``int64 [T]``; number of videos in each task.
    """

    def __init__(self, videos: Sequence[Ids]) -> None:
        self.by_task = self.videos = ids = np.concatenate([_NONE, *videos])
        self.starts: Ids = np.cumsum([0, *(len(ids_of_task) for ids_of_task in videos)], dtype=np.int64)
        self.counts: npt.NDArray[np.int64] = np.diff(self.starts)
        self._order: Rows | None = None  # row in ``by_task`` of each ID in ``videos``, unless the same
        if not (ids[1:] > ids[:-1]).all():
            self._order = np.argsort(ids, kind="stable")
            self.videos = ids[self._order]
        self._first = int(self.videos[0]) if len(ids) else 0
        span = int(self.videos[-1]) - self._first + 1 if len(ids) else 0
        self._table: npt.NDArray[np.integer] | None = None
        if span <= _MAX_SPARSITY * len(ids) + _FREE_ENTRIES:
            # The last entry is for all IDs outside the table.
            number = np.int16 if len(videos) < 1 << 15 else np.int32
            self._table = np.full(span + 1, -1, number)
            self._table[ids - self._first] = np.repeat(np.arange(len(videos), dtype=number), self.counts)

    def find(self, ids: Ids) -> tuple[npt.NDArray[np.bool_], Rows]:
        """Find which of some IDs are those of videos, and the rows of these in ``by_task``."""
        is_stored, rows = find_ids(self.videos, ids)
        return is_stored, rows if self._order is None else self._order[rows]

    def tasks_of(self, rows: Rows) -> npt.NDArray[np.int32]:
        """Find the index of the task that each row in ``by_task`` belongs to."""
        return (np.searchsorted(self.starts, rows, side="right") - 1).astype(np.int32)

    def locate(self, ids: Ids) -> npt.NDArray[np.int32]:
        """Find the index of each video's task, ``int32 [len(ids)]``; -1 for unknown IDs."""
        if self._table is not None:
            entries = ids - self._first
            last = len(self._table) - 1
            entries[(entries < 0) | (entries > last)] = last
            return self._table[entries].astype(np.int32)
        is_stored, rows = self.find(ids)
        indices = np.full(len(ids), -1, np.int32)
        indices[is_stored] = self.tasks_of(rows)
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
        self._is_captioned = np.zeros(len(videos.by_task), np.bool_)
        count = len(videos.counts)
        captioned, captions, lengths = np.zeros(count, np.int64), np.zeros(count), np.zeros(count)
        for ids, numbers, word_counts in words.captions():
            is_stored, rows = videos.find(ids)
            tasks = videos.tasks_of(rows)
            self._is_captioned[rows] = True
            captioned += np.bincount(tasks, minlength=count)
            captions += np.bincount(tasks, numbers[is_stored], count)
            lengths += np.bincount(tasks, word_counts[is_stored], count)
        self.uncaptioned_counts: npt.NDArray[np.int64] = videos.counts - captioned
        self.statistics = statistics or CaptionStatistics(
            int(captions.sum()),
            lengths / np.maximum(captions, 1),
            captioned.astype(np.float64),
            self.uncaptioned_counts.astype(np.float64),
        )

    def has_many_uncaptioned(self, task: int) -> bool | None:
        """Check whether the task at an index has more videos without captions than are faster read one by one."""
        count = self.uncaptioned_counts[task]
        return bool(count > max(_FEW, self._videos.counts[task] / _MANY)) if count else None

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
        are_captioned[unknown] = self._is_captioned[self._videos.find(videos[unknown])[1]]
        return np.asarray(are_captioned)
