"""The words of a library: texts of videos, relevance feedback, and an index that follows the catalog."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import delete, func, select

from cinestrata_schemas.tasks import TaskDetails
from cinestrata_schemas.videos import Cue, VideoPatch
from index.arrays import Ids, video_ids_of
from index.words.text_analysis import parse_query
from index.words.word_index import TextKind, VideoText
from service.catalog.database import CatalogReads, engine, session_scope
from service.catalog.domain_videos import number_edits
from service.catalog.tables import Video
from service.core.errors import Unavailable
from service.core.settings import Settings
from service.library.video_changes import edit_video
from service.search import library_words
from service.search.catalog_texts import MAX_TEXT_CHARS, MAX_VALUES, RelevanceFeedback, texts_of
from service.search.library_words import LibraryWords, VideoTasks

TIMEOUT_SECONDS = 20
Post = Callable[..., TaskDetails]


@pytest.fixture
def reads() -> Iterator[CatalogReads]:
    reads = CatalogReads()
    yield reads
    reads.close()


@pytest.fixture
def words(reads: CatalogReads) -> LibraryWords:
    return LibraryWords(reads)


def _add(post: Post, *captions: str, name: str = "birds") -> Ids:
    """Return the vector IDs of new videos with a caption each, ``<name>-<number>``."""
    task = post(name, videos=1).id
    with session_scope(write=True) as session:
        videos = [
            Video(id=f"{name}-{number}", task_id=task, uri=f"{number}.mp4", captions=[caption], extra={})
            for number, caption in enumerate(captions)
        ]
        session.add_all(videos)
        session.flush()
        return np.array([video.vector_id for video in videos])


def _found(words: LibraryWords, query: str) -> list[int]:
    """Return the IDs of the videos with a text that contains a word."""
    return sorted(set(words.current().lookup(parse_query(query)).videos.tolist()))


def test_index_has_the_videos_of_prepared_snapshots(
    catalog: Settings, post: Post, words: LibraryWords
) -> None:
    assert _found(words, "heron") == []
    heron, owl = _add(post, "a heron", "an owl").tolist()
    assert _found(words, "heron") == []
    words.prepare(np.array([heron]))
    assert (_found(words, "heron"), _found(words, "owl")) == ([heron], [])
    words.prepare(np.array([heron, owl]))
    assert (_found(words, "heron"), _found(words, "owl")) == ([heron], [owl])
    words.retain(np.array([owl]))
    assert (_found(words, "heron"), _found(words, "owl")) == ([], [owl])
    assert words.current().suggest("her", 5) == []
    words.prepare(np.array([heron, owl]))  # such as after a shard was repaired
    assert _found(words, "heron") == [heron]


def test_edits_are_seen_by_the_next_search_in_all_processes(
    catalog: Settings, post: Post, words: LibraryWords, reads: CatalogReads
) -> None:
    videos = _add(post, "a heron", "an owl")
    heron, owl = videos.tolist()
    other = LibraryWords(reads)
    for process in (words, other):
        process.prepare(videos)
    edit_video("birds-0", VideoPatch(captions=["a kingfisher"]))
    for process in (words, other):
        assert (_found(process, "heron"), _found(process, "kingfisher")) == ([], [heron])
    edit_video("birds-1", VideoPatch(metadata={"place": "barn"}))
    edit_video("birds-0", VideoPatch(captions=[], metadata={"tags": ["river", "blue"]}))
    for process in (words, other):
        assert (_found(process, "kingfisher"), _found(process, "blue")) == ([], [heron])
        assert (_found(process, "owl"), _found(process, "barn")) == ([owl], [owl])
    assert words.current().captioned(videos).tolist() == [False, True]


def test_edits_are_seen_while_an_earlier_transaction_goes_on(
    catalog: Settings, post: Post, words: LibraryWords
) -> None:
    if engine().dialect.name != "postgresql":
        pytest.skip("SQLite has one writer at a time")
    videos = _add(post, "a heron")
    words.prepare(videos)
    with engine().begin() as connection:
        connection.execute(select(func.pg_current_xact_id()))
        for caption in ("a stork", "a gull"):
            edit_video("birds-0", VideoPatch(captions=[caption]))
            assert _found(words, caption.split()[1]) == videos.tolist()


def _said(words: LibraryWords, query: str) -> list[int]:
    """Return the IDs of the videos in which a word is said."""
    words.current()
    matched = words.texts.transcripts.lookup(parse_query(query)).videos
    return sorted(set(video_ids_of(matched).tolist()))


def test_transcripts_follow_edits_and_snapshots(
    catalog: Settings, post: Post, words: LibraryWords, reads: CatalogReads
) -> None:
    videos = _add(post, "a heron", "an owl")
    heron, owl = videos.tolist()
    long = [Cue(start=60 * n, end=60 * n + 2, text=f"minute m{n}") for n in range(5)]
    edit_video("birds-0", VideoPatch(transcript=long))
    words.prepare(videos[:1])
    later = LibraryWords(reads)
    later.prepare(videos)
    assert [_said(process, "m4") for process in (words, later)] == [[heron]] * 2
    edit_video("birds-0", VideoPatch(transcript=long[:1]))
    edit_video("birds-1", VideoPatch(transcript=long[3:]))
    assert [_said(words, word) for word in ("m0", "m4")] == [[heron], []]
    assert [_said(later, word) for word in ("m0", "m4")] == [[heron], [owl]]
    assert _found(later, "minute") == []
    later.retain(videos[1:])
    assert [_said(later, word) for word in ("m0", "m4")] == [[], [owl]]
    assert later.texts.transcripts.videos == 2  # the passages of the owl


def test_edits_of_other_videos_are_ignored(sqlite_catalog: Settings, post: Post, words: LibraryWords) -> None:
    videos = _add(post, "a heron", "an owl")
    words.prepare(videos[1:])
    words.retain(videos[:0])  # all of them were deleted
    for number in (0, 1):
        edit_video(f"birds-{number}", VideoPatch(captions=["a stork"]))
    assert words.current().videos == 0
    words.prepare(videos[:1])
    assert _found(words, "stork") == videos[:1].tolist()


def test_edits_before_and_during_the_first_read_are_not_lost(
    catalog: Settings, post: Post, words: LibraryWords, monkeypatch: pytest.MonkeyPatch
) -> None:
    videos = _add(post, "a heron", "an owl", "a gull")
    heron, owl, gull = videos.tolist()
    edit_video("birds-0", VideoPatch(captions=["a stork"]))
    words.prepare(np.array([heron]))
    read_texts = library_words.read_texts

    def edit_after_read(ids: Ids) -> Any:
        texts = read_texts(ids)
        if owl in ids:  # read by the preparation, and not in the index yet
            edit_video("birds-1", VideoPatch(captions=["a buzzard"]))
            assert _found(words, "buzzard") == []
        return texts

    monkeypatch.setattr(library_words, "_CHUNK", 1)
    monkeypatch.setattr(library_words, "read_texts", edit_after_read)
    words.prepare(videos)
    monkeypatch.setattr(library_words, "read_texts", read_texts)
    assert (_found(words, "stork"), _found(words, "gull")) == ([heron], [gull])
    assert (_found(words, "owl"), _found(words, "buzzard")) == ([], [owl])


def test_uncommitted_edits_are_invisible(sqlite_catalog: Settings, post: Post, words: LibraryWords) -> None:
    (heron,) = videos = _add(post, "a heron")
    words.prepare(videos)
    with session_scope(write=True) as session:
        session.get_one(Video, int(heron)).captions = ["a crane"]
        number_edits(session, [int(heron)])
        session.flush()
        assert _found(words, "crane") == []
        session.rollback()
    assert (_found(words, "heron"), _found(words, "crane")) == ([heron], [])


def test_concurrent_edits_are_all_seen(catalog: Settings, post: Post, words: LibraryWords) -> None:
    domains = [_add(post, *["x"] * 5, name=f"domain{number}") for number in range(3)]
    words.prepare(np.concatenate(domains))
    is_done = threading.Event()

    def edit(domain: int) -> None:
        for number in range(5):
            edit_video(f"domain{domain}-{number}", VideoPatch(captions=[f"bird{domain}{number}"]))

    def search() -> None:
        while not is_done.is_set():
            words.current()

    with ThreadPoolExecutor(5) as pool:
        searches = [pool.submit(search) for _ in range(2)]
        for edits in [pool.submit(edit, domain) for domain in range(3)]:
            edits.result(TIMEOUT_SECONDS)
        is_done.set()
        for each in searches:
            each.result(TIMEOUT_SECONDS)
    for domain, videos in enumerate(domains):
        for number, video in enumerate(videos.tolist()):
            assert _found(words, f"bird{domain}{number}") == [video]


def test_deleted_videos_have_no_texts(catalog: Settings, post: Post, words: LibraryWords) -> None:
    videos = _add(post, "a heron", "an owl")
    heron, owl = videos.tolist()
    with session_scope(write=True) as session:
        session.execute(delete(Video).where(Video.vector_id == heron))
    words.prepare(videos)  # the manifest still has the vector
    assert (_found(words, "heron"), _found(words, "owl")) == ([], [owl])


def test_last_words_are_searched_while_the_catalog_is_unreachable(
    sqlite_catalog: Settings,
    post: Post,
    words: LibraryWords,
    reads: CatalogReads,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    videos = _add(post, "a heron", "an owl")
    words.prepare(videos)

    def fail(*_: Any) -> Any:
        raise Unavailable("no")

    edit_video("birds-0", VideoPatch(captions=["a crane"]))
    with monkeypatch.context() as patch:
        for name in ("read_last_edit", "read_edited_videos", "read_texts"):
            with monkeypatch.context() as inner:
                inner.setattr(library_words, name, fail)
                assert _found(words, "heron") == [videos[0]]
                reads.is_interrupted = False
        patch.setattr(library_words, "read_last_edit", fail)
        with pytest.raises(Unavailable):
            words.prepare(np.array([*videos, 99]))
    reads.is_interrupted = False
    assert (_found(words, "heron"), _found(words, "crane")) == ([], [videos[0]])


def test_scattered_ids_are_read(sqlite_catalog: Settings, post: Post, words: LibraryWords) -> None:
    videos = _add(post, *(f"bird{number}" for number in range(1100)))
    words.prepare(videos[::2])
    assert words.current().videos == 550
    words.prepare(videos)
    assert words.current().videos == 1100
    assert [_found(words, f"bird{number}") for number in (1, 2, 1099)] == [[videos[n]] for n in (1, 2, 1099)]


def _names(uri: str) -> list[str]:
    texts = texts_of(uri, [], {})
    assert {text.kind for text in texts} <= {TextKind.NAME}
    return [text.text for text in texts]


@pytest.mark.parametrize(
    ("uri", "names"),
    [
        ("clips/barbell_squat.mp4", ["barbell squat"]),
        ("v_ApplyEyeMakeup_g01.avi", ["v ApplyEyeMakeup g01", "v Apply Eye Makeup g01"]),
        ("HTTPServer.mp4", ["HTTPServer", "HTTP Server"]),
        ("ÉcoleÉté.mp4", ["ÉcoleÉté", "École Été"]),
        ("upload://tsk_0123456789abcdef/a b/my.holiday.mov", ["my.holiday"]),
        ("https://host/media/red%20kite.mp4?signature=abc", ["red kite"]),
        ("s3://bucket/2024/猫.mp4", ["猫"]),
        ("what? a #1.mp4", ["what? a #1"]),
        ("http://[::1/x.mp4", []),
        ("https://host", []),
        ("", []),
    ],
)
def test_name_is_that_of_the_file(uri: str, names: list[str]) -> None:
    assert _names(uri) == names


def test_captions_precede_metadata_and_name() -> None:
    metadata: dict[str, Any] = {
        "title": "Bird song",
        "year": 2024,
        "length": 3.0,
        "ratio": 1.5,
        "is_public": True,
        "nothing": None,
        "tags": ["owl", 7, False, {"colour": "red"}],
        "place": {"city": "Köln", "at": {"lake": "Rhein"}},
    }
    field = TextKind.METADATA
    assert texts_of("owl.mp4", ["an owl", " "], metadata) == [
        VideoText(TextKind.CAPTION, "an owl"),
        VideoText(field, "Bird song", "title"),
        VideoText(field, "2024", "year"),
        VideoText(field, "3", "length"),
        VideoText(field, "1.5", "ratio"),
        VideoText(field, "owl", "tags"),
        VideoText(field, "7", "tags"),
        VideoText(field, "red", "tags.colour"),
        VideoText(field, "Köln", "place.city"),
        VideoText(field, "Rhein", "place.at.lake"),
        VideoText(TextKind.NAME, "owl"),
    ]


def test_number_and_length_of_texts_are_limited() -> None:
    deep: Any = "ground"
    for _ in range(5000):
        deep = {"a": deep}
    assert texts_of("", [], deep)[0].text == "ground"
    texts = texts_of("x.mp4", ["c" * 9999], {"numbers": list(range(9999)), "text": "t" * 9999})
    assert len(texts) == 2 + MAX_VALUES
    assert max(len(text.text) for text in texts) == MAX_TEXT_CHARS


WORDS = ("dog", "cat", "a dog runs")
feedback_changes = st.dictionaries(
    st.integers(1, 6), st.dictionaries(st.sampled_from(WORDS), st.integers(-3, 3))
)


@given(st.lists(feedback_changes, max_size=5))
def test_last_texts_of_each_video_count(changes: Sequence[dict[int, dict[str, int]]]) -> None:
    texts, expected = RelevanceFeedback(), dict[int, dict[str, int]]()
    for change in changes:
        before = texts
        texts = texts.replace(
            {
                video: [VideoText(TextKind.CONFIRMED, text, votes=votes) for text, votes in by_text.items()]
                for video, by_text in change.items()
            }
        )
        negative = [before.negative_videos([word])[0].tolist() for word in WORDS]
        assert negative == [
            sorted(v for v, by_text in expected.items() if by_text.get(word, 0) < 0) for word in WORDS
        ], "the index before a change stays as it is"
        expected |= change
    for word in WORDS:
        videos, votes = texts.negative_videos([word, f"the {word}s"])
        against = {video: -by_text[word] for video, by_text in expected.items() if by_text.get(word, 0) < 0}
        assert dict(zip(videos.tolist(), votes.tolist(), strict=True)) == against
        assert videos.tolist() == sorted(videos.tolist())
    for video, by_text in expected.items():
        confirmed = {text.text: text.votes for _, text in texts.texts.get(video, ()) if text.votes > 0}
        assert confirmed == {text: votes for text, votes in by_text.items() if votes > 0}


@pytest.mark.parametrize("scale", [1, 10**9])
def test_videos_are_located_among_dense_and_scattered_ids(scale: int) -> None:
    tasks = [np.array([5, 8]) * scale, np.array([], np.int64), np.array([6, 30]) * scale]
    positions = VideoTasks(tasks)
    assert positions.videos.tolist() == [5 * scale, 6 * scale, 8 * scale, 30 * scale]
    wanted = np.array([30, 5, 7, 6, 4, 31, 8, 0, -3, 1 << 20]) * scale
    located = positions.locate(wanted)
    assert (located.dtype, located.tolist()) == (np.int32, [2, 0, -1, 2, -1, -1, 0, -1, -1, -1])
    assert positions.locate(np.array([], np.int64)).tolist() == []


def test_empty_snapshot_contains_no_video() -> None:
    for tasks in ([], [np.array([], np.int64)]):
        positions = VideoTasks(tasks)
        assert len(positions.videos) == 0
        assert positions.locate(np.array([0, 1, 5])).tolist() == [-1, -1, -1]
