"""Deleted and compacted tasks: no data remains, and searches in other tasks do not change."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cinestrata_schemas.search import SearchQuery, SearchResponse
from cli.commands.library_checks import check_catalog, check_releases
from index.integrity_audit import audit
from index.shard_store import ShardStore
from models.backbones.backbone import Backbone
from service import celery_worker
from service.catalog.database import session_scope
from service.catalog.tables import ACTIVE_STATES, STATES, Task, Video
from service.core.errors import Unavailable
from service.core.list_parameters import ShardFilters
from service.core.settings import Settings, settings
from service.library import deletion
from service.library.deletion import delete_task, delete_videos
from service.library.library_listing import list_shards
from service.library.library_status import library_status
from service.search.engine import SearchEngine
from service.search.search_request import parse_requests
from service.search.snapshots.query_vector_cache import QueryVectorCache
from service.search.text_search.executor import execute
from tests.audited_changes import audit_entries
from tests.catalog_rows import add_release_and_shard
from tests.service.search.caption_library import BIRDS, CARS, SEA, Library, SelfTested

torch.set_num_threads(1)

Served = tuple[SelfTested, SearchEngine]


@pytest.fixture
def served(configured: Settings, backbone: Backbone, service: SearchEngine) -> Served:
    library = SelfTested(configured, backbone, "ffa_tame", experts=2, rank=2)
    library.add_task("birds", BIRDS)
    library.add_task("cars", CARS)
    _record(library)
    assert service.snapshots.refresh(), service.snapshots.last_error
    return library, service


def _record(library: Library) -> None:
    """Store rows of the releases and shards in the catalog, as a worker does."""
    for number, (task, entry) in enumerate(library.store.manifest().shards.items(), 1):
        with session_scope(write=True) as session:
            row = session.get_one(Task, task)
            row.learned_order, row.counts = number, {"accepted": entry.count}
        add_release_and_shard(task, entry, order=number)


def _delete_and_compact(library: Library, name: str) -> None:
    delete_task(f"tsk_{name}")
    deletion.compact(f"tsk_{name}")


def _age_files(folder: Path) -> None:
    for path in [*folder.rglob("*")]:
        os.utime(path, (time.time() - 7200,) * 2)


def _ids(answer: SearchResponse) -> list[str]:
    return [result.video_id for result in answer.results]


def _visual_hits(server: SearchEngine, text: str, **parameters: Any) -> list[tuple[int, float]]:
    """Search without words: the weight of a word depends on all captions of the library."""
    requests = parse_requests([SearchQuery(q=text, k=50, **parameters)], server.settings)
    (search,) = execute(server.snapshots.current(), requests, server.read_cache, with_words=False)
    return [(hit.id, hit.score) for hit in search.planner.hits]


@pytest.mark.slow
def test_other_tasks_are_unchanged_and_vectors_of_the_deleted_task_are_erased(served: Served) -> None:
    library, service = served
    texts = ["an owl", *CARS, *BIRDS]
    before = {
        mode: [_visual_hits(service, text, task="cars", mode=mode) for text in texts]
        for mode in ("pinned", "latest")
    }
    queries = ["an owl", *CARS]  # words that only birds had weigh more without them
    order = [_ids(service.search(text, 50, task="cars")) for text in queries]
    alike = service.search_similar("cars-0", 50)
    rows = [row.astype(kind).tobytes() for row in library.stored(BIRDS) for kind in (np.float16, np.float32)]
    page = service.search("an owl", 1)
    _delete_and_compact(library, "birds")
    _age_files(library.settings.index_dir)
    deletion.sweep_index()
    later = SearchEngine(library.settings)
    for server in (service, later):
        assert server.snapshots.refresh(), server.snapshots.last_error
        ready = server.snapshots.readiness()
        assert (server.snapshots.degraded(), ready.degraded, ready.tasks) == ({}, {}, 2)
        for mode, expected in before.items():
            assert [_visual_hits(server, text, task="cars", mode=mode) for text in texts] == expected
            assert [_visual_hits(server, text, mode=mode) for text in texts] == expected
        assert [_ids(server.search(text, 50)) for text in queries] == order
        assert server.search("an owl", 50, task="tsk_birds").results == []
        assert server.search("an owl", 50, task="tsk_birds").degraded == {}
        everywhere = server.search_similar("cars-0", 50, scope="all")
        assert [r.video_id for r in everywhere.results] == [r.video_id for r in alike.results]
        rest = server.search("an owl", 50, cursor=page.next_cursor)
        assert {r.task for r in rest.results} <= {"cars"}
        captions = [server.caption_video("cars-0", scope=scope).captions for scope in ("task", "all")]
        assert {text.text for texts in captions for text in texts} <= set(CARS)
    later.close()
    files = [path for path in library.settings.data_dir.rglob("*") if path.is_file()]
    assert not [path for path in files if any(row in path.read_bytes() for row in rows)]
    report = audit(library.store)
    assert (report.problems, report.leftovers) == ([], [])
    assert [*check_releases(library.settings, report), *check_catalog(library.settings, report)] == []
    shown = library_status()
    assert (shown.degraded, shown.vectors) == ({}, 3)
    assert [(s.task, s.count, s.deleted, s.degraded) for s in list_shards(ShardFilters()).shards] == [
        ("birds (deleted tsk_birds)", 0, 0, None),
        ("cars", 3, 0, None),
    ]
    assert [(d.vectors, d.is_compactable) for d in deletion.storage_usage()] == [(0, False), (3, False)]


def test_searches_continue_during_deletion_and_compaction(served: Served) -> None:
    library, service = served
    expected = _ids(service.search(CARS[0], 50, task="cars"))
    answers: list[tuple[list[str], dict[str, str]]] = []
    failed: list[Exception] = []
    done = threading.Event()

    def search() -> None:
        while not done.is_set():
            try:
                answer = service.search(CARS[0], 50)
            except Exception as error:
                failed.append(error)
                return
            answers.append(([r.video_id for r in answer.results if r.task == "cars"], answer.degraded))

    thread = threading.Thread(target=search)
    thread.start()
    try:
        for step in (lambda: delete_task("tsk_birds"), lambda: deletion.compact("tsk_birds")):
            step()
            assert service.snapshots.refresh(), service.snapshots.last_error
        _age_files(library.settings.index_dir)
        deletion.sweep_index()
        seen = len(answers)
        while len(answers) < seen + 3 and thread.is_alive():
            time.sleep(0.01)
    finally:
        done.set()
        thread.join()
    assert failed == []
    assert all(answer == (expected, {}) for answer in answers)


def test_cursors_of_earlier_releases_omit_the_deleted_task(served: Served) -> None:
    """The server keeps the earlier snapshot and its folders."""
    library, service = served
    text = CARS[0]
    page, whole = service.search(text, 1), _ids(service.search(text, 50))
    assert whole[0] == "cars-0"
    library.add_task("sea", SEA)
    assert service.snapshots.refresh(), service.snapshots.last_error
    rest = service.search(text, 50, cursor=page.next_cursor)
    assert [result.video_id for result in rest.results] == whole[1:]
    _delete_and_compact(library, "birds")
    delete_videos(["cars-1"])
    deletion.compact("tsk_cars")
    assert service.snapshots.refresh(), service.snapshots.last_error
    _age_files(library.settings.index_dir)
    deletion.sweep_index()
    rest = service.search(text, 50, cursor=page.next_cursor)
    assert (rest.release, rest.degraded) == (page.release, {})
    assert [result.video_id for result in rest.results] == ["cars-2"]


def test_empty_library_is_searchable_and_learns_new_tasks(served: Served) -> None:
    library, service = served
    for name in ("cars", "birds"):
        _delete_and_compact(library, name)
        assert service.snapshots.refresh(), service.snapshots.last_error
    assert (service.search("an owl", 50).results, service.snapshots.degraded()) == ([], {})
    library.add_task("birds anew", BIRDS)
    assert service.snapshots.refresh(), service.snapshots.last_error
    assert {r.task for r in service.search("an owl", 50).results} == {"birds anew"}


@pytest.mark.parametrize("gone", [["cars-0"], ["cars-0", "cars-1", "cars-2"]], ids=["one", "all"])
def test_release_is_verified_after_its_self_test_shard_was_compacted(
    served: Served, gone: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    library, service = served
    delete_videos(gone)
    deletion.compact("tsk_cars")
    assert service.snapshots.refresh(), service.snapshots.last_error
    encode = QueryVectorCache.__call__
    monkeypatch.setattr(
        QueryVectorCache, "__call__", lambda self, pairs: [np.roll(v, 1) for v in encode(self, pairs)]
    )
    fresh = SearchEngine(library.settings)
    assert not fresh.snapshots.refresh(), "changed weights must be detected"
    assert "doesn't answer as it did when it was learned: self-test query 0" in str(
        fresh.snapshots.last_error
    )


# -- files --------------------------------------------------------------------------------------------------


def _put(path: Path, hours: float = 2) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    os.utime(path, (time.time() - 3600 * hours,) * 2)
    return path


@pytest.mark.usefixtures("served")
def test_upload_of_a_deleted_task_is_removed_except_for_shared_files() -> None:
    uploads = settings().uploads_dir
    with session_scope(write=True) as session:
        rows = {row.id: row for row in session.query(Video)}
        for video, path in {"birds-0": "a/b/x.mp4", "birds-1": "a/y.mp4", "birds-2": "a/y.mp4"}.items():
            rows[video].uri, rows[video].content_hash = f"upload://tsk_birds/{path}", path[-5] * 64
        rows["cars-0"].uri = "upload://tsk_birds/a/b/x.mp4"
    files = [_put(uploads / "tsk_birds" / path) for path in ("a/b/x.mp4", "a/y.mp4")]
    frames = _put(settings().cache_dir / "8x64" / f"{'y' * 64}.npy")
    delete_task("tsk_birds")
    assert [path.exists() for path in files] == [True, False], "two rows of one file go together"
    assert not frames.exists()
    delete_videos(["cars-0"])
    assert list(uploads.iterdir()) == [], "and no folder that the user named"
    assert uploads.is_dir()


@pytest.mark.usefixtures("served")
def test_orphaned_thumbnails_are_swept() -> None:
    thumbnails = settings().thumbnails_dir
    used, young = _put(thumbnails / "cars-0.jpg"), _put(thumbnails / "nobody.jpg", 0.5)
    orphan = _put(thumbnails / "birds.7.jpg")
    deletion.sweep_orphan_thumbnails()
    assert not orphan.exists()
    assert used.exists()
    assert young.exists()


@pytest.mark.slow
@pytest.mark.usefixtures("served")
@pytest.mark.parametrize(("state", "is_needed"), [(state, state in ACTIVE_STATES) for state in STATES])
def test_frame_caches_of_finished_tasks_are_swept(state: str, is_needed: bool) -> None:
    shared, alone, orphan = "a" * 64, "b" * 64, "c" * 64
    with session_scope(write=True) as session:
        rows = {row.id: row for row in session.query(Video)}
        rows["birds-0"].content_hash = rows["cars-0"].content_hash = shared
        rows["cars-1"].content_hash = alone
        session.get_one(Task, "tsk_birds").state = state
    cache = settings().cache_dir
    shared_files = [_put(cache / size / f"{shared}.npy") for size in ("8x64", "2x224")]
    young = _put(cache / "8x64" / f"{alone}.npy", 0.5)
    unused = [_put(cache / "2x224" / f"{orphan}.npy"), _put(cache / "8x64" / f".{orphan}.7.staged.npy")]
    foreign = _put(cache / "note.txt")
    reconciler = celery_worker.MaintenanceThread()
    reconciler.stop()  # after one round
    reconciler.run()
    assert [path.exists() for path in shared_files] == [is_needed] * 2
    assert [path.exists() for path in unused] == [False] * 2
    assert young.exists()
    assert foreign.exists()


def test_replaced_shards_are_removed_after_training_only(served: Served) -> None:
    library, _ = served
    old = library.store.shard_folder(library.store.manifest().shards["tsk_birds"].id)
    _delete_and_compact(library, "birds")
    _age_files(library.settings.index_dir)
    with session_scope(write=True) as session:
        session.get_one(Task, "tsk_cars").state = "training"
    deletion.sweep_index()
    assert old.exists(), "the worker reads the generation at the start of its training"
    with session_scope(write=True) as session:
        session.get_one(Task, "tsk_cars").state = "ready"
    reconciler = celery_worker.MaintenanceThread()
    reconciler.stop()  # after one round
    reconciler.run()
    assert not old.exists()


@pytest.mark.parametrize("line", ["update_shard_rows", "_storage_usage"])
def test_repeated_deletion_completes_a_killed_one_in_the_catalog(
    served: Served, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, service = served
    delete_task("tsk_birds")
    with monkeypatch.context() as patch:

        def killed(*_: Any) -> None:
            if library.store.manifest().shards["tsk_birds"].count == 0:
                raise KeyboardInterrupt
            return original(*_)

        original = getattr(deletion, line)
        patch.setattr(deletion, line, killed)
        with pytest.raises(KeyboardInterrupt):
            deletion.compact("tsk_birds")
    assert service.snapshots.refresh(), service.snapshots.last_error
    assert service.snapshots.degraded() == {}
    after = deletion.compact("tsk_birds")
    assert (after.vectors, after.deleted, after.is_compactable) == (0, 0, False)
    assert library_status().degraded == {}
    (entry,) = audit_entries(action=["shard.compact"])
    assert (entry.target, entry.details["vectors"]) == ("tsk_birds", 0)
    assert entry.details["shard"] == library.store.manifest().shards["tsk_birds"].id
    assert entry.details["bytes"] < entry.details["bytes_before"]


@pytest.mark.slow
@pytest.mark.parametrize("harm", ["ids.npy", "vectors.faiss", None], ids=["ids", "vectors", "folder"])
def test_task_with_a_damaged_shard_can_be_deleted(served: Served, harm: str | None) -> None:
    library, service = served
    folder = library.store.shard_folder(library.store.manifest().shards["tsk_birds"].id)
    if harm is None:
        shutil.rmtree(folder)
    else:
        (folder / harm).write_bytes(b"")
    expected = _visual_hits(service, CARS[0], task="cars"), _ids(service.search(CARS[0], 50, task="cars"))
    assert len(delete_task("tsk_birds").deleted) == 3
    assert delete_task("tsk_birds").deleted == []
    deletion.compact("tsk_birds")
    fresh = SearchEngine(library.settings)
    assert fresh.snapshots.refresh(), fresh.snapshots.last_error
    assert fresh.snapshots.degraded() == {}
    assert (_visual_hits(fresh, CARS[0]), _ids(fresh.search(CARS[0], 50))) == expected
    assert (library_status().degraded, audit(library.store).problems) == ({}, [])
    fresh.close()


def test_full_disk_raises_in_compaction_and_sweep(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    delete_task("tsk_birds")
    monkeypatch.setattr(ShardStore, "replace_manifest", full)
    with pytest.raises(
        Unavailable, match=r"Task 'birds \(deleted tsk_birds\)' can't be compacted.*No space left"
    ):
        deletion.compact("tsk_birds")
    monkeypatch.setattr(ShardStore, "collect_garbage", full)
    with pytest.raises(Unavailable, match="No space left"):
        deletion.sweep_index()
