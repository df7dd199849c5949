"""Words in files: written by one process, mapped by others, and read from the catalog where they are missing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import delete

from cinestrata_schemas.tasks import TaskDetails
from cinestrata_schemas.videos import Cue, FeedbackSpec, VideoPatch
from index.arrays import Ids
from service.catalog.database import session_scope
from service.catalog.domain_videos import number_edits
from service.catalog.tables import EditCounter, Video
from service.core.errors import Unavailable
from service.core.settings import Settings
from service.library.deletion import compact, delete_videos
from service.library.video_changes import edit_video, give_feedback
from service.search import library_words
from service.search.engine import SearchEngine
from service.search.library_words import LibraryWords, word_files, write_words
from tests.index.disk_faults import flip_byte
from tests.service.search.caption_library import BIRDS, CARS, Library
from tests.service.search.test_library_words import _add, _found, _said

TIMEOUT_SECONDS = 20
Post = Callable[..., TaskDetails]


@pytest.fixture
def birds(sqlite_catalog: Settings, post: Post) -> Ids:
    """Vector IDs of a heron, an owl with a transcript and a gull with feedback, whose words are in files."""
    videos = _add(post, "a heron", "an owl", "a gull")
    edit_video(
        "birds-1",
        VideoPatch(transcript=[Cue(start=0, end=2, text="hoot"), Cue(start=90, end=92, text="far")]),
    )
    with session_scope(write=True) as session:
        session.get_one(Video, int(videos[2])).status = "accepted"
    for text, verdict in (("a seagull", "right"), ("a tern", "wrong")):
        give_feedback(FeedbackSpec(video_id="birds-2", text=text, verdict=verdict))
    process(sqlite_catalog).write(videos)
    return videos


def process(configured: Settings) -> LibraryWords:
    """Return the words of another process."""
    return LibraryWords(files=word_files(configured))


def test_a_process_maps_the_words_and_reads_no_texts(
    sqlite_catalog: Settings, birds: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library_words, "read_texts", None)
    words = process(sqlite_catalog)
    words.prepare(birds)
    assert [_found(words, query) for query in ("owl", "seagull", "tern")] == [[birds[1]], [birds[2]], []]
    assert _said(words, "hoot") == [birds[1]]
    assert words.texts.feedback.negative_videos(["terns"])[0].tolist() == [birds[2]]
    assert words.current().captioned(birds).all()


def test_later_edits_and_videos_are_read_from_the_catalog(sqlite_catalog: Settings, birds: Ids) -> None:
    before = process(sqlite_catalog)
    before.prepare(birds)
    edit_video("birds-1", VideoPatch(captions=["a buzzard"], transcript=[]))
    with session_scope(write=True) as session:
        session.add(
            video := Video(id="new", task_id=session.get_one(Video, int(birds[0])).task_id, uri="new.mp4")
        )
        session.flush()
        videos = np.array([*birds, video.vector_id])
    with session_scope(write=True) as session:
        session.execute(delete(Video).where(Video.vector_id == int(birds[0])))
        number_edits(session, [])
    after = process(sqlite_catalog)
    for words in (before, after):
        words.prepare(videos)
        words.retain(videos[1:])
        answers = [_found(words, query) for query in ("owl", "buzzard", "gull", "new", "heron")]
        assert answers == [[], [birds[1]], [birds[2]], [videos[3]], []]
        assert _said(words, "hoot") == []


def test_writer_adds_videos_and_processes_adopt_them(
    sqlite_catalog: Settings, birds: Ids, post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = process(sqlite_catalog)
    words.prepare(birds)
    more = _add(post, "a tram", name="trams")
    process(sqlite_catalog).write(more)
    edit_video("birds-0", VideoPatch(captions=["a crane"]))
    names = {path.name for path in (sqlite_catalog.index_dir / "words").iterdir()}
    with monkeypatch.context() as patch:
        read: list[int] = []
        read_texts = library_words.read_texts
        patch.setattr(
            library_words, "read_texts", lambda ids: (read.extend(ids.tolist()), read_texts(ids))[1]
        )
        words.prepare(np.concatenate([birds, more]))
        assert read == [birds[0]], "only what was edited since"
    assert [_found(words, word) for word in ("tram", "crane", "heron")] == [[*more], [birds[0]], []]
    writer = process(sqlite_catalog)
    writer.write(np.concatenate([birds, more]))
    stamp = word_files(sqlite_catalog).stamp()
    assert names < {path.name for path in (sqlite_catalog.index_dir / "words").iterdir()}
    process(sqlite_catalog).write(np.concatenate([birds, more]))
    assert word_files(sqlite_catalog).stamp() == stamp, "nothing is written again"


def _truncate(configured: Settings) -> None:
    (configured.index_dir / "words.json").write_text("{}")


def _damage(configured: Settings) -> None:
    for path in (configured.index_dir / "words").glob("*/arrays"):
        flip_byte(path)


def _restore_earlier_catalog(configured: Settings) -> None:
    with session_scope(write=True) as session:
        session.query(EditCounter).one().last_edit = 1
        session.query(Video).update({Video.last_edit: 0})


def _change_analysis(configured: Settings) -> None:
    pass


@pytest.mark.parametrize("fault", [_truncate, _damage, _restore_earlier_catalog, _change_analysis])
def test_unusable_files_are_written_again(
    sqlite_catalog: Settings, birds: Ids, fault: Callable[[Settings], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(sqlite_catalog)
    if fault is _change_analysis:
        monkeypatch.setattr(library_words, "ANALYSIS", "other")
    words = process(sqlite_catalog)
    words.prepare(birds)
    assert (_found(words, "owl"), _said(words, "hoot")) == ([birds[1]], [birds[1]])
    process(sqlite_catalog).write(birds)
    monkeypatch.setattr(library_words, "read_texts", None)
    words = process(sqlite_catalog)
    words.prepare(birds)
    assert (_found(words, "owl"), _said(words, "hoot")) == ([birds[1]], [birds[1]])


def test_only_one_process_writes(sqlite_catalog: Settings, birds: Ids) -> None:
    with word_files(sqlite_catalog).lock(), pytest.raises(TimeoutError):
        _in_thread(LibraryWords.write, process(sqlite_catalog), birds)


def _in_thread(call: Callable[..., None], *arguments: Any) -> None:
    """Call in another thread, like a process without the lock."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(call, *arguments).result(TIMEOUT_SECONDS)


def _texts_on_disk(configured: Settings, word: str) -> list[Path]:
    files = (configured.index_dir / "words").glob("*/arrays")
    return [path for path in files if word.encode() in path.read_bytes()]


@pytest.fixture
def library(configured: Settings, learning: Library) -> Library:
    return learning


def test_compaction_removes_the_texts_of_deleted_videos(library: Library, service: SearchEngine) -> None:
    write_words()
    assert len(_texts_on_disk(library.settings, "starlings")) == 1
    delete_videos(["birds-1"])
    compact("tsk_birds")
    write_words(compact=True)
    named = library.store.word_folders()
    assert [p for p in _texts_on_disk(library.settings, "starlings") if p.parent.name in named] == []
    assert service.snapshots.refresh()
    assert service.suggest("starl").suggestions == []


@pytest.fixture
def served(library: Library, service: SearchEngine, monkeypatch: pytest.MonkeyPatch) -> SearchEngine:
    """A server for which the library is so large that it answers before all words are read."""
    monkeypatch.setattr(library_words, "_READ_FIRST", 0)
    monkeypatch.setattr(library_words, "_RETRY_SECONDS", 0.02)
    return service


def _wait(is_done: Callable[[], bool]) -> None:
    waiting = threading.Event()
    for _ in range(int(TIMEOUT_SECONDS / 0.02)):
        if is_done():
            return
        waiting.wait(0.02)
    raise AssertionError("it took too long")


def test_searches_rank_by_the_visual_score_until_the_words_are_read(
    served: SearchEngine, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_read = threading.Event()
    read_texts = library_words.read_texts

    def read(ids: Ids) -> Any:
        assert may_read.wait(TIMEOUT_SECONDS)
        return read_texts(ids)

    monkeypatch.setattr(library_words, "read_texts", read)
    served.snapshots.start()
    _wait(lambda: served.snapshots.loaded() is not None)
    response, readiness = served.search(BIRDS[0]), served.snapshots.readiness()
    assert response.results[0].words == []
    assert "visual score alone" in response.degraded["words"]
    with pytest.raises(Unavailable, match="A filter needs the videos' metadata"):
        served.search(BIRDS[0], min_duration=1)
    assert readiness.ready
    assert readiness.degraded["words"] == readiness.checks["words"] == response.degraded["words"]
    may_read.set()
    words = served.read_cache.words
    _wait(lambda: words.problem is None)
    assert served.search(BIRDS[0]).degraded == served.snapshots.readiness().degraded == {}
    assert served.search(BIRDS[0]).matching == 1
    assert len(library.store.word_folders()) == 3
    assert not words.texts.words.segments[0].segment.rows.flags.writeable, "the files are mapped"


def test_damage_in_mapped_files_is_repaired_while_searches_go_on(
    served: SearchEngine, library: Library
) -> None:
    write_words()
    assert served.snapshots.refresh()
    words = served.read_cache.words
    with word_files(library.settings).lock():  # while another process writes, so that this one waits
        _damage(library.settings)
        _in_thread(LibraryWords.verify, words)
        assert words.problem is None, "what was verified is not read again"
        words._files._verified.clear()  # type: ignore[union-attr]
        words._verified = None
        _in_thread(LibraryWords.verify, words)
        assert "words" in served.search(CARS[0]).degraded
    _wait(lambda: words.problem is None)
    assert served.search(CARS[0]).matching == 1
    assert word_files(library.settings).find_damage() is None
