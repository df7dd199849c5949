"""`cinestrata doctor` finds every changed byte of a library's files, and `--restore-from` restores the damaged ones."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from sqlalchemy import delete, select, update

from cli.commands import doctor
from cli.commands.library_checks import restore_files
from index.files.manifest_format import Manifest
from index.shard_store import ShardStore
from media import VideoDecoder, content_hash
from service.catalog.database import session_scope
from service.catalog.tables import Shard, Video
from service.core.settings import Settings, settings
from service.library.deletion import delete_videos
from service.storage import index_manifest
from tests.cli.invocation import run
from tests.index.disk_faults import flip_byte
from tests.index_locking import compaction
from tests.shared_folders import restore_or_make
from trainer.training_checkpoint import Checkpoint, CheckpointStore

UPLOADED = "a-0"  # of the first domain, which has a deleted video


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder where the first tests save a library and its snapshot for the others."""
    return tmp_path_factory.mktemp("saved")


@pytest.fixture
def library(publish_task: Callable[..., Manifest], folder: Settings, saved: Path) -> Path:
    """The data folder of a library with an uploaded video, previews and a checkpoint."""
    restore_or_make(saved / "library", lambda: _write_library(publish_task, folder))
    return folder.data_dir


def _write_library(publish_task: Callable[..., Manifest], folder: Settings) -> None:
    for name in ("a", "b"):
        publish_task(name)
    with session_scope(write=True) as session:
        session.execute(update(Video).values(status="accepted"))
    delete_videos(["a-3"])
    video = folder.uploads_dir / "tsk_0123456789abcdef" / "clip.mp4"
    video.parent.mkdir(parents=True)
    with av.open(str(video), "w") as container:
        stream = container.add_stream("libx264", rate=4)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        for shade in (0, 80, 160, 240):
            picture = np.full((64, 64, 3), shade, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    with session_scope(write=True) as session, VideoDecoder() as decoder:
        preview = folder.thumbnails_dir / f"{UPLOADED}.jpg"
        decoder.decode(video, frames=8, size=64, thumbnail=preview)
        for row in session.scalars(select(Video).where(Video.status == "accepted")):
            if row.id == UPLOADED:
                row.uri = f"upload://{video.relative_to(folder.uploads_dir)}"
                row.content_hash = content_hash(video)
            else:
                shutil.copy(preview, folder.thumbnails_dir / f"{row.id}.jpg")
    store = CheckpointStore(folder.checkpoints_dir / "tsk_x", "run", 3)
    store.save(Checkpoint(2, [1.0, 0.5], {"weight": torch.ones(3)}, {"state": {}, "param_groups": []}))


@pytest.fixture
def backup(library: Path, saved: Path) -> Path:
    """Snapshot of the library. Tests must not change it."""
    path = saved / "library.tar"
    if not path.exists():
        written = run("snapshot", str(path))
        assert written.exit_code == 0, written.output
    return path


def _checked_files(folder: Path) -> list[Path]:
    """Return the files with bytes that the doctor verifies, without the catalog, whose values SQLite stores without
    checksums.
    """
    parts = ("index", "media/uploads", "thumbnails", "checkpoints")
    return sorted(
        path
        for part in parts
        for path in (folder / part).rglob("*")
        if path.is_file() and path.stat().st_size
    )


def _faults() -> str:
    texts = []
    for check in (doctor.check_index, doctor.check_stored_files):
        try:
            check(settings())
        except Exception as error:
            texts.append(str(error))
    return "\n".join(texts)


def _restore(backup: Path) -> dict[str, list[str]]:
    return vars(restore_files(settings(), backup))


def _find(folder: Path, pattern: str) -> Path:
    return sorted(folder.glob(pattern))[0]


@pytest.mark.slow
def test_every_changed_byte_is_found(library: Path) -> None:
    files = _checked_files(library)
    kinds = {path.suffix for path in files}
    assert kinds == {".npy", ".json", ".faiss", ".safetensors", ".jpg", ".mp4", ".pt"}
    assert _faults() == ""

    @hypothesis_settings(
        max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
    @given(
        file=st.sampled_from(files), position=st.floats(0, 1, exclude_max=True), change=st.integers(1, 255)
    )
    def check(file: Path, position: float, change: int) -> None:
        offset = int(position * file.stat().st_size)
        content = file.read_bytes()
        flip_byte(file, offset, change)
        try:
            assert _faults(), f"byte {offset} of {file.relative_to(library)} was changed by {change:#x}"
        finally:
            file.write_bytes(content)

    check()
    assert _faults() == ""


@pytest.mark.parametrize(("damage", "read"), [("altered", "is_manifest_canonical"), ("missing", "manifest")])
def test_publication_during_the_restoring_is_kept(
    library: Path, backup: Path, damage: str, read: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker publishes after the command has read the damaged manifest."""
    store = ShardStore(settings().index_dir)
    before, text, original = store.manifest(), store.manifest_path.read_text(), getattr(ShardStore, read)
    if damage == "missing":
        store.manifest_path.unlink()
    else:
        store.manifest_path.write_text(text.replace(": ", ":\t", 1))

    def publish_after(self: ShardStore) -> Any:
        result = original(self)
        monkeypatch.setattr(ShardStore, read, original)
        with store.write_lock():
            store.replace_manifest(before, before)
        return result

    monkeypatch.setattr(ShardStore, read, publish_after)
    assert _restore(backup) == {"restored": [], "lost": []}
    assert store.manifest().generation == before.generation + 1


def test_manifest_is_not_restored_while_another_writer_holds_the_lock(
    library: Path, backup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_manifest, "WAIT_SECONDS", 0.1)
    manifest = library / "index" / "manifest.json"
    altered = manifest.read_text().replace(": ", ":\t", 1)
    with compaction():
        assert _restore(backup) == {"restored": [], "lost": []}, "an intact manifest needs no lock"
        manifest.write_text(altered)
        (lost,) = _restore(backup)["lost"]
        assert "try again" in lost
        assert manifest.read_text() == altered
    assert len(_restore(backup)["restored"]) == 1


def test_index_files_are_copied_from_a_backup(library: Path, backup: Path) -> None:
    damaged = [
        _find(library, "index/shards/*/vectors.faiss"),
        _find(library, "index/releases/*/weights.safetensors"),
        _find(library, "index/releases/*/release.json"),
        _find(library, "index/tombstones/*/deleted.npy"),
    ]
    contents = [path.read_bytes() for path in damaged]
    flip_byte(damaged[0])
    flip_byte(damaged[3])
    damaged[1].unlink()
    shutil.rmtree(damaged[2].parent)
    report = _restore(backup)
    assert [path.read_bytes() for path in damaged] == contents
    assert report["lost"] == []
    assert {str(path.relative_to(library)) for path in damaged} <= set(report["restored"])
    assert _faults() == ""


def test_manifest_is_copied_from_a_backup_of_the_same_generation_only(library: Path, backup: Path) -> None:
    manifest = library / "index" / "manifest.json"
    text = manifest.read_text()
    manifest.unlink()
    newer = library / "index" / "shards" / ("0" * 64)
    newer.mkdir()
    assert any("another generation or library" in line for line in _restore(backup)["lost"])
    newer.rmdir()
    report = _restore(backup)
    assert report["restored"] == ["index/manifest.json"]
    assert manifest.read_text() == text
    assert _faults() == ""


@pytest.mark.parametrize("damage", ["altered", "missing"])
def test_previews_are_made_again_where_the_video_exists(library: Path, backup: Path, damage: str) -> None:
    preview = library / "thumbnails" / f"{UPLOADED}.jpg"
    expected = preview.read_bytes()
    if damage == "altered":
        flip_byte(preview, 200)
        assert f"thumbnails/{UPLOADED}.jpg was altered" in _faults()
    else:
        shutil.rmtree(library / "thumbnails")
        assert "previews are missing (doctor --restore-from" in doctor.check_stored_files(settings())
    report = _restore(backup)
    assert report == {"restored": [f"thumbnails/{UPLOADED}.jpg"], "lost": []}
    assert preview.read_bytes() == expected


def test_command_restores_checks_and_reports(
    library: Path, backup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "CHECKS", {"index": doctor.check_index})
    name = _find(library, "index/shards/*/vectors.faiss")
    flip_byte(name)
    damaged = run("doctor")
    assert damaged.exit_code == 1
    assert "cinestrata doctor --restore-from BACKUP" in damaged.output
    restored = run("doctor", "--restore-from", str(backup), "--json")
    assert restored.exit_code == 0, restored.output
    body: dict[str, Any] = json.loads(restored.stdout)
    assert (body["ok"], body["restored"], body["lost"]) == (True, [str(name.relative_to(library))], [])


def _replace(path: Path, kind: str) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
        (path / "notes.txt").write_text("of another program")
    else:
        path.symlink_to("/dev/zero")


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("name", ["index/manifest.json", "index/shards/*/vectors.faiss"])
def test_pipe_or_device_is_replaced_by_the_file_of_the_backup(
    library: Path, backup: Path, name: str, kind: str
) -> None:
    _replace(_find(library, name), kind)
    report = _restore(backup)
    assert (len(report["restored"]), report["lost"]) == (1, [])
    assert _faults() == ""


def test_manifest_of_another_library_is_refused(library: Path, backup: Path) -> None:
    """Without index folders, only the catalog tells whose manifest it is."""
    with session_scope(write=True) as session:
        session.execute(
            delete(Shard).where(Shard.task_id == select(Shard.task_id).limit(1).scalar_subquery())
        )
    index = library / "index"
    for path in list(index.iterdir()):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    report = _restore(backup)
    assert any("another generation or library" in line for line in report["lost"])
    assert not (index / "manifest.json").exists()


@pytest.mark.parametrize("name", ["text.tar", "folder"])
def test_file_other_than_a_backup_restores_nothing(library: Path, tmp_path: Path, name: str) -> None:
    if name == "folder":
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).write_text("no archive")
    outcome = run("doctor", "--restore-from", str(tmp_path / name))
    assert outcome.exit_code == 1
    assert "Nothing was restored" in outcome.output


@pytest.mark.slow
def test_every_truncated_or_missing_file_is_found(library: Path) -> None:
    for file in _checked_files(library):
        content = file.read_bytes()
        for kept in (0, 1, len(content) // 2, len(content) - 1):
            file.write_bytes(content[:kept])
            assert _faults(), f"{kept} bytes of {file.relative_to(library)}"
        file.write_bytes(content)
    assert _faults() == ""


@pytest.mark.parametrize("name", ["index/manifest.json", "index/shards/*/vectors.faiss"])
def test_folder_in_place_of_a_file_is_kept_and_named(library: Path, backup: Path, name: str) -> None:
    """Nothing that may be of value is removed, and the other files are restored."""
    folder = _find(library, name)
    _replace(folder, "folder")
    (library / "thumbnails" / f"{UPLOADED}.jpg").unlink()
    report = _restore(backup)
    assert ["Is a directory" in line for line in report["lost"]] == [True]
    assert report["restored"] == [f"thumbnails/{UPLOADED}.jpg"]
    assert (folder / "notes.txt").exists()
