"""Word files: the words and columns of a library on disk, which all processes of a machine map and share.

    words.json           a generation: its folders and the last edit in it; replaced as a whole
    words/<id>/arrays    arrays of a segment (:class:`~index.words.word_segment.WordSegment` or
                         :class:`~index.words.video_columns.ColumnSegment`), or a generation's state: IDs of its videos,
                         flags of changed segments, feedback

They are derived from the catalog: if one is missing, damaged, or written by another version of text analysis, all are
written again. A folder never changes, and its ID is that of its content. A new generation names the folders of
unchanged segments; those that no generation names are removed like those of the index (``collect_garbage``), and
processes that map them keep them.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np
import numpy.typing as npt

from index.arrays import Ids
from index.errors import WordsUnreadable
from index.files.durable_files import exclusive_lock, find_damage, replace_text
from index.files.manifest_format import dump_checked, load_checked
from index.files.store_folder import WORDS, SealedFolder, StoreFolder
from index.words.unit_matching import LiveSegment
from index.words.video_columns import ColumnSegment, LiveColumns, VideoColumns
from index.words.word_index import WordIndex
from index.words.word_segment import StemOrder, TermTable, Videos, WordSegment

_SCHEMA = 1
_VERIFIED_BYTES = 256 * 1024**2  # verified before use; word files of a larger library are verified during use
_VIDEOS, _FEEDBACK = "videos", "feedback"
_FILE = "arrays"
_ALIGNMENT = 64  # as the header of an array in the NPY format

FileStamp = tuple[int, int]
Arrays = Mapping[str, npt.NDArray[Any]]


class StoredWords(NamedTuple):
    """A generation of a library's words: texts, passages of timed texts, columns, and feedback as JSON values."""

    words: WordIndex
    transcripts: WordIndex
    columns: VideoColumns
    videos: Ids  # ascending; all that were read, also those without words
    feedback: list[Any]
    edit: int  # number of the last edit that it contains


class WordFiles:
    """Reads and writes the word files in an index folder. Thread-safe, except for writing.

    Args:
        analysis: Version of everything that decides which terms a text has.
    """

    def __init__(self, root: Path, analysis: str) -> None:
        self._folder, self._analysis = StoreFolder(root), analysis
        self._path = root / WORDS
        self._verified: set[str] = set()
        self._sealed: WeakKeyDictionary[WordSegment | ColumnSegment, SealedFolder] = WeakKeyDictionary()
        self._opened: WeakValueDictionary[str, WordSegment | ColumnSegment] = WeakValueDictionary()

    @contextmanager
    def lock(self, timeout: float | None = None) -> Iterator[None]:
        """Lock out other writers; raises TimeoutError as :func:`exclusive_lock`."""
        self._folder.root.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(self._folder.root / "words.lock", timeout):
            yield

    def stamp(self) -> FileStamp | None:
        """Identify the newest generation; None without one."""
        try:
            stat = self._path.stat()
        except OSError:
            return None
        return stat.st_ino, stat.st_mtime_ns

    def read(self) -> StoredWords:
        """Map the newest generation; raises WordsUnreadable."""
        body = self._read_body()
        try:
            folders = {name: SealedFolder(name, **entry) for name, entry in body["folders"].items()}
            verify = sum(folder.bytes for folder in folders.values()) <= _VERIFIED_BYTES
            state = self._map(folders[body["state"]], verify)
            words, transcripts, columns = (
                [self._open_segment(folders[folder], state, kind, verify=verify) for folder in body[name]]
                for name, kind in _KINDS.items()
            )
            feedback = json.loads(state[_FEEDBACK].tobytes())
            return StoredWords(
                _index(words),
                _index(transcripts),
                VideoColumns(tuple(columns)),
                videos=state[_VIDEOS],
                feedback=feedback,
                edit=body["edit"],
            )
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise WordsUnreadable(f"a word file cannot be read ({error})") from error

    def find_damage(self) -> str | None:
        """Verify those files of the newest generation that were not verified yet; describe the first damage."""
        try:
            for name, entry in self._read_body()["folders"].items():
                self._require_intact(SealedFolder(name, **entry), verify=True)
        except WordsUnreadable as error:
            return str(error)
        return None

    def discard(self) -> None:
        """Remove the newest generation, which is damaged."""
        self._path.unlink(missing_ok=True)
        self._opened.clear()
        self._verified.clear()

    def write(self, stored: StoredWords) -> None:
        """Write the next generation durably; the caller holds the lock. Raises OSError."""
        before = self._folder.word_folders()
        feedback = json.dumps(stored.feedback, ensure_ascii=False).encode("utf-8", "replace")
        state: dict[str, npt.NDArray[Any]] = {
            _VIDEOS: stored.videos,
            _FEEDBACK: np.frombuffer(feedback, np.uint8),
        }
        folders: dict[str, SealedFolder] = {}
        named: dict[str, list[str]] = {}
        for name, kind in _KINDS.items():
            named[name] = []
            for live in getattr(stored, name).segments:
                folder = self._sealed.get(live.segment)
                if folder is None or folder.id not in before:
                    folder = self._sealed[live.segment] = self._seal(kind.arrays_of(live.segment))
                folders[folder.id] = folder
                named[name].append(folder.id)
                if live.replaced:
                    state[folder.id] = np.packbits(live.alive)
        sealed = self._seal(state)
        folders[sealed.id] = sealed
        body = {
            "schema": _SCHEMA,
            "analysis": self._analysis,
            "edit": stored.edit,
            "state": sealed.id,
            **named,
            "folders": {f.id: {"bytes": f.bytes, "files": f.files} for f in folders.values()},
        }
        for name in before - folders.keys():  # processes may be about to map them
            os.utime(self._folder.words_path / name)
        replace_text(self._path, dump_checked(body))

    # -- internal --

    def _read_body(self) -> dict[str, Any]:
        try:
            body = load_checked(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise WordsUnreadable(f"{WORDS} is missing") from None
        except (OSError, ValueError) as error:
            raise WordsUnreadable(f"{WORDS} is damaged ({error})") from error
        if (body.get("schema"), body.get("analysis")) != (_SCHEMA, self._analysis):
            raise WordsUnreadable(f"{WORDS} was written by another version of text analysis")
        return body

    def _require_intact(self, folder: SealedFolder, *, verify: bool) -> Path:
        path = self._folder.words_path / folder.id
        verify = verify and folder.id not in self._verified
        if problem := find_damage(path, folder.files, folder.bytes, verify=verify):
            raise WordsUnreadable(f"words/{folder.id[:12]}: {problem}")
        if verify:
            self._verified.add(folder.id)
        return path

    def _map(self, folder: SealedFolder, verify: bool) -> dict[str, npt.NDArray[Any]]:
        with (self._require_intact(folder, verify=verify) / _FILE).open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        names: list[str] = _next_array(content).tolist()
        return {name: _next_array(content) for name in names}

    def _open_segment(self, folder: SealedFolder, state: Arrays, kind: _Kind, *, verify: bool) -> Any:
        segment = self._opened.get(folder.id)
        if segment is None:
            segment = self._opened[folder.id] = kind.segment_of(self._map(folder, verify))
            self._sealed[segment] = folder
        live = kind.live(segment)
        if (bits := state.get(folder.id)) is not None:
            replaced = np.flatnonzero(np.unpackbits(bits, count=len(segment)) == 0)
            live = live.without(replaced.astype(np.int32))
        return live

    def _seal(self, arrays: Arrays) -> SealedFolder:
        with self._folder.staging() as staged:
            with (staged / _FILE).open("wb") as file:
                for array in (np.array([*arrays]), *arrays.values()):
                    file.write(bytes(-file.tell() % _ALIGNMENT))
                    np.lib.format.write_array(file, array, version=(1, 0), allow_pickle=False)
            return self._folder.seal(staged, self._folder.words_path)


def _next_array(content: mmap.mmap) -> npt.NDArray[Any]:
    """Map the array at the position in a file, and move on to the next one."""
    np.lib.format.read_magic(content)
    shape, _, dtype = np.lib.format.read_array_header_1_0(content)
    array: npt.NDArray[Any] = np.ndarray(shape, dtype, content, content.tell())
    end = content.tell() + array.nbytes
    content.seek(min(end + -end % _ALIGNMENT, len(content)))
    return array


def _index(segments: Sequence[LiveSegment]) -> WordIndex:
    videos = sum(int(np.count_nonzero(live.alive[live.segment.videos.starts[:-1]])) for live in segments)
    return WordIndex(tuple(segments), videos)


def _arrays_of(segment: WordSegment) -> Arrays:
    """List a segment's arrays by field; those of its parts are named ``<group>.<field>``."""
    stems = {language: order._asdict() for language, order in segment.stems.items()}
    groups = {"videos": vars(segment.videos), "terms": vars(segment.terms), **stems}
    arrays = {f"{group}.{name}": array for group, fields in groups.items() for name, array in fields.items()}
    return {
        name: array for name, array in {**vars(segment), **arrays}.items() if isinstance(array, np.ndarray)
    }


def _segment_of(arrays: Arrays) -> WordSegment:
    groups: dict[str, dict[str, Any]] = {}
    for name, array in arrays.items():
        group, _, field = name.rpartition(".")
        groups.setdefault(group, {})[field] = array
    fields = groups.pop("")
    videos, terms = Videos(**{"order": None, **groups.pop("videos")}), TermTable(**groups.pop("terms"))
    stems = {language: StemOrder(**order) for language, order in groups.items()}
    return WordSegment(videos=videos, terms=terms, **fields, stems=stems)


class _Kind(NamedTuple):
    """How segments of a kind are stored and opened."""

    live: Callable[[Any], Any]  # starts with all entries alive
    arrays_of: Callable[[Any], Arrays]
    segment_of: Callable[[Arrays], Any]


_WORDS = _Kind(LiveSegment.of, _arrays_of, _segment_of)
_COLUMNS = _Kind(LiveColumns.of, ColumnSegment.arrays, ColumnSegment.from_arrays)
_KINDS = {"words": _WORDS, "transcripts": _WORDS, "columns": _COLUMNS}
