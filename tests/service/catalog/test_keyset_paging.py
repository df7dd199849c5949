"""Pages of lists: every surviving row is listed once, whatever is inserted and deleted between the pages."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import delete

from cinestrata_schemas.tasks import TaskDetails
from service.catalog.database import session_scope
from service.catalog.tables import Shard, Task, Video
from service.core.errors import InvalidInput, NotFound
from service.core.list_parameters import ReleaseFilters, TaskFilters, VideoFilters
from service.core.settings import Settings
from service.library import library_listing
from tests.catalog_rows import add_release_and_shard

Post = Callable[..., TaskDetails]
START = datetime(2026, 1, 1, tzinfo=UTC)


def _add_tasks(numbers: range, dice: random.Random) -> list[str]:
    tasks = [
        Task(
            id=f"t{number:03}",
            position=number,
            name=f"Küche {dice.randrange(10**9)}",
            method=dice.choice(["analytic", "zero_shot"]),
            state=dice.choice(["queued", "ready", "failed"]),
            progress={"stage": "queued"},
            learned_order=number if dice.random() < 0.5 else None,
            created_at=START + timedelta(seconds=dice.randrange(5)),
        )
        for number in numbers
    ]
    with session_scope(write=True) as session:
        session.add_all(tasks)
    return [task.id for task in tasks]


def _add_videos(numbers: range, dice: random.Random, task: str) -> list[str]:
    videos = [
        Video(
            id=f"v{dice.randrange(10**9)}-{number}",
            task_id=task,
            uri=f"{number}.mp4",
            status=dice.choice(["accepted", "rejected"]),
            reason="no frame",
            duration=dice.choice([None, 1.5, 2.0, 0.1 + 0.2]),
            bytes=dice.choice([None, 7, 2**40]),
        )
        for number in numbers
    ]
    with session_scope(write=True) as session:
        session.add_all(videos)
    return [video.id for video in videos]


def _delete(table: type[Any], ids: list[str] | None) -> None:
    with session_scope(write=True) as session:
        session.execute(delete(table) if ids is None else delete(table).where(table.id.in_(ids)))


VIDEO_SORTS = ["added", "-added", "id", "-id", "duration", "-duration", "bytes", "-bytes"]
TASK_SORTS = ["position", "-position", "name", "-name", "created", "-created", "learned", "-learned"]


def test_changes_between_pages_neither_repeat_nor_hide_videos(catalog: Settings) -> None:
    _add_tasks(range(1), random.Random(0))
    for sort in VIDEO_SORTS:
        dice = random.Random(sort)
        _check_pages(
            Video,
            lambda first, count, dice=dice: _add_videos(range(first, first + count), dice, "t000"),
            lambda **page: library_listing.list_videos(VideoFilters(task="t000", **page)),
            sort,
            dice,
        )


def test_changes_between_pages_neither_repeat_nor_hide_tasks(catalog: Settings) -> None:
    for sort in TASK_SORTS:
        dice = random.Random(sort)
        _check_pages(
            Task,
            # Rows that are added later have positions between those of the first ones.
            lambda first, count, dice=dice: _add_tasks(
                range(2 * (first % 100) + first // 100, 2 * (first % 100 + count), 2), dice
            ),
            lambda **page: library_listing.list_tasks(TaskFilters(**page)),
            sort,
            dice,
        )


def _check_pages(
    table: type[Any],
    add: Callable[[int, int], list[str]],
    list_page: Callable[..., Any],
    sort: str,
    dice: random.Random,
) -> None:
    """Read all pages, and check that each surviving row is listed once and in order.

    Args:
        add: Adds rows with numbers from the first one, given how many, and returns their IDs.
        list_page: Lists a page of the table.
    """

    def rows_of(page: Any) -> list[str]:
        return [row.id for row in (page.videos if table is Video else page.tasks)]

    before = add(0, 18)
    ordered = rows_of(list_page(sort=sort, limit=1000))
    assert sorted(ordered) == sorted(before)
    seen: list[str] = []
    deleted: set[str] = set()
    page = list_page(sort=sort, limit=dice.randint(1, 7))
    for turn in range(100):
        seen += rows_of(page)
        if page.next_cursor is None:
            break
        if turn < 3:
            add(100 + 3 * turn, 3)
        gone = [*dice.sample(before, 2), seen[-1]]  # the row of the cursor, too
        _delete(table, gone)
        deleted.update(gone)
        page = list_page(sort=sort, cursor=page.next_cursor, limit=dice.randint(1, 7))
    assert page.next_cursor is None
    assert len(seen) == len(set(seen))
    assert set(before) - deleted <= set(seen)
    assert [row for row in seen if row in before] == [row for row in ordered if row in set(seen)]
    _delete(table, None)


def test_filters_of_videos(catalog: Settings) -> None:
    _add_tasks(range(2), random.Random(0))
    rows = [
        ("a", "t000", "Nacht/ÜBUNG.mp4", ["a taxi"], "train"),
        ("b", "t000", "b.mp4", ['Eine Straße mit "Zitat", 100% Öl'], "test"),
        ("c", "t001", "c.mp4", ["日本語の字幕"], None),
        ("Taxi-1", "t001", "d.mp4", [], None),
        ("e", "t001", "e.mp4", ["a kite"], "fold"),
    ]
    with session_scope(write=True) as session:
        for video_id, task, uri, captions, split in rows:
            status = "accepted" if split else "pending"
            fields = {"uri": uri, "captions": captions, "effective_split": split, "status": status}
            session.add(Video(id=video_id, task_id=task, **fields))

    def ids(**filters: Any) -> list[str]:
        return [
            video.id for video in library_listing.list_videos(VideoFilters.model_construct(**filters)).videos
        ]

    assert ids(text="TAXI") == ["a", "Taxi-1"]
    assert ids(text="übung") == ids(text="ÜBUNG") == ids(text="Übung.mp4") == ["a"]
    assert ids(text="straße mit") == ids(text='"zitat"') == ids(text="100% öl") == ["b"]
    assert ids(text="字幕") == ["c"]
    assert ids(text="10%0") == ids(text="_") == ids(text="\0") == ids(text="\ud800") == []
    assert ids(text="taxi", task="t001") == ["Taxi-1"]
    assert ids(status="pending") == ["c", "Taxi-1"]
    assert ids(split="test") == ["b"]
    assert ids(split="train") == ["a", "e"], "a fold is learned, too"
    assert ids(split="fold") == ["e"]
    with pytest.raises(NotFound):
        library_listing.list_videos(VideoFilters.model_construct(task="a\0b"))


def test_rejected_videos_of_a_domain_include_those_of_its_appends(sqlite_catalog: Settings) -> None:
    _add_tasks(range(3), random.Random(0))
    with session_scope(write=True) as session:
        session.get_one(Task, "t001").target_id = "t000"
        for task in ("t000", "t001", "t002"):
            session.add(
                Video(id=f"bad-{task}", task_id=task, uri="x.mp4", status="rejected", reason=f"Bad {task}")
            )
            session.add(Video(id=f"good-{task}", task_id=task, uri="y.mp4", status="accepted"))
    page = library_listing.list_videos(VideoFilters(task="t000", status="rejected"))
    assert [(video.id, video.task_id, video.reason) for video in page.videos] == [
        ("bad-t000", "t000", "Bad t000"),
        ("bad-t001", "t001", "Bad t001"),
    ]
    rejected = library_listing.list_videos(VideoFilters(task="t000", status="rejected", text="BAD T001"))
    assert [video.id for video in rejected.videos] == ["bad-t001"]


@pytest.mark.slow
def test_details_of_tasks_hold_the_first_rejected_videos(catalog: Settings) -> None:
    _add_tasks(range(2), random.Random(0))
    with session_scope(write=True) as session:
        for task in ("t000", "t001"):
            session.add_all(
                Video(id=f"{task}-{number:03}", task_id=task, uri="x", status="rejected", reason="r")
                for number in range(103)
            )
    for task in library_listing.list_tasks(TaskFilters()).tasks:
        assert [video.id for video in task.rejected] == [f"{task.id}-{number:03}" for number in range(100)]


def test_filters_of_tasks(sqlite_catalog: Settings, post: Post) -> None:
    kitchen, night = post("Kitchen"), post("night", method="zero_shot")
    with session_scope(write=True) as session:
        session.get_one(Task, kitchen.id).state = "ready"
        fields = {"position": 9, "method": "analytic", "progress": {"stage": "queued"}, "created_at": START}
        session.add(Task(id="t9", name="Kitchen (append t9)", target_id=kitchen.id, **fields))

    def ids(**filters: Any) -> list[str]:
        return [task.id for task in library_listing.list_tasks(TaskFilters(**filters)).tasks]

    assert ids(state=["ready"]) == [kitchen.id]
    assert ids(state=["ready", "queued"]) == [kitchen.id, night.id, "t9"]
    assert ids(kind="append") == ids(into="Kitchen") == ids(into=kitchen.id) == ["t9"]
    assert ids(kind="domain", text="kitCHEN") == [kitchen.id]
    assert ids(text="kitchen") == [kitchen.id, "t9"]
    assert ids(method="zero_shot") == [night.id]
    with pytest.raises(NotFound):
        ids(into="nowhere")


def test_releases_are_filtered_and_sorted(sqlite_catalog: Settings, post: Post) -> None:
    for order, size in enumerate([30, 10, 20], 1):
        task = post(f"domain {order}")
        shard = Shard(id=f"s{order}", release_id=f"r{order}", fingerprint="f", count=1, dim=8, bytes=1)
        add_release_and_shard(
            task.id, shard, order=order, kind="tame" if order > 1 else "mapped", release_bytes=size
        )

    def ids(**filters: Any) -> list[str]:
        return [release.id for release in library_listing.list_releases(ReleaseFilters(**filters)).releases]

    first = library_listing.list_releases(ReleaseFilters(limit=2))
    assert [(release.id, release.task, release.current) for release in first.releases] == [
        ("r1", "domain 1", False),
        ("r2", "domain 2", False),
    ]
    assert ids(cursor=first.next_cursor) == ["r3"]
    assert ids(sort="-bytes") == ["r1", "r3", "r2"]
    assert ids(kind="tame") == ["r2", "r3"]
    assert ids(task="domain 3") == ["r3"]
    assert (ids(method="other"), ids(current=True)) == ([], [])


def _cursor(*values: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(values).encode()).rstrip(b"=").decode()


def test_damaged_cursor_is_refused(catalog: Settings) -> None:
    for cursor in (
        "",
        "x",
        "ü",
        "9" * 3000,
        _cursor(),
        _cursor("duration"),
        _cursor("duration", 1.0),
        _cursor("duration", 1.0, 2, 3),
        _cursor("duration", "1.0", 2),
        _cursor("duration", True, 2),
        _cursor("duration", 1.0, None),
        _cursor("duration", 1.0, 2**63),
        _cursor("duration", float("nan"), 2),
        _cursor("duration", 10**400, 2),
        _cursor("added", 2),
        base64.urlsafe_b64encode(b"[" * 1400).decode().rstrip("="),
    ):
        with pytest.raises(InvalidInput) as refusal:
            library_listing.list_videos(VideoFilters.model_construct(sort="duration", cursor=cursor))
        assert [error.field for error in refusal.value.errors] == ["cursor"]
    for text in ("a\0", "\ud800"):
        with pytest.raises(InvalidInput):
            library_listing.list_videos(
                VideoFilters.model_construct(sort="id", cursor=_cursor("id", text, 1))
            )
