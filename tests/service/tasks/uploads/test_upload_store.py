"""Files of resumable uploads: limits, expiry, and names that can be stored."""

from __future__ import annotations

import itertools
import os
import shutil
import time
from pathlib import Path, PurePosixPath
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from cinestrata_schemas.tasks import AppendSpec, TaskSpec, VideoSpec
from service.core import request_limits
from service.core.errors import InsufficientStorage, InvalidInput, NotFound, TooLarge
from service.core.settings import settings
from service.storage.library_paths import resolve_video_path
from service.tasks.uploads import upload_store, uploaded_videos
from service.tasks.uploads.upload_store import (
    Upload,
    UploadWriter,
    create_upload,
    find_upload,
    sweep_incoming,
)
from service.tasks.uploads.uploaded_videos import adopted_uploads, storable_paths

pytestmark = pytest.mark.usefixtures("sqlite_catalog")


def _age(upload: Upload, seconds: float) -> None:
    for path in upload.path.parent.glob(f"{upload.id}.*"):
        os.utime(path, (time.time() - seconds,) * 2)


def test_expired_upload_is_deleted() -> None:
    limit = upload_store.EXPIRES_AFTER.total_seconds()
    fresh, old, open_one = (create_upload("a.mp4", "", 4) for _ in range(3))
    _age(fresh, limit - 60)
    _age(old, limit + 60)
    _age(open_one, limit + 60)
    writer = UploadWriter(open_one, 0)
    (old.path.parent / "notes.txt").write_text("not an upload")
    os.utime(old.path.parent / "notes.txt", (0, 0))
    assert sweep_incoming() == [old.id]
    writer.interrupt()
    assert {find_upload(each.id) for each in (fresh, open_one)} == {fresh, open_one}
    with pytest.raises(NotFound):
        find_upload(old.id)
    assert (old.path.parent / "notes.txt").exists()


def test_remains_of_a_killed_creation_are_deleted() -> None:
    upload = create_upload("a.mp4", "", 4)
    upload.path.unlink()
    with pytest.raises(NotFound):
        find_upload(upload.id)
    _age(upload, upload_store.EXPIRES_AFTER.total_seconds() + 60)
    sweep_incoming()
    assert not list(upload.path.parent.glob(f"{upload.id}*"))


@pytest.mark.slow
def test_total_of_pending_uploads_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_limits, "MAX_PENDING_BYTES", 100)
    first = create_upload("a.mp4", "", 60)
    with pytest.raises(TooLarge, match="100 bytes in total"):
        create_upload("b.mp4", "", 41)
    assert upload_store.available_bytes() == 40
    create_upload("c.mp4", "", 40)
    upload_store.delete_upload(first)
    assert create_upload("d.mp4", "", 60).size == 60
    monkeypatch.setattr(request_limits, "MAX_PENDING_UPLOADS", 2)
    with pytest.raises(TooLarge, match="2 uploads"):
        create_upload("e.mp4", "", 0)


def test_full_disk_refuses_a_new_upload(monkeypatch: pytest.MonkeyPatch) -> None:
    mib = 1024**2
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=600 * mib))
    with pytest.raises(InsufficientStorage) as caught:
        create_upload("a.mp4", "", 89 * mib)
    assert (caught.value.needed_bytes, caught.value.free_bytes) == (89 * mib, 88 * mib)
    # The bytes that pending uploads still expect are reserved.
    create_upload("b.mp4", "", 50 * mib)
    with pytest.raises(InsufficientStorage):
        create_upload("c.mp4", "", 50 * mib)
    assert not list((settings().uploads_dir / "incoming").glob(f"*.{89 * mib}"))


def test_names_become_different_storable_paths() -> None:
    stored = {
        "../../etc/passwd": "etc/passwd",
        "a/clip.mp4": "a/clip.mp4",
        "b/clip.mp4": "b/clip.mp4",
        "a/CLIP.mp4": "a (2)/CLIP.mp4",
        "C:\\videos\\clip.mp4": "C_/videos/clip.mp4",
        "clip": "clip",
        "clip/inside.mp4": "clip (2)/inside.mp4",
        "Küche 厨房/видео.mp4": "Küche 厨房/видео.mp4",
        "x" * 500 + ".mp4": "x" * 196 + ".mp4",
        "new\nline\x00.mp4": "new_line_.mp4",
        "\x9b31m\u202egpj.mp4": "_31m_gpj.mp4",
        "": "video",
        ".../.../catalog.db": ".../.../catalog.db",
        "." * 300: "." * 200,
    }
    assert storable_paths([*stored]) == [*stored.values()]


@pytest.mark.parametrize("kind", ["letter case", "occupied numbers"])
def test_collisions_are_resolved_with_few_tries(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "letter case":
        cases = itertools.islice(itertools.product(*((c, c.upper()) for c in "abcdefghij")), 500)
        names = ["".join(letters) + "/x" for letters in cases]
    else:
        numbered = [f"b ({number})" for number in range(2, 250)]
        names = ["b", *numbered, *(f"b/{number}" for number in range(250))]
    tries: list[PurePosixPath] = []

    def count(*parts: str) -> PurePosixPath:
        tries.append(PurePosixPath(*parts))
        return tries[-1]

    monkeypatch.setattr(uploaded_videos, "PurePosixPath", count)
    assert len(set(map(str.casefold, storable_paths(names)))) == len(names)
    assert len(tries) < 40 * len(names)


@hypothesis_settings(max_examples=20)
@given(
    st.lists(
        st.text(st.characters(codec="utf-8"), max_size=20)
        | st.text(st.sampled_from("../ \\a"), max_size=20)
        | st.text(st.sampled_from("."), min_size=190, max_size=300),
        max_size=8,
    )
)
def test_any_names_can_be_stored(names: list[str]) -> None:
    stored = storable_paths(names)
    assert len({path.casefold() for path in stored}) == len(names)
    for path in stored:
        parts = path.split("/")
        assert not {"", ".", ".."} & {*parts}
        assert all(len(part.encode()) <= 255 for part in parts)
        assert not any(ord(c) < 32 or c in "\\:" for c in path)


def test_files_outside_the_folder_of_the_task_stay() -> None:
    outside = settings().uploads_dir.parent / "catalog.db"
    upload = create_upload(".../.../catalog.db", "", 4)
    outside.write_bytes(b"kept")
    upload.path.write_bytes(b"evil")
    spec = TaskSpec(name="films", videos=[VideoSpec(uri=f"upload://{upload.id}")])
    with adopted_uploads(spec, "tsk_0123456789abcdef") as adopted:
        (video,) = adopted.videos
        assert resolve_video_path(video.uri).read_bytes() == b"evil"
    assert outside.read_bytes() == b"kept"


def test_existing_file_is_not_replaced() -> None:
    """A file system may regard two names as equal that differ for Python."""
    upload = create_upload("a.mp4", "", 4)
    upload.path.write_bytes(b"next")
    first = settings().uploads_dir / "tsk_0123456789abcdef" / "a.mp4"
    first.parent.mkdir()
    first.write_bytes(b"first")
    spec = AppendSpec(videos=[VideoSpec(uri=f"upload://{upload.id}")])
    with pytest.raises(InvalidInput, match="can't distinguish"), adopted_uploads(spec, first.parent.name):
        pass
    assert find_upload(upload.id) == upload


def test_adopted_files_are_on_disk_before_the_task_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that was killed after the last byte has not synced its file."""
    upload = create_upload("a.mp4", "", 4)
    upload.path.write_bytes(b"clip")
    synced: list[int] = []
    original = uploaded_videos.sync

    def record_sync(path: Path) -> None:
        synced.append(path.stat().st_ino)
        original(path)

    monkeypatch.setattr(uploaded_videos, "sync", record_sync)
    spec = TaskSpec(name="day", videos=[VideoSpec(uri=f"upload://{upload.id}")])
    with adopted_uploads(spec, "tsk_day"):
        assert upload.path.stat().st_ino in synced
