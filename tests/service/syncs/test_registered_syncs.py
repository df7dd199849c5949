"""Registered syncs: runs that create a domain, append, delete and record errors, one at a time."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from sqlalchemy import update

from cinestrata_schemas.syncs import SyncCounts, SyncDetails, SyncSpec
from cinestrata_schemas.tasks import AppendSpec
from cli.embedded.up_command import release_leases
from service.catalog.database import session_scope
from service.catalog.operation_tables import LeaseRow, Sync
from service.catalog.tables import Task, Video
from service.core.errors import InvalidInput, LeaseLost, NotFound
from service.core.list_parameters import VideoFilters
from service.core.settings import settings
from service.library.library_listing import list_videos
from service.syncs import registered_syncs
from service.syncs.registered_syncs import (
    claim_run,
    list_syncs,
    register_sync,
    remove_sync,
    run_sync,
    send_due_syncs,
)
from service.syncs.sync_plan import SyncPlan
from service.tasks import broker, commands
from tests.service.syncs.finished_tasks import finish


@pytest.fixture(autouse=True)
def messages(
    tmp_path: Path, settings_factory: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """IDs of the syncs that messages were sent for."""
    settings_factory(tmp_path)
    sent: list[str] = []
    monkeypatch.setattr(broker, "send_sync", lambda sync: sent.append(sync) or True)
    monkeypatch.setattr(broker, "send_probe", lambda task: True)
    return sent


@pytest.fixture
def films() -> Path:
    """A folder of two files below the media root."""
    folder = settings().media_root / "films"
    folder.mkdir()
    for name in ("a", "b"):
        write(folder, name)
    return folder


def write(folder: Path, name: str, content: str = "") -> None:
    (folder / f"{name}.mp4").write_bytes((content or name).encode())


def register(**fields: object) -> SyncDetails:
    spec = {"name": "films", "source": "films", "every_seconds": 900} | fields
    return register_sync(SyncSpec.model_validate(spec))


def run(sync: SyncDetails) -> SyncDetails:
    """Return the sync after a run, which is due."""
    with session_scope(write=True) as session:
        session.execute(update(Sync).where(Sync.id == sync.id).values(next_run_at=datetime.now(UTC)))
    run_sync(sync.id)
    return next(each for each in list_syncs() if each.id == sync.id)


def counts_of(sync: SyncDetails) -> SyncCounts:
    """Return the counts of a run that ends without an error."""
    done = run(sync)
    assert done.error is None
    assert done.counts is not None
    return done.counts


def appends() -> list[int]:
    """Return the appends' video counts."""
    return [task.counts.videos for task in commands.list_tasks() if task.into]


def test_domain_follows_its_source(films: Path, messages: list[str]) -> None:
    sync = register(vanished="delete", captions_from_names=True)
    assert messages == [sync.id]
    assert counts_of(sync).new == 2
    (task,) = commands.list_tasks()
    assert (task.name, task.counts.videos) == ("films", 2)
    assert run(sync).error is None  # the domain is being learned
    assert len(commands.list_tasks()) == 1
    finish()
    assert run(sync).task_id == task.id

    write(films, "c", "third")
    (films / "a.mp4").unlink()
    counts = counts_of(sync)
    assert (counts.new, counts.unchanged, counts.vanished, counts.deleted) == (1, 1, 1, 0)
    assert appends() == [1]
    again = counts_of(sync)  # the append is unfinished, and its file is not sent again
    assert (again.new, again.unchanged, again.vanished, again.deleted) == (0, 2, 1, 0)
    assert appends() == [1]
    finish()
    assert counts_of(sync).deleted == 1


def test_failed_append_is_sent_again(films: Path) -> None:
    sync = register()
    run(sync)
    finish()
    write(films, "c")
    run(sync)
    failed = [task.id for task in commands.list_tasks() if task.into]
    finish("failed")
    run(sync)
    assert appends() == [1]
    assert [task.id for task in commands.list_tasks() if task.into] != failed


def test_lost_source_deletes_nothing(films: Path) -> None:
    sync = register(vanished="delete")
    run(sync)
    finish()
    for name in ("a", "b"):
        (films / f"{name}.mp4").unlink()
    emptied = run(sync)
    assert "no videos" in (emptied.error or "")
    assert str(settings().media_root) not in (emptied.error or "")
    films.rmdir()
    assert "films" in (run(sync).error or "")
    (task,) = commands.list_tasks()
    assert task.counts.videos == 2
    films.mkdir()
    for name in ("a", "b"):
        write(films, name)
    assert run(sync).error is None


def test_uploaded_files_are_no_part_of_the_media_root(films: Path) -> None:
    """A manifest that names one added its video, which stays."""
    uploads = settings().media_root / "uploads"
    for name, letter in (("0123456789abcdef", "c"), ("fedcba9876543210", "d")):
        folder = uploads / f"tsk_{name}"
        folder.mkdir(parents=True)
        write(folder, letter)
    (uploads / "holiday").mkdir()
    write(uploads / "holiday", "e")
    manifest = settings().media_root / "manifest.csv"
    files = ["films/a.mp4", "films/b.mp4", "uploads/tsk_0123456789abcdef/c.mp4", "uploads/holiday/e.mp4"]
    manifest.write_text("\n".join(["file", *files]))
    sync = register(source=".", vanished="delete")
    run(sync)
    finish()
    manifest.unlink()
    counts = counts_of(sync)
    assert (counts.new, counts.unchanged) == (0, 3)
    assert (counts.vanished, counts.deleted, counts.left_out) == (0, 0, 0)
    (task,) = commands.list_tasks()
    assert sorted(video.uri for video in list_videos(VideoFilters(task=task.id)).videos) == sorted(files)


def test_unreadable_folder_deletes_nothing(films: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests may run as root, for whom no folder is unreadable."""
    (films / "inner").mkdir()
    write(films / "inner", "c")
    sync = register(vanished="delete")
    run(sync)
    finish()
    scan = os.scandir

    def refuse(path: str | Path = ".") -> Any:
        if Path(path).name == "inner":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    (films / "a.mp4").unlink()
    counts = counts_of(sync)
    assert (counts.unchanged, counts.vanished, counts.deleted, counts.left_out) == (1, 1, 1, 1)
    assert "cannot be read" in counts.left_out_files[0].reason
    (task,) = commands.list_tasks()
    assert {video.uri for video in list_videos(VideoFilters(task=task.id)).videos} == {
        "films/b.mp4",
        "films/inner/c.mp4",
    }


def test_manifest_that_links_out_of_the_media_root_is_not_read(films: Path) -> None:
    secret = settings().data_dir / "secret"
    secret.write_text("file,caption\na.mp4,key\n")
    (films / "manifest.csv").symlink_to(secret)
    assert "outside" in (run(register()).error or "")
    assert commands.list_tasks() == []
    (films / "manifest.csv").unlink()
    (films.parent / "texts").mkdir()
    secret.replace(films.parent / "texts" / "shared")
    (films / "manifest.csv").symlink_to(films.parent / "texts" / "shared")
    assert run(register()).error is None


def test_files_that_cannot_be_used_do_not_block_the_others(films: Path) -> None:
    """Links out of the media root, broken links and bad names are named, and their learned videos stay."""
    sync = register(vanished="delete")
    assert run(sync).error is None
    finish()
    secret = settings().data_dir / "secret"
    secret.write_text("a key")
    (films / "a.mp4").unlink()
    (films / "a.mp4").symlink_to(secret)  # learned before
    (films / "b.txt").symlink_to(secret)  # learned before
    (films / "broken.mp4").symlink_to("nothing")
    (films / "line\n.mp4").write_bytes(b"x")
    Path(os.fsdecode(os.fsencode(films) + b"/\xff.mp4")).write_bytes(b"x")
    write(films, "c")
    counts = counts_of(sync)
    assert (counts.new, appends()) == (1, [1])
    assert (counts.vanished, counts.deleted, counts.left_out) == (0, 0, 5)
    reasons = {file.path: file.reason for file in counts.left_out_files}
    assert {path: reason.partition(".")[0] for path, reason in reasons.items()} == {
        "a.mp4": "It is a link or a path that leads outside the media root",
        "b.txt": "The file is a link that leads outside the media root",
        "broken.mp4": "It is a link to a missing file",
        "line\\n.mp4": "The file name contains a control character",
        "\\udcff.mp4": "The file name is not Unicode",
    }
    assert str(settings().data_dir) not in str(reasons)
    (domain, _) = commands.list_tasks()
    assert {video.uri for video in list_videos(VideoFilters(task=domain.id)).videos} >= {
        "films/a.mp4",
        "films/b.mp4",
    }
    details = list_syncs()[0]
    assert SyncDetails.model_validate_json(details.model_dump_json()) == details


def test_sync_that_is_removed_while_its_source_is_listed_stops(
    films: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = register()
    walk = os.walk

    def remove(*given: Any, **options: Any) -> Any:
        remove_sync(sync.id)
        return walk(*given, **options)

    monkeypatch.setattr(os, "walk", remove)
    run_sync(sync.id)
    assert (list_syncs(), commands.list_tasks()) == ([], [])


def test_domain_follows_one_source(films: Path) -> None:
    """Each of two sources would delete the other's videos."""
    other = films.parent / "other"
    other.mkdir()
    write(other, "c")
    first = register(name="My Films", vanished="delete")
    run(first)
    for name in ("my films", "my-films"):
        again = register(name=name, source="other", every_seconds=60)
        assert [(sync.id, sync.name, sync.source) for sync in list_syncs()] == [(first.id, name, "other")]
        assert (again.id, again.every_seconds, again.vanished) == (first.id, 60, "keep")
    register(name="others", source="other")
    assert len(list_syncs()) == 2


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_concurrent_registrations_of_a_name_store_one_sync(
    database: str, tmp_path: Path, settings_factory: Callable[..., Any]
) -> None:
    """Names that differ in case are one name; no unique index compares them."""
    settings_factory(tmp_path / database, database)
    (settings().media_root / "films").mkdir()
    for attempt in range(4):
        names = [f"Films {attempt}", f"films {attempt}", f"FILMS {attempt}", f"FiLMS {attempt}"]
        barrier = Barrier(len(names))

        def start(name: str, barrier: Barrier = barrier) -> SyncDetails:
            barrier.wait()
            return register(name=name)

        with ThreadPoolExecutor(len(names)) as threads:
            stored = {sync.id for sync in threads.map(start, names)}
        assert len(stored) == 1
        assert len(list_syncs()) == attempt + 1


def test_two_domains_follow_equal_files(films: Path) -> None:
    """Ids are unique in the library; a file of the first domain must not block the second."""
    first, second = register(), register(name="copies")
    assert (run(first).error, run(second).error) == (None, None)
    assert [task.counts.videos for task in commands.list_tasks()] == [2, 2]
    finish()
    for sync in (first, second):
        counts = counts_of(sync)
        assert (counts.new, counts.unchanged, counts.vanished) == (0, 2, 0)


def test_deleted_domain_is_not_created_again(films: Path) -> None:
    sync = register()
    run(sync)
    finish("cancelled")
    run(sync)
    (task,) = commands.list_tasks()
    with session_scope(write=True) as session:
        session.query(Video).delete()
        session.query(Task).delete()
    assert "was deleted" in (run(sync).error or "")
    assert commands.list_tasks() == []
    register()  # registered again: wanted
    assert run(sync).error is None
    assert [each.name for each in commands.list_tasks()] == [task.name]


def test_two_syncs_at_once_add_a_file_once(films: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`cinestrata sync` sends the same file while the service plans; the second one is rejected as a copy."""
    sync = register()
    run(sync)
    finish()
    write(films, "c")
    original = registered_syncs.plan_sync

    def plan_and_send(*given: Any, **options: Any) -> SyncPlan:
        plan = original(*given, **options)
        videos = [video.model_copy(update={"uri": f"films/{video.uri}", "id": None}) for video in plan.new]
        commands.append_videos(commands.list_tasks()[0].id, AppendSpec(videos=videos))
        return plan

    with monkeypatch.context() as patch:
        patch.setattr(registered_syncs, "plan_sync", plan_and_send)
        assert run(sync).error is None
    finish()
    for _ in range(2):
        counts = counts_of(sync)
        assert (counts.new, counts.unchanged, counts.rejected) == (0, 3, 0)
    videos = list_videos(VideoFilters(task=commands.list_tasks()[0].id)).videos
    uris = sorted(video.uri for video in videos if video.status == "accepted")
    assert uris == [f"films/{name}.mp4" for name in "abc"]


def pass_time(seconds: float) -> None:
    """Move all times of the syncs into the past."""
    with session_scope(write=True) as session:
        for sync in session.query(Sync):
            sync.next_run_at -= timedelta(seconds=seconds)
        for lease in session.query(LeaseRow):
            lease.until -= timedelta(seconds=seconds)


def hours_until_the_next_run() -> float:
    return (list_syncs()[0].next_run_at - datetime.now(UTC)) / timedelta(hours=1)


def send_without_a_broker() -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broker, "send_sync", lambda sync: False)
        return send_due_syncs()


def test_due_syncs_and_lost_messages_are_sent_once(films: Path, messages: list[str]) -> None:
    sync = register(every_seconds=86_400)
    assert send_due_syncs() == 0
    pass_time(61)
    assert send_due_syncs() == 1, "no worker has received the message"
    run_sync(sync.id)
    started = list_syncs()[0].started_at
    run_sync(sync.id)  # the first message was only late
    assert (len(commands.list_tasks()), list_syncs()[0].started_at) == (1, started)
    assert hours_until_the_next_run() > 23
    assert send_due_syncs() == 0
    pass_time(86_400)
    assert (send_without_a_broker(), send_due_syncs(), send_due_syncs()) == (0, 1, 0)
    assert messages == [sync.id] * 3


def test_one_run_at_a_time_and_that_of_a_killed_worker_is_repeated(films: Path) -> None:
    sync = register(every_seconds=86_400)
    killed = claim_run(sync.id)
    assert killed is not None
    assert list_syncs()[0].running
    assert claim_run(sync.id) is None
    run_sync(sync.id)
    assert commands.list_tasks() == []
    pass_time(299)
    assert send_due_syncs() == 0
    pass_time(2)
    assert (send_without_a_broker(), send_due_syncs(), send_due_syncs()) == (0, 1, 0)
    assert not list_syncs()[0].running
    run_sync(sync.id)
    with pytest.raises(LeaseLost):
        killed.renew()
    killed.finish(None, "late")
    assert (len(commands.list_tasks()), list_syncs()[0].error) == (1, None)
    assert hours_until_the_next_run() > 23
    pass_time(86_400)
    assert claim_run(sync.id) is not None
    release_leases()
    assert send_due_syncs() == 1, "the start of the service repeats interrupted runs"


def test_registration_during_a_run_starts_another_one(films: Path, messages: list[str]) -> None:
    sync = register()
    running = claim_run(sync.id)
    assert running is not None
    register()
    assert messages == [sync.id, sync.id]
    with pytest.raises(LeaseLost):
        running.renew()
    running.finish(None, "of the previous source")
    assert list_syncs()[0].error is None
    run_sync(sync.id)
    assert len(commands.list_tasks()) == 1


def test_registration_that_keeps_vanished_videos_applies_to_a_run_in_progress(
    films: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = register(vanished="delete")
    run(sync)
    finish()
    (films / "a.mp4").unlink()
    plan_sync = registered_syncs.plan_sync

    def register_after_plan(*arguments: Any, **options: Any) -> SyncPlan:
        plan = plan_sync(*arguments, **options)
        register(vanished="keep")
        return plan

    with monkeypatch.context() as patch:
        patch.setattr(registered_syncs, "plan_sync", register_after_plan)
        run(sync)
    (task,) = commands.list_tasks()
    assert len(list_videos(VideoFilters(task=task.id)).videos) == 2
    counts = counts_of(sync)
    assert (counts.vanished, counts.deleted) == (1, 0)


@pytest.mark.parametrize("name", ["Küche Eins", "küche EINS", "kuche-eins"])
def test_sync_is_removed_by_name_or_slug(films: Path, name: str) -> None:
    sync = register(name="Küche Eins")
    register(name="other")
    run(sync)  # the domain has a slug
    remove_sync(name)
    assert [each.name for each in list_syncs()] == ["other"]
    for unknown in (name, "kuche", "\0", "\udcff"):
        with pytest.raises(NotFound):
            remove_sync(unknown)


@pytest.mark.parametrize("source", ["../elsewhere", "/etc", "missing", "s3://bucket/films", "a\0b"])
def test_source_outside_of_the_media_root_is_refused(source: str, films: Path) -> None:
    with pytest.raises(InvalidInput) as refused:
        register(source=source)
    assert refused.value.errors[0].field == "source"


def test_linked_folders_stay_below_the_media_root_and_may_be_unmounted(films: Path) -> None:
    (films.parent / "more").mkdir()
    write(films.parent / "more", "c")
    (films / "more").symlink_to(films.parent / "more")
    sync = register(vanished="delete")
    assert counts_of(sync).new == 3
    finish()
    (films.parent / "more").rename(films.parent / "away")
    counts = counts_of(sync)
    assert (counts.unchanged, counts.vanished, counts.deleted, counts.left_out) == (2, 0, 0, 1)
    (films / "more").unlink()
    (films / "more").symlink_to(settings().data_dir)
    assert [file.path for file in counts_of(sync).left_out_files] == ["more/"]
    (films / "more").unlink()
    assert counts_of(sync).deleted == 1
