"""Deletion of videos and tasks: search, counts, files and compaction, and repetition after a kill."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sqlalchemy import select

from cinestrata_schemas.search import SearchQuery
from cinestrata_schemas.tasks import TaskDetails
from index.arrays import moment_ids
from index.index_snapshot import IndexSnapshot
from index.integrity_audit import audit
from models.backbones.backbone import Backbone
from service.catalog.database import session_scope
from service.catalog.tables import Event, FileRemoval, Moment, Recall, Task, Video
from service.core.errors import Conflict, InvalidInput, NotFound, Unavailable
from service.core.list_parameters import ShardFilters
from service.core.settings import Settings, settings
from service.library import deletion
from service.library import library_listing as catalog_library
from service.library.deletion import delete_task, delete_videos, sweep_index
from service.library.library_listing import list_shards
from service.library.library_status import library_status
from service.library.recall_matrix import read_recall_matrix
from service.search.engine import SearchEngine
from service.storage import library_files
from service.storage.video_files import register_removals, remove_deleted_files
from service.tasks import commands, lifecycle, probing
from service.tasks.lifecycle.state_machine import record
from tests.catalog_rows import accepted_videos, add_release_and_shard
from tests.service.search.caption_library import BIRDS, CARS, SEA, Library

torch.set_num_threads(1)

Served = tuple[Library, SearchEngine]


@pytest.fixture
def served(configured: Settings, backbone: Backbone, service: SearchEngine) -> Served:
    library = Library(configured, backbone, "ffa_tame", experts=2, rank=2)
    facts = [{"extra": {"place": f"spot {n}"}, "duration": float(n + 1)} for n in range(3)]
    library.add_task("birds", BIRDS, facts=facts)
    library.add_task("cars", CARS)
    assert service.snapshots.refresh()
    return library, service


@pytest.fixture
def owned(served: Served) -> Callable[..., dict[str, Path]]:
    """``owned(video, uri, content)`` creates files of a video and returns their paths."""

    def make(video: str, uri: str, content: str) -> dict[str, Path]:
        with session_scope(write=True) as session:
            row = session.query(Video).filter(Video.id == video).one()
            row.uri, row.content_hash = uri, content
        files = {
            "thumbnail": library_files.thumbnail_path(video),
            "frames": settings().cache_dir / "8x64" / f"{content}.npy",
            "other frames": settings().cache_dir / "2x224" / f"{content}.npy",
            "file": (settings().uploads_dir if uri.startswith("upload:") else settings().media_root)
            / uri.removeprefix(library_files.UPLOAD_SCHEME),
        }
        for path in files.values():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x")
        return files

    return make


def _found(service: SearchEngine, **options: Any) -> list[str]:
    return [result.video_id for result in service.search("an owl", 50, **options).results]


def _vector_id(video: str) -> int:
    with session_scope() as session:
        return session.query(Video).filter(Video.id == video).one().vector_id


def _counts(task: str) -> dict[str, int]:
    with session_scope() as session:
        return session.get_one(Task, task).counts


def _killed(*_: Any, **__: Any) -> Any:
    raise KeyboardInterrupt


def test_file_that_cannot_be_deleted_is_deleted_later(served: Served) -> None:
    thumbnail = library_files.thumbnail_path("birds-0")
    (thumbnail / "in the way").mkdir(parents=True)
    with pytest.raises(Unavailable, match=r"can't be deleted yet .*birds-0\.jpg"):
        delete_videos(["cars-0", "birds-0"])
    assert delete_videos(["cars-1"]).deleted == ["cars-1"], "the file belongs to another deletion"
    with pytest.raises(Unavailable):
        delete_videos(["birds-0"])
    (thumbnail / "in the way").rmdir()
    thumbnail.rmdir()
    thumbnail.touch()
    assert delete_videos(["birds-0"]).not_found == ["birds-0"]
    assert not thumbnail.exists()


@pytest.mark.parametrize("delete", [lambda: delete_videos(["birds-1"]), lambda: delete_task("tsk_birds")])
def test_files_are_deleted_while_other_writers_continue(
    owned: Callable[..., dict[str, Path]], delete: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = owned("birds-1", "upload://tsk_birds/a.mp4", "a" * 64)
    unlink, unlinked = Path.unlink, []

    def write_meanwhile(path: Path, **options: bool) -> None:
        if path in files.values():
            with closing(sqlite3.connect(settings().data_dir / "catalog.sqlite3", timeout=0)) as other:
                other.execute("BEGIN IMMEDIATE")  # raises if the lock is held
            unlinked.append(path)
        unlink(path, **options)

    monkeypatch.setattr(Path, "unlink", write_meanwhile)
    delete()
    assert sorted(unlinked) == sorted(files.values())
    assert not any(path.exists() for path in files.values())


def test_maintenance_deletes_the_files_that_a_killed_deletion_left(
    owned: Callable[..., dict[str, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = owned("birds-1", "upload://tsk_birds/a.mp4", "a" * 64)
    with monkeypatch.context() as patch:
        patch.setattr(deletion, "remove_deleted_files", _killed)
        with pytest.raises(KeyboardInterrupt):
            delete_videos(["birds-1"])
    assert all(path.exists() for path in files.values())
    assert delete_videos(["nobody"]).deleted == []  # any later deletion, or the maintenance
    assert not any(path.exists() for path in files.values())
    with session_scope() as session:
        assert session.query(FileRemoval).count() == 0


def test_files_of_a_video_that_takes_over_an_id_stay(owned: Callable[..., dict[str, Path]]) -> None:
    """An ID, a content and an uploaded file may be used again before a killed deletion continues."""
    files = owned("birds-1", "upload://tsk_birds/a.mp4", "a" * 64)
    with session_scope(write=True) as session:
        register_removals(session, Video.id == "birds-1")
    assert remove_deleted_files() == {}
    assert all(path.exists() for path in files.values())


def test_deleted_video_is_removed_from_all_searches_immediately(served: Served) -> None:
    library, service = served
    page = service.search("an owl", 2)
    everything = _found(service)
    victim = everything[3]  # on a later page
    assert delete_videos([victim]).model_dump() == {"deleted": [victim], "not_found": []}
    left = [video for video in everything if video != victim]
    later = SearchEngine(service.settings)
    later.snapshots.refresh()
    refreshed = service.snapshots.refresh
    for look in (lambda: False, refreshed):  # before the server has seen the tombstone, and after
        look()
        for server in (service, later):
            assert _found(server) == left
            assert victim not in _found(server, task=victim.split("-")[0])
            rest = server.search("an owl", 50, cursor=page.next_cursor)
            assert [r.video_id for r in rest.results] == left[2:]
            answers = server.search_many([SearchQuery(q="an owl", k=50), SearchQuery(q=BIRDS[0], k=50)])
            assert all(victim not in [r.video_id for r in answer.results] for answer in answers)
            with pytest.raises(NotFound):
                server.search_similar(victim)
            assert victim not in [r.video_id for r in server.search_similar(everything[0], k=50).results]
    assert audit(library.store).problems == []


def test_deleted_video_removes_its_moments_from_search(served: Served) -> None:
    """Rows and vectors of the moments are deleted, and they do not displace results of other videos."""
    library, service = served
    seen = {1: [f"an owl sleeps in tree {n}" for n in range(30)], 2: ["an owl hunts", "an owl eats"]}
    library.add_task("lake", CARS, moments=seen)
    assert service.snapshots.refresh()
    text = "an owl sleeps in tree 3"
    first = service.search(text, 1, task="lake", moments=1)
    assert (first.results[0].video_id, len(first.results[0].moments)) == ("lake-1", 1)
    everything = _found(service)
    gone, remaining = (moment_ids(_vector_id(f"lake-{n}"), len(seen[n])) for n in (1, 2))
    with session_scope(write=True) as session:
        for video in ("lake-0", "lake-1"):
            record(session, "tsk_lake", "rejected", {"uri": "x.mp4", "video_id": video, "reason": "bad"})
            record(session, "tsk_lake", "log", {"message": f"'{video}' is long.", "video_id": video})
    delete_videos(["lake-1"])
    left = [video for video in everything if video != "lake-1"]
    with session_scope() as session:
        assert session.scalars(select(Moment.vector_id)).all() == remaining.tolist()
        events = session.scalars(select(Event).order_by(Event.id)).all()
    named = [(event.kind, event.data.get("video_id")) for event in events]
    assert named[-3:] == [("rejected", "lake-0"), ("log", "lake-0"), ("log", None)]
    assert "lake-1" not in str([event.data for event in events])
    assert _found(service) == left, "before the server has seen the tombstones"
    later = SearchEngine(service.settings)
    for server in (service, later):
        server.snapshots.refresh()
        assert sorted(_found(server)) == sorted(left)  # fewer captions: words weigh differently
        shard = server.snapshots.current().shards["tsk_lake"]
        assert not np.isin(gone, shard.ids).any()
        assert np.isin(remaining, shard.ids).all()
        # Two results are found, although 30 deleted moments have higher scores.
        results = server.search(text, 2, task="lake", moments=100).results
        assert {result.video_id: len(result.moments) for result in results} == {"lake-0": 0, "lake-2": 2}
        rest = server.search(text, 50, cursor=first.next_cursor, task="lake").results
        assert "lake-1" not in {result.video_id for result in rest}
    assert deletion.compact("tsk_lake").vectors == 2 + 2
    assert service.snapshots.refresh()
    assert sorted(_found(service)) == sorted(left)
    assert audit(library.store).problems == []


def test_metadata_of_a_deleted_video_is_not_filtered(served: Served) -> None:
    _, service = served
    assert _found(service, where={"place": "spot 1"}) == ["birds-1"]
    delete_videos(["birds-1"])
    service.snapshots.refresh()
    assert _found(service, where={"place": "spot 1"}) == []
    delete_videos(["birds-0", "birds-2"])
    service.snapshots.refresh()
    with pytest.raises(InvalidInput, match="The videos have no metadata"):
        _found(service, where={"place": "spot 1"})


def test_deleted_task_is_removed_from_search_and_keeps_its_position(served: Served) -> None:
    _, service = served
    with session_scope(write=True) as session:
        for number, task in enumerate(("tsk_birds", "tsk_cars"), 1):
            session.get_one(Task, task).learned_order = number
        cells = {(0, 1): 0.2, (1, 1): 0.9, (2, 1): 0.7, (0, 2): 0.1, (2, 2): 0.8}
        session.add_all(
            Recall(
                **{"release_order": release, "task_order": task, "mode": "pinned", "gallery": "local"},
                **{"queries": 10, "r1": value, "r5": value, "r10": value, "medr": 1, "meanr": 1},
            )
            for (release, task), value in cells.items()
        )
    assert read_recall_matrix().bwf_local == pytest.approx(0.2)
    outcome = delete_task("tsk_birds")
    assert (outcome.deleted, outcome.not_found) == ([f"birds-{n}" for n in range(3)], [])
    assert delete_task("tsk_birds").deleted == [], "twice is like once"
    with session_scope() as session:
        row = session.get_one(Task, "tsk_birds")
        assert (row.state, row.counts["videos"], row.learned_order) == ("ready", 0, 1)
    figures = read_recall_matrix()
    assert (figures.tasks, figures.after) == (["cars"], ["cars"])
    assert (figures.matrix_local, figures.zero_shot, figures.bwf_local) == ([[0.8]], [0.1], None)
    before = service.search("an owl", 50).routing
    assert {one.task for one in before} == {"birds", "cars"}, "this server has not seen it yet"
    service.snapshots.refresh()
    answer = service.search("an owl", 50)
    assert [(one.task, one.weight) for one in answer.routing] == [("cars", pytest.approx(1))]
    assert {result.task for result in answer.results} == {"cars"}
    assert service.search("an owl", 50, task=["birds", "cars"]).results == answer.results
    assert service.search("an owl", 50, task="birds").results == []
    assert delete_task("tsk_cars").deleted
    service.snapshots.refresh()
    assert service.search("an owl", 50).results == []
    assert read_recall_matrix().matrix_local == []


def test_deleted_unpublished_task_frees_its_name(
    sqlite_catalog: Settings, post: Callable[..., TaskDetails]
) -> None:
    task, other = post("birds", 2), post("cars", 1)
    with pytest.raises(Conflict, match="is queued; cancel it"):
        delete_task(task.id)
    assert commands.get_task(task.id).counts.videos == 2
    commands.cancel_task(task.id)
    checkpoints = [settings().checkpoints_dir / each.id / "one" for each in (task, other)]
    for folder in checkpoints:
        folder.mkdir(parents=True)
        (folder / "state.safetensors").touch()
    assert len(delete_task(task.id).deleted) == 2
    assert [folder.parent.exists() for folder in checkpoints] == [False, True]
    commands.cancel_task(other.id)
    delete_task(other.id)
    with session_scope() as session:
        assert [session.query(table).count() for table in (Task, Video, Event)] == [0, 0, 0]
    with pytest.raises(NotFound):
        delete_task(task.id)
    assert post("birds", 1).name == "birds"


def test_counts_and_shares_exclude_deleted_videos(served: Served) -> None:
    library, _ = served
    delete_videos(["cars-1", "cars-2"])
    counts = _counts("tsk_cars")
    assert (counts["videos"], counts["accepted"]) == (1, 1)
    assert [(d.name, d.vectors, d.deleted, d.is_compactable) for d in deletion.storage_usage()] == [
        ("birds", 3, 0, False),
        ("cars", 3, 2, True),
    ]
    assert [d.task_id for d in deletion.storage_usage("cars")] == ["tsk_cars"]
    library.add_task("tsk_cars", SEA)
    (usage,) = deletion.storage_usage("tsk_cars")
    assert usage.task_id == "tsk_cars", "whose ID it is, not whose name"
    with pytest.raises(NotFound, match="No task 'boats' has a shard"):
        deletion.storage_usage("boats")


def test_derived_files_are_deleted_and_user_files_are_kept(owned: Callable[..., dict[str, Path]]) -> None:
    uploaded = owned("birds-0", "upload://tsk_birds/a.mp4", "a" * 64)
    theirs = owned("birds-1", "mine/b.mp4", "b" * 64)
    delete_videos(["birds-0", "birds-1"])
    assert not any(path.exists() for path in uploaded.values())
    assert [name for name, path in theirs.items() if path.exists()] == ["file"]
    with pytest.raises(NotFound):
        catalog_library.stream_path("birds-1")
    with pytest.raises(NotFound):
        catalog_library.thumbnail_path("birds-1")
    with pytest.raises(NotFound):
        catalog_library.get_video("birds-1")


def test_shared_files_are_deleted_with_the_last_video(owned: Callable[..., dict[str, Path]]) -> None:
    files = owned("birds-0", "upload://tsk_birds/a.mp4", "a" * 64)
    owned("cars-0", "upload://tsk_birds/a.mp4", "a" * 64)
    delete_videos(["birds-0"])
    assert [name for name, path in files.items() if path.exists()] == ["frames", "other frames", "file"]
    delete_videos(["cars-0"])
    assert not any(path.exists() for path in files.values())


def test_captions_and_metadata_are_erased_from_the_data_folder(served: Served) -> None:
    """All files contain no caption or metadata, except the log of SQLite with old pages."""
    library, _ = served
    with session_scope(write=True) as session:
        row = session.query(Video).filter(Video.id == "birds-1").one()
        row.captions, row.extra = ["the zebra of Ms Quillfeather"], {"speaker": "Quillfeather"}
    (library.settings.index_dir / "ledger.npz").write_bytes(b"Quillfeather")  # of version 1.0.0
    delete_videos(["birds-1"])
    sweep_index()
    with session_scope() as session:
        session.connection().exec_driver_sql("PRAGMA incremental_vacuum")
    files = [path for path in library.settings.data_dir.rglob("*") if path.is_file()]
    others = [path for path in files if "catalog" not in path.name]
    assert others
    assert not [path for path in others if b"Quillfeather" in path.read_bytes()]
    with session_scope() as session:
        rows = [session.execute(table.select()).all() for table in Video.metadata.sorted_tables]
    assert "Quillfeather" not in repr(rows)


def test_deletion_is_idempotent_and_reports_unknown_ids(served: Served) -> None:
    library, _ = served
    first = delete_videos(["birds-1", "nobody", "birds-1", "cars-0"])
    assert (first.deleted, first.not_found) == (["birds-1", "cars-0"], ["nobody"])
    generation = library.store.manifest().generation
    again = delete_videos(["birds-1", "nobody", "cars-0"])
    assert (again.deleted, again.not_found) == ([], ["birds-1", "nobody", "cars-0"])
    assert library.store.manifest().generation == generation
    other = delete_videos(["cars-1", "birds-0"], task_id="tsk_birds")
    assert (other.deleted, other.not_found) == (["birds-0"], ["cars-1"])
    with pytest.raises(NotFound, match="There is no task 'tsk_sea'"):
        delete_videos(["birds-0"], task_id="tsk_sea")


@pytest.mark.slow
@pytest.mark.parametrize(
    "line", ["_add_tombstones", "register_removals", "_delete_events", "count_task_videos", "record"]
)
def test_repeated_deletion_completes_a_killed_one(
    served: Served, owned: Callable[..., dict[str, Path]], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, service = served
    files = owned("birds-1", "upload://tsk_birds/a.mp4", "a" * 64)
    number = _vector_id("birds-1")
    with monkeypatch.context() as patch:
        patch.setattr(deletion, line, _killed)
        with pytest.raises(KeyboardInterrupt):
            delete_videos(["birds-1"])
    service.snapshots.refresh()
    service.search("an owl", 50)  # searches continue
    # The row still exists for a repetition of the deletion; the vector does not.
    assert delete_videos(["birds-1"]).deleted == ["birds-1"]
    service.snapshots.refresh()
    assert "birds-1" not in _found(service)
    assert not any(path.exists() for path in files.values())
    assert number in library.store.tombstones(library.store.manifest(), "tsk_birds")
    assert _counts("tsk_birds")["videos"] == 2


def test_failed_tombstone_deletes_nothing(served: Served) -> None:
    library, _ = served
    entry = library.store.manifest().shards["tsk_birds"]
    (library.store.shard_folder(entry.id) / "ids.npy").write_bytes(b"")
    with pytest.raises(Unavailable, match="Nothing of task tsk_birds was deleted"):
        delete_videos(["birds-0"])
    assert catalog_library.get_video("birds-0").captions == [BIRDS[0]]


def test_compaction_removes_deleted_vectors_and_keeps_results(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, service = served
    delete_videos(["cars-1"])
    service.snapshots.refresh()
    before = service.search("an owl", 50)
    add_release_and_shard("tsk_cars", library.store.manifest().shards["tsk_cars"], order=2)
    (shown,) = list_shards(ShardFilters()).shards
    assert (shown.count, shown.deleted, library_status().vectors) == (3, 1, 2)
    with monkeypatch.context() as patch:
        patch.setattr(deletion, "session_scope", _killed)
        with pytest.raises(KeyboardInterrupt):
            deletion.compact("tsk_cars")
    after = deletion.compact("tsk_cars")
    assert (after.vectors, after.deleted, after.is_compactable) == (2, 0, False)
    (shown,) = list_shards(ShardFilters()).shards
    assert (shown.count, shown.deleted, shown.degraded) == (2, 0, None)
    assert service.snapshots.refresh()
    assert service.search("an owl", 50).results == before.results
    assert audit(library.store).problems == []
    store = library.store
    fingerprint = store.manifest().shards["tsk_cars"].fingerprint
    stored = IndexSnapshot.open(store).shard("tsk_cars", fingerprint=fingerprint)
    assert np.array_equal(stored.vectors(stored.ids), library.stored(CARS)[[0, 2]])


@pytest.mark.slow
def test_video_deleted_during_probing_stays_deleted(
    sqlite_catalog: Settings,
    post: Callable[..., TaskDetails],
    write_video: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = post("birds", 2)
    for number in range(2):
        write_video(settings().media_root / "birds" / f"{number}.mp4", number)
    with session_scope() as session:
        first, second = session.query(Video).order_by(Video.vector_id).all()
    examine = probing.VideoDecoder.decode

    def meanwhile(self: Any, path: Path, **how: Any) -> Any:
        info = examine(self, path, **how)
        if how["name"] == first.uri:
            delete_videos([first.id])
        return info

    monkeypatch.setattr(probing.VideoDecoder, "decode", meanwhile)
    claim = lifecycle.claim_probing(task.id, "prober")
    assert claim is not None
    with claim:
        probing.probe(claim)
    assert [video.id for video in accepted_videos(task.id)] == [second.id]
    assert not library_files.thumbnail_path(first.id).exists()
    assert library_files.thumbnail_path(second.id).exists()
    assert len(list(settings().cache_dir.rglob("*.npy"))) == 1
    assert commands.get_task(task.id).counts.videos == 1


def test_task_without_remaining_videos_fails_with_a_message(
    sqlite_catalog: Settings, post: Callable[..., TaskDetails]
) -> None:
    task = post("birds", 1)
    with session_scope() as session:
        (video,) = session.query(Video).all()
    delete_videos([video.id])
    claim = lifecycle.claim_probing(task.id, "prober")
    assert claim is not None
    with claim:
        probing.probe(claim)
    view = commands.get_task(task.id)
    assert (view.state, view.error) == ("failed", "All videos in the task were deleted.")
