"""Unpacked files of tasks that were not created: the process that removes them, and when."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import pytest
from sqlalchemy import Connection, event, update
from sqlalchemy.exc import OperationalError

from cinestrata_schemas.tasks import TaskSpec
from service.catalog.database import engine, session_scope
from service.catalog.tables import Task, Video
from service.core.errors import InDoubt, Unavailable
from service.core.settings import settings
from service.library.deletion import delete_task, delete_videos
from service.storage import index_manifest, library_files
from service.tasks import commands, task_storage, uploaded_videos
from service.tasks.archive_unpacking import unpack_archive
from tests.packed_files import pack_zip

ORPHAN, DAY = "tsk_00000000000000aa", timedelta(days=1).total_seconds()

pytestmark = pytest.mark.usefixtures("sqlite_catalog")


def _archive() -> BinaryIO:
    return pack_zip({"manifest.jsonl": b'{"uri": "a.mp4", "captions": ["a bird"]}\n', "a.mp4": b"A" * 100})


def _post(name: str = "birds", key: str | None = None) -> str:
    return commands.create_task_from_archive(_archive(), "v.zip", name=name, idempotency_key=key).task.id


def _unpack(name: str = ORPHAN) -> Path:
    """As a process leaves it that is killed before its task is stored."""
    unpack_archive(_archive(), "v.zip", name)
    return settings().uploads_dir / name


def _uploads() -> set[str]:
    return {path.name for path in settings().uploads_dir.iterdir()}


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """``later(seconds)`` advances the clock of the sweep."""

    def move(seconds: float) -> None:
        monkeypatch.setattr(
            "service.tasks.uploaded_videos.time.time",
            lambda: time.monotonic() - begun[0] + begun[1] + seconds,
        )

    begun = time.monotonic(), time.time()
    return move


def test_files_of_a_killed_upload_are_removed_after_a_day(later: Callable[[float], None]) -> None:
    stored = _post()
    _unpack()
    assert uploaded_videos.sweep_uploads() == [], "it may be running now"
    later(DAY - 60)
    assert uploaded_videos.sweep_uploads() == []
    later(DAY + 60)
    assert uploaded_videos.sweep_uploads() == [ORPHAN]
    assert _uploads() == {stored}
    assert library_files.resolve_video_path(f"upload://{stored}/a.mp4").read_bytes() == b"A" * 100
    assert uploaded_videos.sweep_uploads() == []


def test_recently_written_file_keeps_its_folder(
    later: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _unpack()
    later(DAY + 60)
    lstat = Path.lstat

    def written_just_now(path: Path) -> Any:
        status = lstat(path)
        is_new = path == folder / "a.mp4"
        return os.stat_result((*status[:9], int(time.time() + DAY))) if is_new else status

    monkeypatch.setattr(Path, "lstat", written_just_now)
    assert uploaded_videos.sweep_uploads() == []
    assert folder.is_dir()


def test_files_of_another_task_are_kept(later: Callable[[float], None]) -> None:
    """The task of the upload is deleted; a later task names one of its files."""
    one = _post()
    spec = {"name": "again", "videos": [{"uri": f"upload://{one}/a.mp4", "captions": ["a bird"]}]}
    other = commands.create_task(TaskSpec.model_validate(spec)).task.id
    for task in (one, other):
        commands.cancel_task(task)
    delete_task(one)
    later(DAY + 60)
    assert uploaded_videos.sweep_uploads() == []
    remaining = library_files.resolve_video_path(f"upload://{one}/a.mp4")
    assert remaining.is_file()
    delete_task(other)
    assert not remaining.parent.exists()


def test_files_of_an_indexed_task_are_kept_without_its_catalog_row(
    later: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old or wrong catalog, such as one from a backup, must not delete videos."""
    _unpack()
    later(DAY + 60)

    with monkeypatch.context() as patch:
        patch.setattr(index_manifest, "read_manifest", lambda: SimpleNamespace(shards={ORPHAN: object()}))
        assert uploaded_videos.sweep_uploads() == []
    assert uploaded_videos.sweep_uploads() == [ORPHAN]


def test_files_of_users_are_kept(later: Callable[[float], None]) -> None:
    """The folder is below the media root, which contains files of users."""
    for name in ("holiday", "tsk_1", f"{ORPHAN}.bak"):
        (settings().uploads_dir / name).mkdir(parents=True)
    (settings().uploads_dir / ORPHAN).write_bytes(b"a file")
    later(DAY + 60)
    assert uploaded_videos.sweep_uploads() == []
    assert len(_uploads()) == 4


def _break_next_commit(stored: bool) -> Callable[[], None]:
    """Raise in the next commit that stores a task, after it was executed or rolled back.

    Returns:
        Function that removes the listeners again.
    """

    def commit(connection: Connection) -> None:
        if "tasks" not in written:
            return
        written.clear()
        connection.connection.cursor().execute("COMMIT" if stored else "ROLLBACK")
        raise OperationalError("COMMIT", {}, Exception("server closed the connection unexpectedly"))

    def writes(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("INSERT INTO tasks"):
            written.add("tasks")

    written: set[str] = set()
    bind = engine()
    event.listen(bind, "commit", commit)
    event.listen(bind, "before_cursor_execute", writes)

    def remove_listeners() -> None:
        event.remove(bind, "commit", commit)
        event.remove(bind, "before_cursor_execute", writes)

    return remove_listeners


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "not stored"])
def test_commit_in_doubt_leaves_the_files_to_the_sweep(stored: bool, later: Callable[[float], None]) -> None:
    remove_listeners = _break_next_commit(stored)
    with pytest.raises(InDoubt):
        _post(key="k")
    remove_listeners()
    (name,) = _uploads()
    assert library_files.resolve_video_path(f"upload://{name}/a.mp4").is_file()
    with session_scope() as session:
        assert (session.get(Task, name) is not None) is stored
    later(DAY + 60)
    assert uploaded_videos.sweep_uploads() == ([] if stored else [name])
    assert (_post(key="k") == name) is stored, "a repeated request is stored once"
    assert len(commands.list_tasks()) == 1


def test_failure_before_the_commit_leaves_no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(*_: Any) -> None:
        raise OperationalError("INSERT", {}, Exception("database is locked"))

    monkeypatch.setattr(task_storage, "next_position", busy)
    with pytest.raises(Unavailable) as caught:
        _post()
    assert not isinstance(caught.value, InDoubt)
    assert _uploads() == set()


SPELLINGS: dict[str, Callable[[Path], str]] = {
    "relative": lambda file: str(file.relative_to(settings().media_root)),
    "unnormalized": lambda file: f"./uploads//{file.parent.name}/../{file.parent.name}/{file.name}",
    "upload": lambda file: f"upload://{file.parent.name}//./x/../{file.name}",
    "absolute": str,
    "file URI": lambda file: file.as_uri().replace("a.mp4", "%61.mp4"),
    "linked folder": lambda file: f"{_link('mine', file.parent)}/{file.name}",
    "linked file": lambda file: _link("b.mp4", file),
}


def _link(name: str, target: Path) -> str:
    (settings().media_root / name).symlink_to(target)
    return name


@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS)
@pytest.mark.parametrize("first", ["upload", "path"])
def test_uploaded_file_that_another_video_names_by_a_path_stays(
    spelling: Callable[[Path], str], first: str
) -> None:
    """The uploads are below the media root, so tasks and syncs may name them by paths."""
    task = _post()
    file = settings().uploads_dir / task / "a.mp4"
    spec = {"name": "again", "videos": [{"uri": spelling(file), "id": "path"}]}
    commands.create_task(TaskSpec.model_validate(spec))
    with session_scope(write=True) as session:
        session.execute(update(Video).where(Video.id != "path").values(id="upload"))
        session.execute(update(Video).values(content_hash="ab" * 32))  # probed
    delete_videos([first])
    assert file.exists()
    delete_videos(["upload", "path"])
    is_link = spelling in (SPELLINGS["linked folder"], SPELLINGS["linked file"])
    assert file.exists() == (is_link and first == "upload"), "a link belongs to its user"


@pytest.mark.parametrize("uri", ["uploads/holiday/a.mp4", "upload://holiday/a.mp4"])
def test_files_of_users_in_the_uploads_folder_are_not_deleted(uri: str) -> None:
    file = settings().uploads_dir / "holiday" / "a.mp4"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"video")
    spec = {"name": "holiday", "videos": [{"uri": uri, "id": "mine"}]}
    commands.create_task(TaskSpec.model_validate(spec))
    assert delete_videos(["mine"]).deleted == ["mine"]
    assert file.exists()
