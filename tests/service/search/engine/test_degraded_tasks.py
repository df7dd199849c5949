"""Broken shards, and reads of the catalog that fail: a generation is served with all that can be read, or not."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
import torch
from sqlalchemy import update
from sqlalchemy.exc import OperationalError

from index.shard_store import ShardStore
from models.backbones.backbone import Backbone
from models.encoders import encoder_registry
from models.routing.confidence_model import ConfidenceModel
from service.catalog import database
from service.catalog.database import session_scope
from service.catalog.domain_videos import store_calibration
from service.catalog.tables import Task, Video
from service.core.errors import Unavailable
from service.core.settings import Settings
from service.search.engine import SearchEngine
from service.storage import index_manifest
from tests.index.disk_faults import flip_byte
from tests.service.search.caption_library import BIRDS, CARS, SEA, Library


def test_broken_shard_is_degraded_and_other_shards_are_searched(
    library: Library, service: SearchEngine, pass_retry_interval: Callable[[], None]
) -> None:
    shard = library.store.manifest().shards["tsk_birds"]
    path = library.store.shard_folder(shard.id) / "vectors.faiss"
    flip_byte(path)
    assert service.snapshots.refresh()
    answer = service.search("an owl", k=20)
    assert {result.task for result in answer.results} == {"cars"}
    assert list(answer.degraded) == ["birds"]
    assert "vectors.faiss was altered" in answer.degraded["birds"]
    assert [entry.task for entry in answer.routing] == ["cars"]
    assert list(service.snapshots.degraded()) == ["tsk_birds"]
    ready = service.snapshots.readiness()
    assert (ready.ready, list(ready.degraded)) == (True, ["birds"])
    with pytest.raises(Unavailable, match=r"Task 'birds' can't be searched: .*was altered"):
        service.search("an owl", task="birds")
    pass_retry_interval()
    snapshot = service.snapshots.current()
    assert not service.snapshots.refresh()  # still broken
    assert service.snapshots.current() is snapshot
    flip_byte(path)
    pass_retry_interval()
    assert service.snapshots.refresh()
    assert service.search("an owl", task="birds").degraded == {}


def test_shard_of_another_encoder_is_not_searched(
    configured: Settings, backbone: Backbone, service: SearchEngine
) -> None:
    library = Library(configured, backbone, "zero_shot")
    library.add_task("birds", BIRDS)
    library.add_task("cars", CARS, fingerprint="f" * 64)
    service.snapshots.refresh()
    answer = service.search("a taxi", k=20)
    assert {result.task for result in answer.results} == {"birds"}
    assert "made by encoder ffffffffffff" in answer.degraded["cars"]


def test_task_unknown_to_the_release_is_degraded(library: Library, service: SearchEngine) -> None:
    library.publish("sea", SEA)
    service.snapshots.refresh()
    answer = service.search("a taxi")
    assert answer.degraded == {"tsk_sea": "no release knows it"}
    assert {entry.task for entry in answer.routing} == {"birds", "cars"}


def test_broken_pinned_release_degrades_its_task_only(learning: Library, service: SearchEngine) -> None:
    older = learning.store.manifest().shards["tsk_birds"].release
    (learning.store.release_folder(older) / "weights.safetensors").unlink()
    assert service.snapshots.refresh()
    answer = service.search("a taxi", k=20)
    assert {result.task for result in answer.results} == {"cars"}
    assert "weights.safetensors is missing" in answer.degraded["birds"]


def test_library_without_searchable_shards_is_unavailable(library: Library, service: SearchEngine) -> None:
    shutil.rmtree(library.settings.index_dir / "shards")
    assert not service.snapshots.refresh()
    with pytest.raises(Unavailable, match=r"no shard can be searched: .*folder is missing"):
        service.search("a taxi")
    assert not service.snapshots.readiness().ready


def test_library_of_another_backbone_is_refused(library: Library, configured: Settings) -> None:
    torch.manual_seed(1)
    from models.backbones.backbone_loading import tiny_backbone

    other = tiny_backbone()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoder_registry, "load_backbone", lambda name, frames, **_: other)
        service = SearchEngine(configured)
        assert not service.snapshots.refresh()
    with pytest.raises(Unavailable, match="learned on another backbone"):
        service.search("a taxi")


def test_shard_that_breaks_while_served_is_degraded(
    library: Library, configured: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores: list[ShardStore] = []

    def open_store(*arguments: Any, **options: Any) -> ShardStore:
        stores.append(ShardStore(*arguments, **options))
        return stores[-1]

    monkeypatch.setattr(index_manifest, "ShardStore", open_store)
    service = SearchEngine(configured)
    assert service.snapshots.refresh()
    assert {result.task for result in service.search("an owl").results} == {"birds", "cars"}
    stores[0].segment_cache.retain(set())  # the next search opens the files again
    folder = library.store.shard_folder(library.store.manifest().shards["tsk_birds"].id)
    folder.rename(folder.with_suffix(".away"))
    answer = service.search("an owl", k=20)
    assert {result.task for result in answer.results} == {"cars"}
    assert "folder is missing" in answer.degraded["birds"]
    ready = service.snapshots.readiness()
    assert (ready.ready, list(ready.degraded)) == (True, ["birds"])
    with pytest.raises(Unavailable, match="folder is missing"):
        service.search("an owl", task="birds")
    assert service.snapshots.refresh()  # the degraded shard is checked again at once
    ready = service.snapshots.readiness()
    assert (ready.tasks, list(ready.degraded)) == (1, ["birds"])
    assert not service.snapshots.refresh()
    folder.with_suffix(".away").rename(folder)
    service.snapshots.retry_at = time.monotonic()
    assert service.snapshots.refresh()
    assert service.snapshots.readiness().degraded == {}
    assert {result.task for result in service.search("an owl").results} == {"birds", "cars"}


FITTED = ConfidenceModel("pinned", 0.04, (2.0, 3.0, 4.0, 9.0, 0.2, 1.5), -3.0, 240, 0.04)
REFITTED = replace(FITTED, bias=-1.0)
APPENDED = "a penguin slides on ice"
QUERIES = (APPENDED, *BIRDS, *CARS, *SEA)

Answers = list[list[tuple[str, float, float | None]]]


@pytest.fixture
def appended(library: Library) -> Library:
    """Birds, cars and the sea, with a video that an append has published to the birds."""
    library.confidence = FITTED
    library.add_task("sea", SEA)
    _publish_append(library, _store_append(library))
    _assign_videos()
    return library


def _store_append(library: Library, *, state: str = "queued") -> int:
    """Return an append of one probed video in the catalog, with a confidence model; returns the vector ID."""
    with session_scope(write=True) as session:
        task = Task(
            id="tsk_append",
            position=100,
            name="birds (append)",
            method="zero_shot",
            state=state,
            target_id="tsk_birds",
            created_at=datetime.now(UTC),
        )
        video = Video(id="new", task_id=task.id, uri="new.mp4", captions=[APPENDED], status="accepted")
        session.add(task)
        session.flush()
        session.add(video)
        session.flush()
        manifest = library.store.manifest()
        store_calibration(
            session, task.id, manifest.release or "", manifest.generation + 1, REFITTED.to_json()
        )
        return video.vector_id


def _publish_append(library: Library, vector_id: int) -> None:
    """Replace the manifest by one with the video of the append."""
    pinned = library.store.manifest().shards["tsk_birds"]
    segment = library.store.write_shard(
        task=pinned.task,
        release=pinned.release,
        fingerprint=pinned.fingerprint,
        ids=np.array([vector_id]),
        vectors=library.features([APPENDED]),
    )
    library.store.append(segment)


def _assign_videos() -> None:
    """Return the catalog part of the publication: the videos belong to the domain, and the append is ready."""
    with session_scope(write=True) as session:
        session.execute(
            update(Video)
            .where(Video.task_id == "tsk_append")
            .values(task_id="tsk_birds", effective_split="appended")
        )
        session.execute(update(Task).where(Task.id == "tsk_append").values(state="ready"))


def _answers(service: SearchEngine) -> Answers:
    return [
        [(result.video_id, result.score, result.confidence) for result in service.search(text, k=20).results]
        for text in QUERIES
    ]


def _settled_answers(library: Library) -> Answers:
    service = SearchEngine(library.settings)
    assert service.snapshots.refresh()
    return _answers(service)


@contextmanager
def _before_session(number: int, action: Callable[[], None]) -> Iterator[list[int]]:
    """Run an action once, before a session of the catalog is opened; yields the number of sessions so far."""
    opened = [0]
    session: Any = vars(database)["Session"]

    def open_session(*arguments: Any, **options: Any) -> Any:
        opened[0] += 1
        if opened[0] - 1 == number:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(database, "Session", session)
                action()
        return session(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "Session", open_session)
        yield opened


def _refuse() -> None:
    raise OperationalError("connect", {}, ConnectionRefusedError("connection refused"))


def _each_read(load: Callable[[int], int]) -> None:
    """Load with each read of the catalog as the affected one; ``load`` returns the number of reads of a whole load."""
    number, total = 0, 1
    while number < total:
        total = load(number)
        number += 1
    assert total >= 4  # reachability, edits, captions and confidence at least


def test_a_starting_process_waits_for_each_read_of_the_catalog(appended: Library) -> None:
    expected = _settled_answers(appended)

    def load(number: int) -> int:
        service = SearchEngine(appended.settings)
        with _before_session(number, _refuse):
            assert not service.snapshots.refresh()
        assert not service.snapshots.readiness().ready
        with pytest.raises(Unavailable) as refused:
            service.search(APPENDED)
        assert refused.value.retry_after < 10
        with _before_session(-1, _refuse) as opened:
            assert service.snapshots.refresh()  # at the next poll, not after the interval of broken releases
        assert service.snapshots.last_error is None
        assert _answers(service) == expected
        assert not service.snapshots.refresh_captions()
        return opened[0]

    _each_read(load)


def test_the_served_generation_stays_until_all_of_the_next_one_is_read(library: Library) -> None:
    library.confidence = FITTED
    library.add_task("sea", SEA)
    services = [SearchEngine(library.settings) for _ in range(8)]
    assert all(service.snapshots.refresh() for service in services)
    before = _answers(services[0])
    _publish_append(library, _store_append(library))
    _assign_videos()
    expected = _settled_answers(library)
    assert expected != before

    def load(number: int) -> int:
        service = services.pop()
        with _before_session(number, _refuse):
            assert not service.snapshots.refresh()
        assert not service.snapshots.refresh_captions()
        assert service.snapshots.readiness().ready
        assert _answers(service) == before
        with _before_session(-1, _refuse) as opened:
            assert service.snapshots.refresh()
        assert _answers(service) == expected
        return opened[0]

    _each_read(load)


@pytest.mark.parametrize("loaded_before", [False, True])
def test_an_append_that_ends_between_two_reads_has_the_scores_of_the_settled_state(
    library: Library, loaded_before: bool
) -> None:
    library.confidence = FITTED
    library.add_task("sea", SEA)
    services = [SearchEngine(library.settings) for _ in range(8)]
    if loaded_before:
        assert all(service.snapshots.refresh() for service in services)
    _publish_append(library, _store_append(library, state="indexing"))
    observed: list[Answers] = []

    def load(number: int) -> int:
        service = services.pop()
        with _before_session(number, _assign_videos) as opened:
            assert service.snapshots.refresh()
        observed.append(_answers(service))
        with session_scope(write=True) as session:
            session.execute(
                update(Video).where(Video.id == "new").values(task_id="tsk_append", effective_split=None)
            )
            session.execute(update(Task).where(Task.id == "tsk_append").values(state="indexing"))
        return opened[0]

    _each_read(load)
    _assign_videos()
    assert observed == [_settled_answers(library)] * len(observed)


@pytest.mark.parametrize("state", ["queued", "failed", "cancelled"])
def test_an_append_that_is_not_published_changes_no_score(library: Library, state: str) -> None:
    """A process that starts later answers like one that runs, after a deletion too."""
    library.add_task("sea", SEA)
    with session_scope(write=True) as session:
        deleted = session.query(Video).filter_by(id="birds-0").one()
        library.store.delete([deleted.vector_id], task="tsk_birds")
        session.delete(deleted)
    expected = _settled_answers(library)
    _store_append(library, state=state)
    assert _settled_answers(library) == expected
