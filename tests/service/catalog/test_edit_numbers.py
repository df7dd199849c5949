"""Readers that follow the numbers of edits miss none, however long the transactions of others take."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import Any

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from cinestrata_schemas.tasks import TaskDetails
from service.catalog.database import continue_edit_numbers, engine, read_last_edit, session_scope
from service.catalog.domain_videos import number_edits, read_edited_videos
from service.catalog.migrations import upgrade
from service.catalog.tables import EditCounter, Video
from service.core.settings import Settings

PAUSE = Event()
VIDEOS = 8


@pytest.fixture
def videos(catalog: Settings, post: Callable[..., TaskDetails]) -> list[int]:
    """Vector IDs of the videos of a task."""
    post(videos=VIDEOS)
    with session_scope() as session:
        return list(session.scalars(select(Video.vector_id)))


@contextmanager
def _edit(video: int, value: Any) -> Iterator[Session]:
    """Edit a video, and commit at the end of the block."""
    with session_scope(write=True) as session:
        session.execute(update(Video).where(Video.vector_id == video).values(extra={"value": value}))
        number_edits(session, [video])
        yield session


class Reader:
    """A copy of the videos' values, which follows edits."""

    def __init__(self) -> None:
        self.edit, self.values = read_last_edit(), dict[int, Any]()

    def follow(self) -> None:
        number, edited = read_last_edit(), read_edited_videos(self.edit)
        with session_scope() as session:
            rows = session.execute(select(Video.vector_id, Video.extra).where(Video.vector_id.in_(edited)))
            self.values |= {video: extra["value"] for video, extra in rows}
        self.edit = number


def test_edits_that_commit_out_of_order_are_all_read(videos: list[int]) -> None:
    is_postgresql = engine().dialect.name == "postgresql"
    reader = Reader()
    with _edit(videos[0], "slow"):
        if is_postgresql:  # SQLite has one writer at a time
            with _edit(videos[1], "fast"):  # does not wait for the other
                pass
            reader.follow()
            assert reader.values == {videos[1]: "fast"}
    reader.follow()
    assert reader.values.pop(videos[0]) == "slow"
    with _edit(videos[2], "last"):
        pass
    before = reader.edit
    reader.follow()
    assert reader.values[videos[2]] == "last"
    assert reader.edit > before
    assert read_edited_videos(reader.edit) == {}


def test_no_edit_is_missed_while_many_write(videos: list[int]) -> None:
    reader, is_over = Reader(), Event()

    def write(seed: int) -> None:
        rng = random.Random(seed)
        for value in range(20):
            with _edit(rng.choice(videos), [seed, value]) as session:
                session.flush()
                PAUSE.wait(rng.choice([0, 0, 0.01]))

    def follow() -> None:
        while not is_over.is_set():
            reader.follow()

    with ThreadPoolExecutor(5) as threads:
        following = threads.submit(follow)
        list(threads.map(write, range(4)))
        is_over.set()
        following.result()
    reader.follow()
    with session_scope() as session:
        stored = {video: extra for video, extra in session.execute(select(Video.vector_id, Video.extra))}
    assert reader.values == {video: extra["value"] for video, extra in stored.items() if extra}


def test_numbers_continue_above_those_of_another_server(videos: list[int], catalog: Settings) -> None:
    reader = Reader()
    with session_scope(write=True) as session:
        session.execute(update(Video).where(Video.vector_id == videos[0]).values(last_edit=10**12))
        fault = continue_edit_numbers(session.connection(), repair=False)
        assert fault is not None
        assert fault.endswith("but videos.last_edit reaches 1000000000000")
    if engine().dialect.name == "postgresql":
        upgrade(catalog)
    else:
        with session_scope(write=True) as session:
            continue_edit_numbers(session.connection())
    reader.edit = read_last_edit()
    with _edit(videos[1], "later"):
        pass
    assert list(read_edited_videos(reader.edit)) == [videos[1]]
    with session_scope() as session:
        assert session.scalar(select(EditCounter.last_edit)) >= 10**12
