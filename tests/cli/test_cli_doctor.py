"""`cinestrata doctor`: each kind of damage is reported with the file, release or task that it affects."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import delete, text, update

from cli.commands import doctor, library_checks
from index.files.manifest_format import Manifest
from index.shard_store import ShardStore
from models.releases.release_state import ParentRelease
from service.catalog.database import session_scope
from service.catalog.tables import Shard, Task, Video
from service.core.settings import Settings
from tests.cli.invocation import run
from tests.index.disk_faults import flip_byte

Damage = Callable[[ShardStore], None]


def _shard(store: ShardStore, task: str) -> Path:
    return store.shard_folder(store.manifest().shards[task].id)


def _release(store: ShardStore, task: str) -> Path:
    return store.release_folder(store.manifest().shards[task].release)


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _change_schema(store: ShardStore) -> None:
    store.manifest_path.write_text(store.manifest_path.read_text().replace('"schema": 1', '"schema": 9'))


def _catalog(statement: object) -> Damage:
    def apply(store: ShardStore) -> None:
        with session_scope(write=True) as session:
            session.execute(statement)  # type: ignore[call-overload]

    return apply


DAMAGES: dict[str, tuple[Damage, str]] = {
    "a flipped byte": (
        lambda s: flip_byte(_shard(s, "tsk_a") / "vectors.faiss"),
        r"task tsk_a: vectors\.faiss was altered",
    ),
    "a truncated file": (
        lambda s: _truncate(_shard(s, "tsk_b") / "ids.npy"),
        "task tsk_b: its files have .* bytes instead",
    ),
    "a missing folder": (lambda s: shutil.rmtree(_shard(s, "tsk_a")), "task tsk_a: its folder is missing"),
    "a flipped byte of an old release": (
        lambda s: flip_byte(_release(s, "tsk_a") / "weights.safetensors"),
        r"release \w{12}: weights\.safetensors was altered; restore releases/\w{64}",
    ),
    "a missing release": (lambda s: shutil.rmtree(_release(s, "tsk_b")), r"release \w{12}: .*is missing"),
    "a manifest of another schema": (_change_schema, "schema 9.*use the version that wrote it"),
    "an altered manifest": (lambda s: flip_byte(s.manifest_path), r"manifest\.json"),
    "no manifest": (lambda s: s.manifest_path.unlink(), "task tsk_a is ready, but the manifest has no shard"),
    "a task that the catalog lost": (
        lambda s: [
            _catalog(delete(table).where(column == "tsk_b"))(s)  # type: ignore[func-returns-value]
            for table, column in ((Shard, Shard.task_id), (Video, Video.task_id))
        ],
        "3 vectors of task tsk_b belong to no video",
    ),
    "a shard that the catalog lost": (
        _catalog(delete(Shard).where(Shard.task_id == "tsk_b")),
        "tsk_b is ready, but the catalog has no record of its shard",
    ),
    "a shard that the catalog describes otherwise": (
        _catalog(update(Shard).where(Shard.task_id == "tsk_a").values(fingerprint="x")),
        "describe different shards of task tsk_a",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_reported(two: ShardStore, folder: Settings, damage: str) -> None:
    apply, message = DAMAGES[damage]
    apply(two)
    with pytest.raises(Exception, match=message):
        doctor.check_index(folder)


@pytest.mark.parametrize(
    ("before", "message"),
    [
        (lambda manifest: ParentRelease("0" * 64, 2), r"release \w{12}: its parent release 0{12} is missing"),
        (
            lambda manifest: ParentRelease(manifest.shards["tsk_a"].release, 2),
            "knows 1 tasks, but a later release continues it after 2",
        ),
    ],
)
def test_release_with_unknown_predecessor_is_reported(
    two: ShardStore, folder: Settings, before: Callable[[Manifest], ParentRelease], message: str
) -> None:
    newest = _release(two, "tsk_b")
    with two.staging() as staged:
        for path in newest.iterdir():
            shutil.copy(path, staged)
        description = json.loads((staged / "release.json").read_text())
        description["before"] = vars(before(two.manifest()))
        (staged / "release.json").write_text(json.dumps(description))
        release = two.adopt_release(staged)
    two.publish(release=release, shards=[])
    with pytest.raises(doctor.CheckFailed, match=message):
        doctor.check_index(folder)


def test_task_during_publishing_passes(two: ShardStore, folder: Settings) -> None:
    with session_scope(write=True) as session:
        session.execute(delete(Shard).where(Shard.task_id == "tsk_b"))
        session.execute(update(Task).where(Task.id == "tsk_b").values(state="evaluating"))
    assert doctor.check_index(folder).startswith("generation 2")


def test_shard_unknown_to_the_current_release_is_reported(two: ShardStore, folder: Settings) -> None:
    manifest = two.manifest()
    two.manifest_path.write_text(replace(manifest, release=manifest.shards["tsk_a"].release).dumps())
    with pytest.raises(doctor.CheckFailed, match="does not know task tsk_b"):
        doctor.check_index(folder)


def test_json_report_and_exit_status(
    two: ShardStore, folder: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    remaining = {name: doctor.CHECKS[name] for name in ("data folder", "catalog", "index")}
    monkeypatch.setattr(doctor, "CHECKS", remaining)
    intact = run("doctor", "--json")
    assert (intact.exit_code, json.loads(intact.stdout)["ok"]) == (0, True)
    flip_byte(_shard(two, "tsk_a") / "vectors.faiss")
    damaged = run("doctor", "--json")
    assert damaged.exit_code == 1
    body = json.loads(damaged.stdout)
    assert body["ok"] is False
    assert [entry["check"] for entry in body["checks"] if not entry["ok"]] == ["index"]
    assert "tsk_a" in next(entry["detail"] for entry in body["checks"] if not entry["ok"])


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        ("UPDATE videos SET last_edit = 7", "edits.last_edit is 0, but videos.last_edit reaches 7"),
        ("DELETE FROM edits", "the catalog table edits has no row"),
    ],
)
def test_damaged_row_is_named(two: ShardStore, folder: Settings, damage: str, fault: str) -> None:
    doctor.check_catalog(folder)
    with session_scope(write=True) as session:
        session.execute(text(damage))
    with pytest.raises(doctor.CheckFailed) as failure:
        doctor.check_catalog(folder)
    assert str(failure.value).splitlines()[0] == fault


@pytest.fixture
def uploads(two: ShardStore, folder: Settings) -> list[Path]:
    """The uploaded files of videos a-0 to a-3; task b's videos are named by path, and were removed."""
    files = [folder.uploads_dir / "tsk_a" / f"{number} [hd].mp4" for number in range(4)]
    files[0].parent.mkdir(parents=True)
    with session_scope(write=True) as session:
        for number, file in enumerate(files):
            file.write_bytes(b"video")
            session.execute(
                update(Video).where(Video.id == f"a-{number}").values(uri=f"upload://tsk_a/{file.name}")
            )
        session.execute(update(Video).values(status="accepted"))
    return files


def test_missing_upload_is_named(
    uploads: list[Path], folder: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "CHECKS", {"files": doctor.check_stored_files})
    assert run("doctor").exit_code == 0
    remaining = uploads[2].rename(folder.data_dir / "kept.mp4")
    uploads[3].unlink()
    uploads[3].mkdir()
    outcome = run("doctor")
    assert outcome.exit_code == 1
    name = "media/uploads/tsk_a"
    assert (
        f"{name}/2 [hd].mp4 is missing: the file of video a-2 (upload://tsk_a/2 [hd].mp4)" in outcome.output
    )
    assert f"{name}/3 [hd].mp4 is no readable file: the file of video a-3" in outcome.output
    assert "Copy media/uploads" in outcome.output
    assert "--restore-from" not in outcome.output, "a backup does not contain the file"
    uploads[3].rmdir()
    for file in (uploads[2], uploads[3]):
        shutil.copy(remaining, file)
    assert run("doctor").exit_code == 0


def test_upload_of_a_video_that_is_deleted_during_the_check_is_not_missing(
    uploads: list[Path], folder: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def delete_video(*_: object, **__: object) -> None:
        with session_scope(write=True) as session:
            session.execute(delete(Video).where(Video.id == "a-0"))

    uploads[0].unlink()
    monkeypatch.setattr(library_checks, "_check_preview", delete_video)
    doctor.check_stored_files(folder)
