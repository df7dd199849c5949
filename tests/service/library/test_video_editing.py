"""Edits of captions and metadata in the catalog."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import select, update

from cinestrata_schemas.tasks import TaskDetails
from cinestrata_schemas.videos import Cue, VideoPatch
from service.catalog.database import session_scope
from service.catalog.domain_videos import read_caption_edits, read_metadata_edits
from service.catalog.tables import Task, Video
from service.core.errors import Conflict, InvalidInput, PreconditionFailed
from service.core.settings import Settings
from service.library.deletion import delete_videos
from service.library.video_changes import edit_video, entity_tag
from service.library.video_listing import get_video
from service.tasks import commands

Post = Callable[..., TaskDetails]


@pytest.fixture
def task(catalog: Settings, post: Post) -> str:
    """ID of a task with the videos ``a`` and ``b``."""
    return _add_videos(post("birds", videos=1).id)


@pytest.fixture
def sqlite_task(sqlite_catalog: Settings, post: Post) -> str:
    """The same on SQLite alone."""
    return _add_videos(post("birds", videos=1).id)


def _add_videos(task_id: str) -> str:
    with session_scope(write=True) as session:
        for video in ("a", "b"):
            extra = {"place": "pond", "lens": {"mm": 35, "name": "wide"}}
            session.add(Video(id=video, task_id=task_id, uri="x", captions=["one"], extra=extra))
    return task_id


def _edit(video: str, **fields: Any) -> Any:
    return edit_video(video, VideoPatch.model_validate(fields))


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
    assert (read_caption_edits(), read_metadata_edits()) == ({task: 2}, {task: 2})
    logged = [event.data for event in commands.events_after(task) if "edited" in event.data]
    assert [data["edited"] for data in logged] == [["metadata"], ["captions"], ["captions", "metadata"]]
    assert {data["video_id"] for data in logged} == {"a"}


def test_edit_without_a_difference_changes_nothing(sqlite_task: str) -> None:
    events = len(commands.events_after(sqlite_task))
    before = get_video("a")
    for fields in ({}, {"captions": ["one "]}, {"metadata": {"place": "pond", "absent": None, "lens": {}}}):
        assert _edit("a", **fields) == before
    assert len(commands.events_after(sqlite_task)) == events
    assert read_caption_edits() == read_metadata_edits() == {}


def test_edit_and_deletion_in_an_append_count_for_its_domain(sqlite_task: str, post: Post) -> None:
    append = post("append").id
    with session_scope(write=True) as session:
        session.get_one(Task, append).target_id = sqlite_task
        session.add(Video(id="new", task_id=append, uri="x", captions=[]))
    _edit("new", captions=["later"])
    assert (read_caption_edits(), read_metadata_edits()) == ({sqlite_task: 1}, {})
    delete_videos(["new"])
    assert (read_caption_edits(), read_metadata_edits()) == ({sqlite_task: 1}, {sqlite_task: 1})


def test_concurrent_edits_of_fields_are_all_kept(task: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: _edit("a", metadata={f"n{n}": n}), range(16)))
    assert get_video("a").metadata.items() >= {f"n{n}": n for n in range(16)}.items()
    assert read_metadata_edits() == {task: 16}


def test_condition_prevents_lost_updates(sqlite_task: str) -> None:
    tag = entity_tag(get_video("a"))
    patch = VideoPatch(captions=["two"])
    edited = edit_video("a", patch, expected_tag=f'"other", {tag}')
    with pytest.raises(PreconditionFailed):
        edit_video("a", VideoPatch(captions=["three"]), expected_tag=tag)
    assert get_video("a").captions == ["two"]
    assert edit_video("a", VideoPatch(captions=["four"]), expected_tag=entity_tag(edited)).captions == [
        "four"
    ]
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
