"""Appends and edited captions: reads while an append is published, and routing profiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from sqlalchemy import event, update

from index.shard_store import ShardStore
from index.shards.vector_store import SearchableShard
from index.words.text_analysis import parse_query
from models.routing.confidence_model import ConfidenceModel
from models.routing.routing_profiles import distinct_pieces
from service.catalog.database import CatalogReads, engine, now, session_scope
from service.catalog.domain_videos import count_edit, replace_moments, store_calibration
from service.catalog.tables import Task, Video
from service.core.settings import Settings
from service.search import video_search
from service.search.catalog_read_cache import CatalogReadCache
from service.search.engine import SearchEngine
from service.search.library_words import LibraryWords
from service.search.snapshots.appended_captions import appended_profiles
from tests.service.search.caption_library import Library

APPENDS = 600  # an IN (…) of the catalog has at most 500 values


@pytest.fixture
def domain(catalog: Settings, tmp_path: Path) -> SearchableShard:
    """Shard of a domain with a heron and, appended by the last of many appends, a taxi; each in its own catalog row."""
    with session_scope(write=True) as session:
        for number in range(APPENDS + 1):
            name, target = f"birds {number}", "tsk_0" if number else None
            task = Task(
                id=f"tsk_{number}", position=number + 1, name=name, method="zero_shot", target_id=target
            )
            task.state, task.created_at = ("evaluating" if number == APPENDS else "ready"), now(session)
            session.add(task)
        session.flush()
        for task_id, caption in (("tsk_0", "a heron"), (f"tsk_{APPENDS}", "a taxi")):
            session.add(
                Video(id=caption, task_id=task_id, uri="x", captions=[caption], extra={}, status="accepted")
            )
            session.flush()
        ids = sorted(video.vector_id for video in session.query(Video))
    store = ShardStore(tmp_path / "index")
    store.root.mkdir()
    entry = store.write_shard(
        task="tsk_0",
        release="r" * 64,
        fingerprint="f" * 64,
        ids=np.array(ids),
        vectors=np.eye(2, dtype=np.float32),
    )
    return store.open([entry])


def _publish_last_append() -> None:
    """Move the video of the last append to its domain."""
    with session_scope(write=True) as session:
        moved = {"task_id": "tsk_0", "effective_split": "appended"}
        session.execute(update(Video).where(Video.task_id == f"tsk_{APPENDS}").values(moved))


@contextmanager
def append_published_after_the_first_read() -> Iterator[None]:
    """Publish the last append after the first query of videos in the block."""
    remaining = [None]

    def publish(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "videos.captions" in statement and remaining:
            remaining.pop()
            _publish_last_append()

    event.listen(engine(), "after_cursor_execute", publish)
    yield
    event.remove(engine(), "after_cursor_execute", publish)
    assert not remaining


def _profile_tokens(shard: SearchableShard) -> list[int]:
    return appended_profiles({"tsk_0": shard}, {"tsk_0": 1.0}, {})["tsk_0"].tokens.tolist()


def _cached_captions(shard: SearchableShard) -> list[str]:
    reads = CatalogReads()
    read_cache = CatalogReadCache(reads)
    try:
        assert read_cache.update(cast(Any, SimpleNamespace(shards={"tsk_0": shard})))
    finally:
        reads.close()
    cached = cast(Any, read_cache._cached)
    return [caption for row in cached.videos["tsk_0"].find(shard.ids).values() for caption in row.captions]


def _indexed_words(shard: SearchableShard) -> list[str]:
    reads = CatalogReads()
    words = LibraryWords(reads)
    try:
        words.prepare(shard.ids)
        return [
            word for word in ("heron", "taxi", "bus") if len(words.current().lookup(parse_query(word)).videos)
        ]
    finally:
        reads.close()


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (_profile_tokens, distinct_pieces(["a heron taxi"])[0].tolist()),
        (_cached_captions, ["a heron", "a taxi"]),
        (_indexed_words, ["heron", "taxi"]),
    ],
)
def test_append_that_is_published_during_a_read_is_not_lost(
    domain: SearchableShard, read: Callable[[SearchableShard], list[Any]], expected: list[Any]
) -> None:
    with append_published_after_the_first_read():
        assert read(domain) == expected
    assert read(domain) == expected


def test_caches_of_a_shard_contain_an_append_whose_catalog_follows(domain: SearchableShard) -> None:
    """The manifest lists the append, its worker was killed before the commit, and another one repeats the commit."""
    taxi = int(domain.ids[-1])
    with session_scope(write=True) as session:
        replace_moments(session, f"tsk_{APPENDS}", {taxi: [(0.0, 5.0), (5.0, 10.0)]})
    words = LibraryWords()
    words.prepare(domain.ids)

    def columns() -> tuple[list[int], int]:
        (live,) = words.texts.columns.segments
        return live.segment.ids.tolist(), len(words.texts.columns.moments_of(domain.ids)[0])

    assert columns() == (domain.ids.tolist(), 2)
    _publish_last_append()
    words.follow_edits()
    assert columns() == (domain.ids.tolist(), 2)


def test_captions_of_a_shard_are_those_of_its_videos(domain: SearchableShard) -> None:
    heron, taxi = domain.ids.tolist()
    with session_scope(write=True) as session:
        unpublished = Video(id="x", task_id="tsk_1", uri="x", captions=["a bus"], extra={}, status="accepted")
        session.add(unpublished)
    assert video_search._read_captions("tsk_0", domain) == {"a heron": heron, "a taxi": taxi}
    _publish_last_append()
    assert video_search._read_captions("tsk_0", domain) == {"a heron": heron, "a taxi": taxi}


def test_running_server_reads_a_calibration_without_a_new_generation(
    learning: Library, service: SearchEngine
) -> None:
    with session_scope(write=True) as session:
        count_edit(session, "tsk_birds", [1], captions=True, metadata=False)
    assert service.snapshots.refresh()
    before = service.snapshots.current()
    assert not service.snapshots.refresh_captions()
    model = ConfidenceModel("pinned", 0.04, (2.0, 3.0, 4.0, 9.0, 0.2, 1.5), -3.0, 240, 0.04)
    with session_scope(write=True) as session:
        store_calibration(session, "tsk_birds", before.release_id, before.generation, model.to_json())
    assert service.snapshots.refresh_captions()
    assert service.snapshots.current().distinct_lineages[0].confidence_model == model
    assert service.snapshots.current().generation == before.generation
    assert not service.snapshots.refresh_captions()
