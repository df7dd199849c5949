"""`cinestrata doctor` finds every changed byte of a library's files, and `--repair` restores the damaged ones."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import tarfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from sqlalchemy import delete, select
from typer.testing import CliRunner

from cli.commands import doctor
from cli.commands.library_repair import repair_library
from cli.main import app
from index.shard_store import ShardStore
from media import VideoDecoder, content_hash
from media.content_seal import append_seal
from service.catalog.database import dispose, session_scope
from service.catalog.migrations import upgrade
from service.catalog.tables import Shard, Video
from service.core.settings import settings
from service.storage import index_lock
from tests.index_lock_holder import compaction
from trainer.training_checkpoint import Checkpoint, CheckpointStore

UPLOADED = "microscope-0"  # of the first learned domain, which has an append and a deleted video


@pytest.fixture(scope="module")
def complete(tiny_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data folder of the library with an uploaded video, thumbnails, a ledger and a checkpoint."""
    folder = tmp_path_factory.mktemp("complete") / "data"
    before = dict(os.environ)
    settings.cache_clear()
    restored = CliRunner().invoke(app, ["restore", str(tiny_library), "--data", str(folder)])
    assert restored.exit_code == 0, restored.output
    dispose()
    upgrade(settings())
    _add_files(folder)
    dispose()
    os.environ.clear()
    os.environ.update(before)
    settings.cache_clear()
    return folder


def _add_files(folder: Path) -> None:
    import av

    video = settings().uploads_dir / "tsk_0123456789abcdef" / "clip.mp4"
    video.parent.mkdir(parents=True)
    with av.open(str(video), "w") as container:
        stream = container.add_stream("libx264", rate=4)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        for shade in (0, 80, 160, 240):
            picture = np.full((64, 64, 3), shade, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    with session_scope(write=True) as session, VideoDecoder() as decoder:
        rows = session.scalars(select(Video).where(Video.status == "accepted")).all()
        for row in rows:
            thumbnail = settings().thumbnails_dir / f"{row.id}.jpg"
            decoder.decode(video, frames=8, size=64, thumbnail=thumbnail)
            if row.id == UPLOADED:
                row.uri = f"upload://{video.relative_to(settings().uploads_dir)}"
                row.content_hash = content_hash(video)
    ledger = settings().index_dir / "ledger.npz"
    with ledger.open("wb") as file:
        np.savez(file, ranks=np.arange(5))
    append_seal(ledger)
    store = CheckpointStore(settings().checkpoints_dir / "tsk_x", "run", 3)
    store.save(Checkpoint(2, [1.0, 0.5], {"weight": torch.ones(3)}, {"state": {}, "param_groups": []}))


@pytest.fixture
def library(complete: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of that data folder, which the settings name."""
    before = dict(os.environ)
    folder = tmp_path / "data"
    shutil.copytree(complete, folder)
    monkeypatch.setenv("CINESTRATA_DATA_DIR", str(folder))
    dispose()
    settings.cache_clear()
    yield folder
    dispose()
    os.environ.clear()
    os.environ.update(before)
    settings.cache_clear()


def _checked_files(folder: Path) -> list[Path]:
    """Files with bytes that the doctor verifies, without the catalog, whose values SQLite stores without checksums."""
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


def _repair(backup: Path | None = None) -> dict[str, list[str]]:
    return vars(repair_library(settings(), backup))


def _flip(path: Path, offset: int = -1, change: int = 1) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= change
    path.write_bytes(content)


def _find(folder: Path, pattern: str) -> Path:
    return sorted(folder.glob(pattern))[0]


@pytest.mark.slow
def test_every_changed_byte_is_found(library: Path) -> None:
    files = _checked_files(library)
    kinds = {path.suffix for path in files}
    assert kinds == {".npy", ".json", ".faiss", ".safetensors", ".jpg", ".npz", ".mp4", ".pt"}
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
        _flip(file, offset, change)
        try:
            assert _faults(), f"byte {offset} of {file.relative_to(library)} was changed by {change:#x}"
        finally:
            file.write_bytes(content)

    check()
    assert _faults() == ""


@pytest.mark.slow
def test_every_truncated_or_missing_file_is_found(library: Path) -> None:
    for file in _checked_files(library):
        content = file.read_bytes()
        for kept in (0, 1, len(content) // 2, len(content) - 1):
            file.write_bytes(content[:kept])
            assert _faults(), f"{kept} bytes of {file.relative_to(library)}"
        file.write_bytes(content)
    assert _faults() == ""


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("index/shards/*/shard.json", "made again, with the checksum of the published file"),
        ("index/shards/*/ids.npy", "made again, with the checksum of the published file"),
        ("index/tombstones/*/deleted.npy", "made again, with the checksum of the published file"),
    ],
)
def test_derived_index_files_are_restored_exactly(library: Path, pattern: str, text: str) -> None:
    files = sorted(library.glob(pattern))
    contents = [file.read_bytes() for file in files]
    for number, file in enumerate(files):
        file.unlink() if number % 2 else _flip(file)
    report = _repair()
    assert [file.read_bytes() for file in files] == contents
    assert report["lost"] == []
    assert [line.split(": ")[1] for line in report["repaired"]] == [text] * len(files)
    assert _faults() == ""


def test_files_beside_the_index_are_restored_or_removed(library: Path) -> None:
    thumbnail, ledger = library / "thumbnails" / f"{UPLOADED}.jpg", library / "index" / "ledger.npz"
    expected = thumbnail.read_bytes()
    _flip(thumbnail, 200)
    _flip(ledger, 10)
    _flip(_find(library, "checkpoints/*/epoch-*/*.safetensors"))
    assert {"was altered"} == {line.split(" ", 1)[1] for line in _faults().splitlines()[:-1]}
    report = _repair()
    assert report["lost"] == []
    assert len(report["repaired"]) == 3
    assert thumbnail.read_bytes() == expected
    assert not ledger.exists()
    assert not list(library.glob("checkpoints/*/epoch-*"))
    assert _faults() == ""


def test_altered_format_of_the_manifest_is_restored(library: Path) -> None:
    manifest = library / "index" / "manifest.json"
    text = manifest.read_text()
    manifest.write_text(text.replace(": ", ":\t", 1))
    assert "altered outside its values" in _faults()
    assert _repair()["repaired"] == ["index/manifest.json: written again from its values"]
    assert manifest.read_text() == text


@pytest.mark.parametrize(("damage", "read"), [("altered", "is_manifest_canonical"), ("missing", "manifest")])
def test_publication_during_the_repair_is_kept(
    library: Path, tiny_library: Path, damage: str, read: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker publishes after the repair has read the damaged manifest."""
    store = ShardStore(settings().index_dir)
    before, text, original = store.manifest(), store.manifest_path.read_text(), getattr(ShardStore, read)
    if damage == "missing":
        store.manifest_path.unlink()
    else:
        store.manifest_path.write_text(text.replace(": ", ":\t", 1))

    def publish_after(self: ShardStore) -> Any:
        found = original(self)
        monkeypatch.setattr(ShardStore, read, original)
        with store.write_lock():
            store.replace_manifest(before, before)
        return found

    monkeypatch.setattr(ShardStore, read, publish_after)
    assert _repair(tiny_library) == {"repaired": [], "lost": []}
    assert store.manifest().generation == before.generation + 1


def test_manifest_is_not_repaired_while_another_writer_holds_the_lock(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_lock, "WAIT_SECONDS", 0.1)
    manifest = library / "index" / "manifest.json"
    altered = manifest.read_text().replace(": ", ":\t", 1)
    with compaction():
        assert _repair() == {"repaired": [], "lost": []}, "an intact manifest needs no lock"
        manifest.write_text(altered)
        (lost,) = _repair()["lost"]
        assert "try again" in lost
        assert manifest.read_text() == altered
    assert len(_repair()["repaired"]) == 1


def test_lost_files_are_named_with_their_consequence(library: Path) -> None:
    vectors = _find(library, "index/shards/*/vectors.faiss")
    weights = _find(library, "index/releases/*/weights.safetensors")
    video = _find(library, "media/uploads/*/clip.mp4")
    thumbnail = library / "thumbnails" / f"{UPLOADED}.jpg"
    for path in (vectors, weights, video, thumbnail):
        _flip(path, 200)
    report = _repair()
    assert report["repaired"] == []
    assert len(report["lost"]) == 4
    lost = "\n".join(report["lost"])
    for path in (vectors, weights, video, thumbnail):
        assert str(path.relative_to(library)) in lost
    assert "is not searched" in lost
    assert "--from" in lost


def test_index_files_are_copied_from_a_backup(library: Path, tiny_library: Path) -> None:
    damaged = [
        _find(library, "index/shards/*/vectors.faiss"),
        _find(library, "index/releases/*/weights.safetensors"),
        _find(library, "index/releases/*/release.json"),
    ]
    contents = [path.read_bytes() for path in damaged]
    _flip(damaged[0])
    damaged[1].unlink()
    shutil.rmtree(damaged[2].parent)
    report = _repair(tiny_library)
    assert [path.read_bytes() for path in damaged] == contents
    assert report["lost"] == []
    assert all(line.endswith("copied from the backup") for line in report["repaired"])
    assert _faults() == ""


def test_manifest_is_copied_from_a_backup_of_the_same_generation_only(
    library: Path, tiny_library: Path
) -> None:
    manifest = library / "index" / "manifest.json"
    text = manifest.read_text()
    manifest.unlink()
    assert any("manifest.json is missing" in line for line in _repair()["lost"])
    newer = library / "index" / "shards" / ("0" * 64)
    newer.mkdir()
    assert any("older than the library" in line for line in _repair(tiny_library)["lost"])
    newer.rmdir()
    report = _repair(tiny_library)
    assert report["repaired"] == ["index/manifest.json: copied from the backup of the same generation"]
    assert manifest.read_text() == text
    assert _faults() == ""


def test_damaged_catalog_is_found_and_its_indexes_are_repaired(library: Path) -> None:
    dispose()
    file = library / "catalog.sqlite3"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        ((page,),) = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'ix_videos_content_hash'"
        ).fetchall()
        ((size,),) = connection.execute("PRAGMA page_size").fetchall()
    _flip(file, page * size - 10, 0x40)  # the last cell of the index
    with pytest.raises(doctor.CheckFailed, match="The catalog is damaged"):
        doctor.check_catalog(settings())
    assert _repair()["repaired"] == ["catalog.sqlite3: its indexes were made again from its tables"]
    doctor.check_catalog(settings())
    content = bytearray(file.read_bytes())
    content[size : 3 * size] = bytes(2 * size)
    file.write_bytes(content)
    dispose()
    report = _repair()
    assert report["repaired"] == []
    assert "cannot be restored in place" in report["lost"][0]


def test_intact_library_is_not_changed(library: Path, tiny_library: Path) -> None:
    files = {path: path.read_bytes() for path in _checked_files(library)}
    report = _repair(tiny_library)
    assert (report["repaired"], report["lost"]) == ([], [])
    assert {path: path.read_bytes() for path in _checked_files(library)} == files


def test_missing_thumbnails_are_made_where_the_video_exists(
    library: Path,
) -> None:
    shutil.rmtree(library / "thumbnails")
    assert "previews are missing" in doctor.check_stored_files(settings())
    report = _repair()
    assert report["repaired"] == [f"thumbnails/{UPLOADED}.jpg: made from its video"]
    assert report["lost"] == []


def test_command_repairs_checks_and_reports(
    library: Path, tiny_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "CHECKS", {"index": doctor.check_index})
    _flip(_find(library, "index/shards/*/vectors.faiss"))
    lost = CliRunner().invoke(app, ["doctor", "--repair"])
    assert lost.exit_code == 1
    assert "lost      index/shards/" in lost.output
    repaired = CliRunner().invoke(app, ["doctor", "--from", str(tiny_library), "--json"])
    assert repaired.exit_code == 0, repaired.output
    body: dict[str, Any] = json.loads(repaired.stdout)
    assert (body["ok"], len(body["repaired"]), body["lost"]) == (True, 1, [])


def _replace(path: Path, kind: str) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
        (path / "notes.txt").write_text("of another program")
    else:
        path.symlink_to("/dev/zero")


@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
@pytest.mark.parametrize(
    "pattern", ["index/ledger.npz", "checkpoints/*/epoch-*", "checkpoints/*/epoch-*/*.json"]
)
def test_what_is_no_file_is_removed_where_it_can_be_made_again(
    library: Path, pattern: str, kind: str
) -> None:
    """A pipe blocks its reader, and a device has no end."""
    _replace(_find(library, pattern), kind)
    assert "Run: cinestrata doctor --repair" in _faults()
    report = _repair()
    assert (len(report["repaired"]), report["lost"]) == (1, [])
    assert _faults() == ""


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("name", ["index/manifest.json", "index/shards/*/vectors.faiss"])
def test_pipe_or_device_is_replaced_by_the_file_of_the_backup(
    library: Path, tiny_library: Path, name: str, kind: str
) -> None:
    _replace(_find(library, name), kind)
    report = _repair(tiny_library)
    assert (len(report["repaired"]), report["lost"]) == (1, [])
    assert _faults() == ""


@pytest.mark.parametrize("name", ["index/manifest.json", "index/shards/*/vectors.faiss"])
def test_folder_in_place_of_a_file_is_kept_and_named(library: Path, tiny_library: Path, name: str) -> None:
    """Nothing that may be of value is removed, and the other files are repaired."""
    folder = _find(library, name)
    _replace(folder, "folder")
    _flip(library / "index" / "ledger.npz")
    report = _repair(tiny_library)
    assert [line for line in report["lost"] if "cannot be written (Is a directory)" in line] == report["lost"]
    assert len(report["lost"]) == 1
    assert len(report["repaired"]) == 1
    assert (folder / "notes.txt").exists()


def test_manifest_of_another_library_is_refused(library: Path, tiny_library: Path) -> None:
    """Without folders of the index, only the catalog tells whose manifest it is."""
    with session_scope(write=True) as session:
        session.execute(
            delete(Shard).where(Shard.task_id == select(Shard.task_id).limit(1).scalar_subquery())
        )
    index = library / "index"
    for path in list(index.iterdir()):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    report = _repair(tiny_library)
    assert any("another generation or library" in line for line in report["lost"])
    assert not (index / "manifest.json").exists()


def test_unreadable_file_of_a_backup_does_not_end_the_repair(
    library: Path, tiny_library: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "backup"
    with tarfile.open(tiny_library) as archive:
        archive.extractall(folder, filter="data")
    first, second = sorted(library.glob("index/shards/*/vectors.faiss"))[:2]
    _replace(folder / first.relative_to(library), "pipe")
    for path in (first, second):
        _flip(path)
    report = _repair(folder)
    assert [len(report["repaired"]), len(report["lost"])] == [1, 1]
    assert str(first.relative_to(library)) in report["lost"][0]


@pytest.mark.parametrize("name", ["text.tar", "folder"])
def test_backup_that_is_none_repairs_nothing(library: Path, tmp_path: Path, name: str) -> None:
    if name == "folder":
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).write_text("no archive")
    outcome = CliRunner().invoke(app, ["doctor", "--from", str(tmp_path / name)])
    assert outcome.exit_code == 1
    assert "Nothing was repaired" in outcome.output
