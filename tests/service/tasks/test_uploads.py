"""Preview of the task that selected files become, and files of resumable uploads: limits, expiry, storable names."""

from __future__ import annotations

import base64
import itertools
import os
import shutil
import time
import unicodedata
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from cinestrata_schemas.tasks import AppendSpec, PreviewRequest, TaskSpec, UploadPreview, VideoSpec
from service.core import request_limits
from service.core.errors import InsufficientStorage, InvalidInput, NotFound, TooLarge
from service.core.settings import settings
from service.storage.library_files import resolve_video_path
from service.tasks import commands, upload_store, uploaded_videos
from service.tasks.upload_preview import preview_upload
from service.tasks.upload_store import Upload, UploadWriter, create_upload, find_upload, sweep_incoming
from service.tasks.uploaded_videos import adopted_uploads, storable_paths

pytestmark = pytest.mark.usefixtures("sqlite_catalog")


def _preview(paths: list[str], texts: dict[str, str | bytes] | None = None, **fields: Any) -> UploadPreview:
    texts = texts or {}
    contents = {path: text.encode() if isinstance(text, str) else text for path, text in texts.items()}
    files = [{"path": path, "size": 1000} for path in [*paths, *contents]]
    encoded = [{"path": path, "content": base64.b64encode(content)} for path, content in contents.items()]
    return preview_upload(PreviewRequest.model_validate({"files": files, "texts": encoded, **fields}))


def _captions(preview: UploadPreview) -> dict[str, list[str]]:
    return {video.uri: video.captions for video in preview.videos}


def _omitted(omitted: list[Any]) -> dict[str, str]:
    return {each.path: each.reason for each in omitted}


def test_table_of_a_folder() -> None:
    preview = _preview(
        ["kitchen/clips/a.mp4", "kitchen/clips/b.mp4", "kitchen/notes.pdf", "kitchen/.DS_Store"],
        {"kitchen/manifest.csv": "file;caption\nclips/a.mp4;eggs\nclips/a.mp4;a pan\nclips/gone.mp4;lost\n"},
        name="kitchen",
    )
    assert _captions(preview) == {"kitchen/clips/a.mp4": ["eggs", "a pan"], "kitchen/clips/b.mp4": []}
    assert (preview.domain, preview.bytes, preview.captions) == ("kitchen", 2000, 2)
    assert preview.without_captions == ["kitchen/clips/b.mp4"]
    assert _omitted(preview.missing) == {"clips/gone.mp4": "not found"}
    skipped = {"kitchen/notes.pdf": "not a video", "kitchen/.DS_Store": "hidden file"}
    assert _omitted(preview.skipped) == skipped
    (table,) = preview.tables
    assert (table.delimiter, table.encoding, table.videos) == (";", "utf-8", 2)
    assert preview.problems == []


def test_table_that_is_selected_alone_finds_the_files() -> None:
    decomposed = unicodedata.normalize("NFD", "Küche/ei.mp4")
    preview = _preview(
        [decomposed, "day1/clip.mp4", "day2/clip.mp4", "solo.mp4"],
        {
            "captions.jsonl": '{"uri": "Küche/ei.mp4", "captions": ["an egg"]}\n'
            '{"uri": "clip.mp4", "captions": ["ambiguous"]}\n'
            '{"uri": "day2\\\\clip.mp4", "captions": ["second day"]}\n'
            '{"uri": "/data/old/solo.mp4", "captions": ["alone"]}\n'
            '{"uri": "other/solo.mp4", "captions": ["again"]}\n'
        },
        table="captions.jsonl",
    )
    captions = _captions(preview)
    assert captions[decomposed] == ["an egg"]
    assert captions["day2/clip.mp4"] == ["second day"]
    assert captions["solo.mp4"] == ["alone"]
    assert _omitted(preview.missing) == {
        "clip.mp4": "several files have this name",
        "other/solo.mp4": "another row names the same file",
    }
    assert [table.delimiter for table in preview.tables] == [None]


def test_sidecars_of_a_folder_and_names_as_captions() -> None:
    texts = {"in/a.txt": "first\nsecond\n", "in/b.srt": "1\n00:00:00,000 --> 00:00:01,000\nspoken\n"}
    paths = ["in/a.mp4", "in/b.mp4", "in/cat on a mat.mp4"]
    preview = _preview(paths, dict(texts))
    assert _captions(preview) == {"in/a.mp4": ["first", "second"], "in/b.mp4": [], "in/cat on a mat.mp4": []}
    assert ([cue.text for cue in preview.videos[1].transcript], preview.transcripts) == (["spoken"], 1)
    named = _preview(paths, dict(texts), captions_from_names=True)
    assert _captions(named)["in/cat on a mat.mp4"] == ["cat on a mat"]
    assert named.without_captions == ["in/b.mp4"]


@pytest.mark.parametrize(
    ("name", "content", "field", "message"),
    [
        ("m.jsonl", '{"uri": "a.mp4"}\n{"uri": "b.mp4", "captions": "x"\n', "m.jsonl:2", "JSON"),
        ("a.txt", "x" * (request_limits.MAX_CAPTION_CHARS + 1), "a.mp4.captions[0]", "characters"),
        ("t.csv", "file,caption\n" + "a.mp4,x\n" * 100, "t.csv", "The file has more than 100 lines."),
        # Texts that no response can contain.
        ("m.jsonl", r'{"uri": "a.mp4", "captions": ["\ud800"]}', "m.jsonl:1.captions", ""),
        ("m.jsonl", r'{"uri": "a.mp4", "place": "\ud800"}', "m.jsonl:1.metadata", ""),
        ("m.jsonl", '{"uri": "a.mp4", "place": ' + "[" * 400 + "]" * 400 + "}", "m.jsonl:1.metadata", ""),
    ],
)
def test_text_that_the_task_would_refuse_is_a_problem(
    name: str, content: str, field: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_limits, "MAX_TEXT_LINES", 100)
    preview = _preview(["a.mp4"], {name: content}, name="kitchen")
    (problem,) = preview.problems
    assert (problem.field, message in problem.message) == (field, True)
    assert preview.model_dump_json()


def test_table_in_another_encoding_is_offered() -> None:
    texts: dict[str, str | bytes] = {"captions.csv": "file,caption\na.mp4,Rührei\n".encode("cp1252")}
    preview = _preview(["a.mp4"], texts)
    (problem,) = preview.problems
    assert (preview.suggested_encoding, problem.field) == ("cp1252", "captions.csv:2")
    assert "cp1252" in problem.hint
    assert "--encoding" not in problem.hint
    read = _preview(["a.mp4"], texts, encoding="cp1252")
    assert (_captions(read), read.problems, read.suggested_encoding) == ({"a.mp4": ["Rührei"]}, [], None)
    assert _preview(["a.mp4"], {"captions.csv": "file,caption\n".encode("utf-16")}).suggested_encoding is None


def test_all_tables_are_read_unless_one_is_named() -> None:
    tables: dict[str, Any] = {f"{name}.csv": f"file,caption\na.mp4,{name}\n" for name in ("one", "two")}
    assert _captions(_preview(["a.mp4"], tables)) == {"a.mp4": ["one", "two"]}
    manifests: dict[str, Any] = {"x/manifest.csv": "file\na.mp4\n", "y/manifest.csv": "file\na.mp4\n"}
    assert [problem.field for problem in _preview(["a.mp4"], manifests).problems] == ["table"]
    assert _captions(_preview(["a.mp4"], tables, table="two.csv")) == {"a.mp4": ["two"]}
    assert [problem.field for problem in _preview(["a.mp4"], {}, table="gone.csv").problems] == ["table"]


@pytest.mark.parametrize("name", ["t.parquet", "T.XLSX", "notes.txt"])
def test_named_table_that_is_not_a_text_is_refused(name: str) -> None:
    """Parsers of typed tables do not bound the memory that a file takes: 20 kB become millions of rows."""
    (problem,) = _preview(["a.mp4"], {name: "file,caption\na.mp4,x\n"}, table=name).problems
    assert (problem.field, name in problem.message) == ("table", True)
    assert "CSV" in problem.hint


def test_files_that_cannot_be_uploaded_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_limits, "MAX_VIDEO_BYTES", 5000)
    files = {"a.mp4": 1000, "./a.mp4": 1000, "empty.mp4": 0, "large.mp4": 5001, "v.zip": 10, "t.xlsx": 10}
    request = {"files": [{"path": path, "size": size} for path, size in files.items()]}
    preview = preview_upload(PreviewRequest.model_validate(request))
    assert [video.uri for video in preview.videos] == ["a.mp4"]
    reasons = _omitted(preview.skipped)
    assert set(reasons) == {*files} - {"a.mp4"}
    assert (reasons["./a.mp4"], reasons["empty.mp4"]) == ("selected twice", "empty file")


def test_limits_are_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_limits, "MAX_PENDING_BYTES", 2500)
    assert [problem.field for problem in _preview(["a.mp4", "b.mp4", "c.mp4"]).problems] == ["files"]
    assert _preview(["a.mp4", "b.mp4"]).problems == []
    # Bytes of an upload that is continued are reserved already.
    pending = create_upload("a.mp4", "", 1000).id
    files = [{"path": path, "size": 1000} for path in ("a.mp4", "b.mp4", "c.mp4")]
    request = {"files": [{**files[0], "upload": pending}, files[1]]}
    assert preview_upload(PreviewRequest.model_validate(request)).problems == []
    monkeypatch.setattr(request_limits, "MAX_VIDEOS_PER_TASK", 1)
    assert "more than a task may have" in _preview(["a.mp4", "b.mp4"]).problems[0].message
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
    assert "room for 0.0 GiB" in _preview(["a.mp4"]).problems[0].message


def test_destination_is_checked() -> None:
    (settings().media_root / "a.mp4").write_bytes(b"x")
    spec = {"name": "taken", "videos": [{"uri": "a.mp4", "id": "used"}]}
    task = commands.create_task(TaskSpec.model_validate(spec)).task.id
    by_field = {
        "name": _preview(["a.mp4"], name="taken"),
        "method": _preview(["a.mp4"], method="unknown"),
        "into": _preview(["a.mp4"], into=task),
        "videos[0].id": _preview(["a.mp4"], {"captions.csv": "file,id,caption\na.mp4,used,x\n"}),
        "files": _preview(["a.txt"]),
    }
    for field, preview in by_field.items():
        assert [problem.field for problem in preview.problems] == [field]
    assert "queued" in by_field["into"].problems[0].message
    assert [problem.field for problem in _preview(["a.mp4"], into="tsk_0").problems] == ["into"]


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
