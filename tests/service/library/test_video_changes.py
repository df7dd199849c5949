"""Edits of captions and metadata, and feedback: votes, limits, takeback, and the texts that searches read."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from sqlalchemy import delete, func, select, update

from cinestrata_schemas.tasks import TaskDetails
from cinestrata_schemas.videos import Cue, FeedbackDetails, FeedbackSpec, VideoPatch
from index.words.text_analysis import parse_query
from index.words.word_forms import words_key
from service.access.audit_log import Actor, acting_as
from service.catalog.database import read_last_edit, session_scope
from service.catalog.domain_videos import read_edited_videos
from service.catalog.tables import Feedback, Task, Video
from service.core import request_limits
from service.core.errors import Conflict, InvalidInput, NotFound, PreconditionFailed
from service.core.list_parameters import FeedbackFilters
from service.core.settings import Settings
from service.library import video_changes
from service.library.deletion import delete_videos
from service.library.library_listing import get_video
from service.library.video_changes import edit_video, entity_tag, give_feedback, list_feedback, take_back
from service.search.catalog_texts import MAX_VOTES, read_texts
from service.search.library_words import LibraryWords
from service.tasks import commands

Post = Callable[..., TaskDetails]


@pytest.fixture
def task(catalog: Settings, post: Post) -> str:
    """ID of a task with the videos ``a`` and ``b``, and the rejected copy ``c``."""
    return _add_videos(post)


@pytest.fixture
def sqlite_task(sqlite_catalog: Settings, post: Post) -> str:
    """The same on SQLite alone."""
    return _add_videos(post)


def _add_videos(post: Post) -> str:
    task = post("birds", videos=1).id
    with session_scope(write=True) as session:
        for name in "abc":
            extra = {"place": "pond", "lens": {"mm": 35, "name": "wide"}}
            status = "rejected" if name == "c" else "accepted"
            fields = {"uri": "x.mp4", "captions": ["one"], "extra": extra, "status": status}
            session.add(Video(id=name, task_id=task, **fields))
    return task


@pytest.fixture
def video(task: str) -> int:
    """Vector ID of the video ``a``."""
    return _vector_id()


@pytest.fixture
def sqlite_video(sqlite_task: str) -> int:
    """The same on SQLite alone."""
    return _vector_id()


def _vector_id() -> int:
    with session_scope() as session:
        return session.scalars(select(Video.vector_id).where(Video.id == "a")).one()


def _edit(video: str, **fields: Any) -> Any:
    return edit_video(video, VideoPatch.model_validate(fields))


def _count_edits(task_id: str) -> tuple[int, int]:
    """Read the number of caption edits and of metadata edits."""
    with session_scope() as session:
        task = session.get_one(Task, task_id)
        return task.caption_edits, task.metadata_edits


def test_edit_merges_metadata_and_replaces_captions(task: str) -> None:
    edited = _edit("a", metadata={"place": None, "lens": {"mm": 50, "name": None}, "tags": ["x", None]})
    assert edited.metadata == {"lens": {"mm": 50}, "tags": ["x", None]}
    assert edited.captions == ["one"]
    edited = _edit("a", captions=[" zwei\u0308  drei ", "夜"])
    assert edited.captions == ["zwe\u00ef drei", "夜"]
    assert edited == get_video("a")
    assert get_video("b").captions == ["one"]
    assert _edit("a", captions=None, metadata=None).metadata == get_video("a").metadata == {}
    assert get_video("a").captions == []
    assert _count_edits(task) == (2, 2)
    logged = [event.data for event in commands.events_after(task) if "edited" in event.data]
    assert [data["edited"] for data in logged] == [["metadata"], ["captions"], ["captions", "metadata"]]
    assert {data["video_id"] for data in logged} == {"a"}


def test_edit_without_a_difference_changes_nothing(sqlite_task: str) -> None:
    events = len(commands.events_after(sqlite_task))
    before = get_video("a")
    for fields in ({}, {"captions": ["one "]}, {"metadata": {"place": "pond", "absent": None, "lens": {}}}):
        assert _edit("a", **fields) == before
    assert len(commands.events_after(sqlite_task)) == events
    assert _count_edits(sqlite_task) == (0, 0)


def test_edit_and_deletion_in_an_append_count_for_its_domain(sqlite_task: str, post: Post) -> None:
    append = post("append").id
    with session_scope(write=True) as session:
        session.get_one(Task, append).target_id = sqlite_task
        session.add(Video(id="new", task_id=append, uri="x", captions=[]))
    _edit("new", captions=["later"])
    assert _count_edits(sqlite_task) == (1, 0)
    delete_videos(["new"])
    assert _count_edits(sqlite_task) == (1, 1)


def test_concurrent_edits_of_fields_are_all_kept(task: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: _edit("a", metadata={f"n{n}": n}), range(16)))
    assert get_video("a").metadata.items() >= {f"n{n}": n for n in range(16)}.items()
    assert _count_edits(task) == (0, 16)


def test_condition_prevents_lost_updates(sqlite_task: str) -> None:
    tag = entity_tag(get_video("a"))
    patch = VideoPatch(captions=["two"])
    edited = edit_video("a", patch, expected_tag=f'"other", {tag}')
    with pytest.raises(PreconditionFailed):
        edit_video("a", VideoPatch(captions=["three"]), expected_tag=tag)
    assert get_video("a").captions == ["two"]
    edited = edit_video("a", VideoPatch(captions=["four"]), expected_tag=entity_tag(edited))
    assert edited.captions == ["four"]
    assert edit_video("a", patch, expected_tag="*").captions == ["two"]


def _nested(depth: int) -> dict[str, Any]:
    return {"x": _nested(depth - 1)} if depth else {"x": 1}


_CUE = Cue(start=1, end=2, text="hello")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"captions": ["fine", " "]}, "captions[1]"),
        ({"captions": ["x"] * 65}, "captions"),
        ({"transcript": [_CUE, Cue(start=2, end=2, text="x")]}, "transcript[1].end"),
        ({"transcript": [Cue(start=0, end=2, text=" ")]}, "transcript[0].text"),
        ({"transcript": [Cue(start=0, end=2, text="x" * 2001)]}, "transcript[0].text"),
        ({"transcript": [_CUE] * 20_001}, "transcript"),
        ({"transcript": [Cue(start=0, end=2, text="x" * 2000)] * 501}, "transcript"),
        ({"metadata": {"note": "\0"}}, "metadata"),
        ({"metadata": _nested(400)}, "metadata"),
        ({"metadata": {"note": "x" * 16_400}}, "metadata"),
    ],
)
def test_invalid_edit_is_refused(sqlite_task: str, fields: dict[str, Any], field: str) -> None:
    before = get_video("a")
    with pytest.raises(InvalidInput) as refusal:
        edit_video("a", VideoPatch.model_construct(set(fields), **fields))
    assert [error.field for error in refusal.value.errors] == [field]
    assert get_video("a") == before


def test_edit_of_a_copy_is_refused_with_the_name_of_its_original(task: str) -> None:
    """The copy takes over the captions of its original when its domain is ready."""
    with session_scope(write=True) as session:
        original = session.scalars(select(Video.vector_id).where(Video.id == "a")).one()
        session.execute(update(Video).where(Video.id == "b").values(copy_of=original))
    before = get_video("b")
    for fields in ({"captions": ["two"]}, {"metadata": {"place": "lake"}}):
        with pytest.raises(Conflict, match=r"'b' will replace 'a'.*Edit 'a' instead"):
            _edit("b", **fields)
    assert get_video("b") == before
    assert _edit("a", captions=["two"]).captions == ["two"]


def test_merged_metadata_is_limited_as_a_whole(sqlite_task: str) -> None:
    _edit("a", metadata={"first": "x" * 10_000})
    with pytest.raises(InvalidInput, match="bytes"):
        _edit("a", metadata={"second": "x" * 10_000})
    _edit("a", metadata={"first": None, "second": "x" * 10_000})


def _give(caller: str, text: str, verdict: Any = "right", video: str = "a") -> FeedbackDetails:
    with acting_as(Actor("user", caller)):
        return give_feedback(FeedbackSpec(text=text, video_id=video, verdict=verdict))


def _feedback_of(video: int) -> list[tuple[str, int]]:
    texts = read_texts(np.array([video])).texts[video]
    return [(text.text, text.votes) for text in texts if text.votes]


def test_votes_of_callers_for_the_same_words_are_counted_together(video: int) -> None:
    for caller, text in (("ada", "A dog runs"), ("bob", "running dogs"), ("cyd", "the dog runs!")):
        _give(caller, text)
    assert _feedback_of(video) == [("A dog runs", 3)]
    _give("dan", "dog runs", "wrong")
    assert _feedback_of(video) == [("A dog runs", 2)]
    _give("eve", "a cat")
    _give("fay", "a cat", "wrong")
    assert _feedback_of(video) == [("A dog runs", 2)], "a tie is no verdict"
    for caller in ("ada", "bob", "cyd"):
        _give(caller, "dog run", "wrong")
    assert _feedback_of(video) == [("dog run", -4)]
    assert _feedback_of(video + 1) == []


def test_caller_has_one_vote_however_often_it_is_given(video: int) -> None:
    first = _give("ada", "a dog")
    number = read_last_edit()
    assert _give("ada", "a dog") == first
    assert read_edited_videos(number) == {}, "a repetition makes no process read the video again"
    for text in ("dogs", "THE DOG", "dog"):
        assert _give("ada", text).id == first.id
    assert _feedback_of(video) == [("dog", 1)]
    assert (_give("ada", "dog", "wrong").id, _feedback_of(video)) == (first.id, [("dog", -1)])


def test_concurrent_repetitions_are_one_entry(video: int) -> None:
    with ThreadPoolExecutor(4) as pool:
        given = pool.map(lambda number: _give("ada", "a dog", ("right", "wrong")[number % 2]), range(12))
        assert len({entry.id for entry in given}) == 1
    assert len(_feedback_of(video)) == 1


def test_feedback_is_listed_and_taken_back(video: int) -> None:
    dog, cat = _give("ada", "a dog"), _give("ada", "a cat", "wrong", "b")
    other = _give("bob", "a dog")

    def ids(**conditions: Any) -> list[int]:
        return [entry.id for entry in list_feedback(FeedbackFilters(**conditions)).feedback]

    assert ids() == [other.id, cat.id, dog.id]
    assert ids(caller="ada", sort="time") == [dog.id, cat.id]
    assert ids(video_id="b") == ids(verdict="wrong") == ids(text="CAT") == [cat.id]
    page = list_feedback(FeedbackFilters(limit=2))
    assert [
        entry.id for entry in list_feedback(FeedbackFilters(limit=2, cursor=page.next_cursor)).feedback
    ] == [dog.id]
    with acting_as(Actor("user", "ada")):
        assert ids(own=True) == [cat.id, dog.id]
        with pytest.raises(NotFound):
            take_back(other.id, own=True)
    with acting_as(Actor("key", "ada")):  # a key with the name of a user
        assert ids(own=True) == []
    take_back(dog.id)
    assert _feedback_of(video) == [("a dog", 1)]
    take_back(other.id)
    assert _feedback_of(video) == []
    with pytest.raises(NotFound):
        take_back(other.id)


def test_feedback_of_a_version_with_other_words_is_replaced_and_counted(sqlite_video: int) -> None:
    _give("ada", "don't stop")
    _give("bob", "the dog")
    with session_scope(write=True) as session:
        session.execute(update(Feedback).values(words_key="earlier"))
    _give("cyd", "dont stop")
    assert _feedback_of(sqlite_video) == [("don't stop", 2), ("the dog", 1)]
    _give("ada", "don’t stop", "wrong")
    _give("ada", "don’t stop", "wrong")
    assert _feedback_of(sqlite_video) == [("the dog", 1)]
    assert len(list_feedback(FeedbackFilters()).feedback) == 3


def test_feedback_goes_with_its_video(video: int) -> None:
    _give("ada", "a dog")
    with session_scope(write=True) as session:
        session.execute(delete(Video).where(Video.id == "a"))
    with session_scope() as session:
        assert session.scalar(select(func.count()).select_from(Feedback)) == 0
    with pytest.raises(NotFound):
        _give("ada", "a dog")


@pytest.mark.parametrize("name", ["c", "none", "", "a\0", "copy"])
def test_video_that_no_search_finds_is_refused(sqlite_video: int, name: str) -> None:
    with session_scope(write=True) as session:
        session.execute(update(Video).where(Video.id == "b").values(id="copy", copy_of=sqlite_video))
    with pytest.raises(NotFound):
        _give("ada", "a dog", video=name)


@pytest.mark.parametrize("text", ["", "  ", "!?", "→", "word " * 10_000, "a\0b", "\ud800"])
def test_text_that_cannot_be_searched_is_refused(sqlite_video: int, text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        # Pydantic refuses lone surrogates of JSON; the service does not rely on it.
        give_feedback(FeedbackSpec.model_construct(text=text, video_id="a", verdict="right"))
    assert refused.value.errors[0].field == "text"


def test_numbers_of_votes_and_of_entries_of_a_caller_are_limited(
    sqlite_video: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_limits, "MAX_FEEDBACK", 4)
    monkeypatch.setattr(request_limits, "MAX_FEEDBACK_ON_A_VIDEO", 3)
    for word in ("dog", "cat", "owl"):
        _give("ada", word)
    with pytest.raises(InvalidInput, match="3 times on this video"):
        _give("ada", "fox")
    _give("ada", "dog", "wrong")  # a replacement
    _give("ada", "dog", video="b")
    with pytest.raises(InvalidInput, match="4 times"):
        _give("ada", "cat", video="b")
    _give("bob", "fox")
    for number in range(MAX_VOTES + 3):
        _give(f"caller {number}", "a lynx")
    assert ("a lynx", MAX_VOTES) in _feedback_of(sqlite_video)


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("A dog", "the dogs", True),
        ("running man", "man runs", True),
        ("Café", "cafe", True),
        ("鳥の声", "鳥の声!", True),
        ("dog's bowl", "dog bowl", True),
        ("a dog", "a red dog", False),
        ("to be", "by", False),
        ("a", "of", False),
        ("鳥", "声", False),
    ],
)
def test_same_words_have_the_same_key(one: str, other: str, is_same: bool) -> None:
    assert (words_key(one) == words_key(other) is not None) == is_same


def test_feedback_whose_transaction_fails_leaves_nothing(video: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("killed")

    number = read_last_edit()
    with monkeypatch.context() as patch:
        patch.setattr(video_changes, "number_edits", fail)
        with pytest.raises(RuntimeError):
            _give("ada", "a dog")
    assert list_feedback(FeedbackFilters()).feedback == _feedback_of(video) == []
    assert read_edited_videos(number) == {}


def test_words_of_every_process_follow_feedback(video: int) -> None:
    processes = [LibraryWords(), LibraryWords()]
    for words in processes:
        words.prepare(np.array([video]))
    dog = _give("ada", "a dog")
    _give("ada", "a cat", "wrong")
    for words in processes:
        index = words.current()
        assert index.lookup(parse_query("dogs")).votes.tolist() == [1]
        assert len(index.lookup(parse_query("cat")).videos) == 0, "a refused text is none of the video"
        assert words.texts.feedback.negative_videos(["cats"])[0].tolist() == [video]
    take_back(dog.id)
    _give("ada", "a cat")
    for words in processes:
        index = words.current()
        assert len(index.lookup(parse_query("dog")).videos) == 0
        assert index.lookup(parse_query("cat")).votes.tolist() == [1]
        assert len(words.texts.feedback.negative_videos(["cats"])[0]) == 0
