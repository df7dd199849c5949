"""Unpacking of archives, and archives that are refused before files are written."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from sqlalchemy import select

from service.catalog.database import session_scope
from service.catalog.tables import Video
from service.core import request_limits
from service.core.errors import CinestrataError, Conflict, InvalidInput, TooLarge
from service.core.settings import Settings, settings
from service.storage import library_files
from service.tasks import archive_unpacking, broker, commands
from service.tasks.archive_unpacking import unpack_archive
from service.tasks.uploaded_videos import remove_upload
from tests.packed_files import pack_tar, pack_zip, tar_member

Pack = Callable[[dict[str, bytes]], BinaryIO]
MANIFEST = '{"uri": "a.mp4", "captions": ["a bird"]}\n{"uri": "clips/b.mp4", "id": "b", "split": "test"}\n'
FILES = {
    "manifest.jsonl": MANIFEST.encode(),
    "a.mp4": b"A" * 100,
    "clips/b.mp4": b"B" * 50,
    "readme.txt": b"left out",
}


def _remaining_files() -> list[Path]:
    return list(settings().uploads_dir.rglob("*")) if settings().uploads_dir.exists() else []


def _refused(archive: BinaryIO, kind: type[CinestrataError] = InvalidInput) -> CinestrataError:
    with pytest.raises(kind) as caught:
        unpack_archive(archive, "videos.zip", "tsk_1")
    assert _remaining_files() == []
    return caught.value


@pytest.fixture(autouse=True)
def _settings(tmp_path: Path, settings_factory: Callable[..., Settings]) -> None:
    settings_factory(tmp_path)


@pytest.mark.parametrize("pack", [pack_zip, pack_tar, lambda files: pack_tar(files, "w")])
def test_files_of_the_manifest_are_unpacked(pack: Pack) -> None:
    videos = unpack_archive(pack(FILES), "videos", "tsk_1")
    assert [v.uri for v in videos] == ["upload://tsk_1/a.mp4", "upload://tsk_1/clips/b.mp4"]
    assert [library_files.resolve_video_path(v.uri).read_bytes() for v in videos] == [b"A" * 100, b"B" * 50]
    assert (videos[0].captions, videos[1].id, videos[1].split) == (["a bird"], "b", "test")
    assert not (settings().uploads_dir / "tsk_1" / "readme.txt").exists()


def test_top_level_folder_zip_in_a_tar_and_other_tables_are_accepted() -> None:
    inner = pack_zip({"notes.txt": b"of the shoot"}).getvalue()
    for number, (archive, folder) in enumerate(
        (
            (pack_zip({f"birds/{n}": c for n, c in FILES.items()}), "birds/"),
            (pack_tar({**FILES, "notes.zip": inner}, "w"), ""),
            (pack_zip({**FILES, "captions.csv": b"other"}), ""),
        )
    ):
        videos = unpack_archive(archive, "videos", f"tsk_{number}")
        names = ("a.mp4", "clips/b.mp4")
        assert [v.uri for v in videos] == [f"upload://tsk_{number}/{folder}{name}" for name in names]
        assert [v.captions for v in videos] == [["a bird"], []]
        assert library_files.resolve_video_path(videos[1].uri).read_bytes() == b"B" * 50


@pytest.mark.parametrize(
    "name",
    [
        *("/etc/cron.d/x", "../x", "a/../../x", "C:/x", "a\\..\\x", "\\\\host\\x"),
        *("a\nb", "a\x9bb", "x/" + "y" * 300),
    ],
)
def test_names_outside_the_folder_are_refused(name: str) -> None:
    for pack in (pack_zip, pack_tar):
        assert "safe path" in str(_refused(pack({**FILES, name: b"x"})))


@pytest.mark.parametrize("name", ["10:30.mp4", "12:00/a.mp4", "s3:/a.mp4", "file:/a.mp4", "upload:/b/a.mp4"])
def test_colons_in_names_are_kept(name: str) -> None:
    manifest = json.dumps({"uri": name, "captions": ["a bird"]}).encode()
    for number, pack in enumerate((pack_zip, pack_tar)):
        for files in ({"manifest.jsonl": manifest}, {name.replace(".mp4", ".txt"): b"a bird"}):
            upload = f"tsk_{number}{len(files)}{next(iter(files))[0]}"
            (video,) = unpack_archive(pack({name: b"A" * 100, **files}), "videos.zip", upload)
            assert (video.uri, video.captions) == (f"upload://{upload}/{name}", ["a bird"])
            assert library_files.resolve_video_path(video.uri).read_bytes() == b"A" * 100


def test_links_and_devices_are_refused() -> None:
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE):
        member = tar_member("a.mp4", kind, linkname="/etc/passwd")
        assert "plain file" in str(_refused(pack_tar({}, "w", members=[member])))
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as opened:
        info = zipfile.ZipInfo("a.mp4")
        info.external_attr = 0o120777 << 16
        opened.writestr(info, "/etc/passwd")
    assert "plain file" in str(_refused(made))


class TestBombs:
    """Small archives with large contents."""

    @pytest.fixture(autouse=True)
    def _small(
        self, tmp_path: Path, settings_factory: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings_factory(tmp_path, max_upload_bytes=1_000_000)
        monkeypatch.setattr(request_limits, "MAX_UNPACKED_BYTES", 1_000_000)
        monkeypatch.setattr(request_limits, "MAX_ARCHIVE_FILES", 50)

    @pytest.mark.parametrize("pack", [pack_zip, pack_tar])
    def test_large_file_and_too_many_files_are_refused(self, pack: Pack) -> None:
        error = _refused(pack({**FILES, "a.mp4": bytes(20_000_000)}), TooLarge)
        assert error.status == 413
        assert "1000000 bytes" in str(error)
        _refused(pack({**FILES, **{f"{n}.txt": b"" for n in range(60)}}), TooLarge)

    def test_file_larger_than_its_header_is_refused(self) -> None:
        made = pack_zip({"manifest.jsonl": MANIFEST.encode(), "clips/b.mp4": b"", "a.mp4": bytes(20_000_000)})
        raw = bytearray(made.getvalue())
        real, small = (20_000_000).to_bytes(4, "little"), (10).to_bytes(4, "little")
        assert real in raw
        _refused(io.BytesIO(bytes(raw.replace(real, small))))

    def test_too_many_folders_are_refused(self) -> None:
        folders = [tar_member(f"folder{number}", tarfile.DIRTYPE) for number in range(60)]
        _refused(pack_tar({}, members=folders), TooLarge)

    @pytest.mark.parametrize("where", ["pax", "name of a folder"])
    def test_large_headers_are_refused(self, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each header is within the limits, but the parser keeps all of them in memory."""
        monkeypatch.setattr(archive_unpacking, "MAX_HEADER_CHARS", 100_000)
        long = "A" * 20_000
        if where == "pax":
            members = [tar_member(f"{number}", pax_headers={"comment": long}) for number in range(20)]
        else:
            members = [tar_member(f"{number}/{long}", tarfile.DIRTYPE) for number in range(20)]
        form = tarfile.PAX_FORMAT if where == "pax" else tarfile.GNU_FORMAT
        made = pack_tar(FILES, members=members, format=form)
        assert "too long" in str(_refused(made))

    def test_unbounded_header_is_refused(self) -> None:
        """The parser reads a whole pax header before the first file."""
        info = tarfile.TarInfo("pax")
        info.type, info.size = tarfile.XHDTYPE, 8 * 1024**3
        _refused(io.BytesIO(gzip.compress(info.tobuf() + bytes(50_000_000))))

    @pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA], ids=["bzip2", "lzma"])
    def test_methods_without_bounded_decompression_are_refused(self, method: int) -> None:
        """zipfile decompresses a whole input block at once, so a few hundred bytes could expand to gigabytes."""
        assert "unusual method" in str(_refused(pack_zip(FILES, method)))

    def test_entries_are_counted_before_they_become_objects(self, monkeypatch: pytest.MonkeyPatch) -> None:
        entries: list[str] = []

        class CountedInfo(zipfile.ZipInfo):
            def __init__(self, filename: str = "", *args: Any) -> None:
                super().__init__(filename, *args)
                entries.append(filename)

        made = pack_zip({str(number): b"" for number in range(50)})
        monkeypatch.setattr(request_limits, "MAX_ARCHIVE_FILES", 10)
        monkeypatch.setattr(zipfile, "ZipInfo", CountedInfo)
        _refused(made, TooLarge)
        assert entries == []

    def test_records_without_values_count(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each member keeps a copy of all records of a global header."""
        monkeypatch.setattr(archive_unpacking, "MAX_HEADER_CHARS", 100_000)
        records = {f"CINESTRATA.{number}": "" for number in range(600)}
        _refused(pack_tar(FILES, "w", format=tarfile.PAX_FORMAT, pax_headers=records))

    def test_sparse_file_and_its_long_map_are_refused(self) -> None:
        """The parser makes a list of the map before it returns the member. Holes take no byte of the archive."""
        sparse = {"major": "1", "minor": "0", "name": "a.mp4", "realsize": "5"}
        headers = {f"GNU.sparse.{key}": value for key, value in sparse.items()}
        content = {"a.mp4": b"1000000\n" + b"0\n" * 2_000_000}
        made = pack_tar(content, "w", headers={"a.mp4": headers}, format=tarfile.PAX_FORMAT)
        assert "headers is too large" in str(_refused(made))
        holes = {"a.mp4": {"GNU.sparse.map": "0,100", "GNU.sparse.size": "1000000"}}
        made = pack_tar(FILES, "w", headers=holes, format=tarfile.PAX_FORMAT)
        assert "plain file" in str(_refused(made))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"x": b""}, "no manifest"),
        ({"a.mp4": b"x", "notes.txt": b"x"}, "no manifest"),
        ({"manifest.parquet": b"x", "a.mp4": b"x"}, "doesn't read 'manifest.parquet'"),
        ({"birds/a.mp4": b"A", "birds/captions.parquet": b"PAR1", "c.csv": b"x"}, "'birds/captions.parquet'"),
        ({**FILES, "manifest.jsonl": b'{"uri": "../../x"}'}, "videos[0].uri"),
        ({"manifest.csv": b"uri", "manifest.jsonl": b"{}"}, "several manifests"),
        ({"manifest.jsonl": b'{"uri": "a.mp4"}\n[1]', "a.mp4": b"x"}, "manifest.jsonl:2"),
        ({"manifest.csv": b"file\nK\xfcche.mp4", "a.mp4": b"x"}, "manifest.csv:2: Byte 2"),
        ({"a.mp4": b"x", "a.info.json": b"[" * 100_000}, "a.info.json: The file is nested too deeply"),
    ],
)
def test_invalid_manifest_is_refused_with_its_line(files: dict[str, bytes], expected: str) -> None:
    assert expected in str(_refused(pack_zip(files)))


def test_other_formats_and_encrypted_files_are_refused() -> None:
    for raw in (b"", b"no archive", b"\x1f\x8b\x08garbage", b"PK\x05\x06" + b"\xff" * 18, bytes(2048)):
        _refused(io.BytesIO(raw))
    encrypted = bytearray(pack_zip(FILES).getvalue())
    encrypted[encrypted.index(b"PK\x01\x02") + 8] |= 1
    assert "encrypted" in str(_refused(io.BytesIO(bytes(encrypted))))


@given(st.data())
@hypothesis_settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_damaged_archive_is_refused_or_read_safely(data: st.DataObject) -> None:
    """Flipped or missing bytes: an error without remaining files, or videos inside the upload folder."""
    pack = data.draw(st.sampled_from([pack_zip, pack_tar, lambda f: pack_tar(f, "w")]))
    raw = bytearray(pack(FILES).getvalue())
    for _ in range(data.draw(st.integers(1, 8))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    raw = raw[: data.draw(st.integers(0, len(raw)))] if data.draw(st.booleans()) else raw
    try:
        videos = unpack_archive(io.BytesIO(bytes(raw)), "videos", "tsk_1")
    except CinestrataError:
        assert _remaining_files() == []
        return
    for video in videos:
        assert library_files.resolve_video_path(video.uri).is_relative_to(settings().uploads_dir)
    remove_upload("tsk_1")


def test_archive_is_posted_as_a_task() -> None:
    packed = pack_zip(FILES)  # once, since archives contain the time
    first = commands.create_task_from_archive(packed, "videos.zip", name="birds", idempotency_key="k")
    again = commands.create_task_from_archive(packed, "videos.zip", name="birds", idempotency_key="k")
    assert (first.replayed, again.replayed) == (False, True)
    assert again.task == first.task
    assert [p.name for p in settings().uploads_dir.iterdir()] == [first.task.id]
    with session_scope() as session:
        uris = session.scalars(select(Video.uri).order_by(Video.vector_id)).all()
    assert uris == [f"upload://{first.task.id}/{name}" for name in ("a.mp4", "clips/b.mp4")]


def test_unpacked_files_are_synced_to_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[int] = set()
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        synced.add(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    unpack_archive(pack_tar(FILES), "videos", "tsk_1")
    unpacked = [settings().uploads_dir, *_remaining_files()]
    assert {path.name for path in unpacked} == {"uploads", "tsk_1", "a.mp4", "clips", "b.mp4"}
    assert {path.stat().st_ino for path in unpacked} <= synced


def test_stored_task_keeps_its_files_after_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command is interrupted while it sends the message to the broker."""

    def interrupted(_: str) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(broker, "send_probe", interrupted)
    with pytest.raises(KeyboardInterrupt):
        commands.create_task_from_archive(pack_zip(FILES), "v.zip", name="birds")
    with session_scope() as session:
        uris = session.scalars(select(Video.uri)).all()
    assert len(uris) == 2
    assert all(library_files.resolve_video_path(uri).is_file() for uri in uris)


@pytest.mark.parametrize(
    ("fields", "kind"),
    [({"name": "a/b"}, InvalidInput), ({"method": "magic"}, InvalidInput), ({"name": "taken"}, Conflict)],
)
def test_refused_task_leaves_no_files(fields: dict[str, str], kind: type[CinestrataError]) -> None:
    packed = pack_zip({**FILES, "manifest.jsonl": b'{"uri": "a.mp4"}'})
    taken = commands.create_task_from_archive(packed, "v.zip", name="taken")
    with pytest.raises(kind):
        commands.create_task_from_archive(pack_zip(FILES), "v.zip", **{"name": "birds", **fields})
    assert [p.name for p in settings().uploads_dir.iterdir()] == [taken.task.id]
    assert [json.loads(t.model_dump_json())["name"] for t in commands.list_tasks()] == ["taken"]


@pytest.mark.parametrize("pack", [pack_zip, pack_tar])
def test_sidecar_files_caption_an_archive_without_manifest(
    pack: Pack, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "birds/b.txt": b"a bird\nit flies\n",
        "birds/b.mp4": b"B",
        "birds/._b.mp4": b"left out",
        "birds/a.MOV": b"A",
        "birds/a.info.json": b'{"title": "A cat", "uploader": "me"}',
        "birds/notes.txt": b"left out",
    }
    first, second = unpack_archive(pack(files), "v.zip", "tsk_1")
    assert (first.uri, first.captions) == ("upload://tsk_1/birds/a.MOV", ["A cat"])
    assert first.metadata == {"uploader": "me"}
    assert second.captions == ["a bird", "it flies"]
    assert {path.name for path in _remaining_files()} == {"tsk_1", "birds", "a.MOV", "b.mp4"}
    remove_upload("tsk_1")
    monkeypatch.setattr(archive_unpacking, "_MAX_TEXT_BYTES", 20)
    _refused(pack(files), TooLarge)


def test_all_missing_files_are_listed() -> None:
    lines = "\n".join(f'{{"uri": "{number}.mp4"}}' for number in range(25))
    error = _refused(pack_zip({"manifest.jsonl": lines.encode(), "3.mp4": b"x"}))
    assert "24 files are not in the archive: 0.mp4, 1.mp4, 2.mp4, 4.mp4" in str(error)
    assert "Add the files, or remove their rows." in str(error)
    assert "and 4 more" in str(error)
    assert [e.field for e in error.errors][-1] == "videos[20].uri"
