"""Caption formats of the field: recognized by their content, in folders, archives and the upload form alike."""

from __future__ import annotations

import io
import json
import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cinestrata_schemas.tasks import LocalFile, LocalText, PreviewRequest, VideoSpec
from service.core import request_limits
from service.core.errors import InvalidInput
from service.core.settings import settings
from service.tasks.archive_unpacking import unpack_archive
from service.tasks.manifests.caption_formats import FORMATS
from service.tasks.manifests.caption_tables import CaptionTables
from service.tasks.manifests.folder_videos import list_folder_videos
from service.tasks.upload_preview import preview_upload
from tests.caption_files import CASES, CAT, DENSE, DENSE_VIDEO, DOG, NAMES, content_of
from tests.packed_files import pack_tar, pack_zip, write_files

pytestmark = pytest.mark.usefixtures("sqlite_catalog")


def _shown(videos: list[VideoSpec], prefix: str = "") -> dict[str, dict[str, Any]]:
    return {
        video.uri.removeprefix(prefix): fields
        for video in videos
        if (fields := video.model_dump(exclude_defaults=True, exclude={"uri"}))
    }


@pytest.mark.parametrize("name", CASES)
def test_format_is_read_everywhere(name: str, tmp_path: Path) -> None:
    format_name, content, expected = CASES[name]
    files = dict.fromkeys(NAMES, b"video") | {name: content_of(content)}
    folder = write_files(tmp_path / "data", files)
    listing = list_folder_videos(folder)
    assert listing.formats == {name: format_name}
    assert _shown(list(listing.videos)) == expected
    assert {video.uri for video in listing.videos} == {*NAMES}
    assert _shown(list(list_folder_videos(folder / name).videos)) == expected

    unpacked = unpack_archive(pack_tar(files), "data.tar", "tsk_1")
    assert _shown(unpacked, "upload://tsk_1/") == expected

    request = PreviewRequest(
        name="pets",
        files=[LocalFile(path=f"data/{path}", size=len(raw)) for path, raw in files.items()],
        texts=[LocalText.model_construct(path=f"data/{name}", content=files[name])],
    )
    preview = preview_upload(request)
    assert (preview.problems, [table.format for table in preview.tables]) == ([], [format_name])
    assert _shown(preview.videos, "data/") == expected


@pytest.mark.parametrize("name", CASES)
def test_format_is_recognized_under_any_name_and_in_utf16(name: str, tmp_path: Path) -> None:
    format_name, content, expected = CASES[name]
    files = dict.fromkeys(NAMES, b"video") | {"x/y.json": content_of(content).decode().encode("utf-16")}
    if name.endswith("csv") or name in ("metadata.jsonl", "list.json", "one.json"):
        files["y.json"] = files.pop("x/y.json")  # their paths are relative to the table
    listing = list_folder_videos(write_files(tmp_path, files))
    assert [*listing.formats.values()] == [format_name]
    assert _shown(list(listing.videos)) == expected


def test_every_format_has_a_case() -> None:
    assert {each.name for each in FORMATS if each.read} <= {case[0] for case in CASES.values()}


def test_tables_of_several_folders_are_merged(tmp_path: Path) -> None:
    files = {
        "train/a.mp4": b"A",
        "train/metadata.csv": b"file_name,text\na.mp4,a dog\n",
        "test/a.mp4": b"B",
        "test/metadata.csv": b"file_name,text\na.mp4,a cat\n",
        "val_1.json": json.dumps({"test/a": DENSE}).encode(),
        "val_2.json": json.dumps({"test/a": DENSE}).encode(),
        "dataset_info.json": b'{"features": {}, "splits": {}}',
    }
    listing = list_folder_videos(write_files(tmp_path, files))
    assert _shown(list(listing.videos)) == {
        "train/a.mp4": DOG,
        "test/a.mp4": {"captions": ["a cat"]} | DENSE_VIDEO,
    }
    assert [*listing.formats] == ["test/metadata.csv", "train/metadata.csv", "val_1.json", "val_2.json"]
    (tmp_path / "b.csv").write_text("file,split\ntest/a.mp4,train\n")
    (tmp_path / "c.csv").write_text("file,split\ntest/a.mp4,test\n")
    message = r"c\.csv:2: 'split' of 'test/a\.mp4' differs from its row at b\.csv:2"
    with pytest.raises(InvalidInput, match=message):
        list_folder_videos(tmp_path).require_all()


def test_shard_of_webdataset_is_read() -> None:
    """Keys with a video, a text and JSON; the text of the JSON is often the same."""
    files = {
        "00000/000.mp4": b"A",
        "00000/000.txt": b"a dog",
        "00000/000.json": b'{"caption": "a dog", "key": "000", "width": 640, "exif": {"x": 1}, "error": null}',
        "00000/001.mp4": b"B",
        "00000/001.json": b'{"captions": ["a cat", "it sleeps"]}',
    }
    videos = unpack_archive(pack_tar(files), "shard-00000.tar", "tsk_1")
    assert _shown(videos, "upload://tsk_1/00000/") == {
        "000.mp4": DOG | {"metadata": {"key": "000", "width": 640}},
        "001.mp4": CAT,
    }


BAD_DOCUMENTS: list[tuple[Any, list[str]]] = [
    ({"items": [{"vid": "a"}]}, ["x.json: The keys 'items' match no known", "nearest format is"]),
    ({"video": [], "sentence": []}, ["'sentence', 'video'", "MSR-VTT, with 'sentences' and 'videos'"]),
    (
        [{"clip": "a.mp4", "cap": "x"}],
        ["keys 'cap', 'clip' match", "nearest format is videos, with 'caption' and 'file'"],
    ),
    ({"id_1": {"clip": "a", "cap": "x"}, "id_2": {}}, ["The keys 'cap', 'clip' match no"]),
    (["b.mp4"], ["x.json: The file has no objects for videos"]),
    ("", ["x.json: It lists no videos"]),
    ({"videos": [], "sentences": []}, ["x.json: It lists no videos"]),
    ({"videos": 1, "sentences": []}, ["x.json.videos: The value is not a list"]),
    ({"videos": [[]], "sentences": []}, ["x.json:videos[0]: The value is not an object"]),
    ({"videos": [{"video_id": None}], "sentences": []}, ["x.json:videos[0].video_id: The ID is neither"]),
    ({"videos": [{"video_id": "gone"}], "sentences": []}, ["None of the videos", "'gone' (MSR-VTT)"]),
    ({"videos": [{"video_id": "../a"}], "sentences": []}, ["x.json:videos[0]: '../a' is outside"]),
    ({"a": {"timestamps": [[0, 1]], "sentences": []}}, ["x.json:a.timestamps: There are 1 times and 0"]),
    ({"a": {"timestamps": [[-1, 1]], "sentences": ["x"]}}, ["x.json:a.timestamps[0]: -1 and 1 are no"]),
    ('{"a": {"timestamps": [[NaN, 1]], "sentences": ["x"]}}', ["x.json:a.timestamps[0]", "not valid times"]),
    ({"a": {"timestamps": [[0, 10**400]], "sentences": ["x"]}}, ["not valid times in a video"]),
    ('{"a": {"timestamps": [[0, 1e999]], "sentences": ["x"]}}', ["inf are not valid times"]),
    ('{"a": {"timestamps": [["0", "1"]], "sentences": ["x"]}}', ["not a list of start and end"]),
    ({"images": [], "annotations": [{"bbox": [], "id": 1}]}, ["[0]: It has no 'caption'; its keys"]),
    (
        {"images": [], "annotations": [{"image_id": 1, "caption": "x"}]},
        ["None of the videos it names is in the folder, for example 'images.id=1'"],
    ),
    ([{"data": {"text": "x"}, "annotations": []}], ["x.json:[0].data: The task has no video field"]),
    ('{"a": 1,\n"a": 2}', ["x.json: An object has the key 'a' twice"]),
    ('{"a": 1,\n"b"', ["x.json:2: The file is not JSON"]),
    ("[" * 100_000, ["x.json: The file is nested too deeply"]),
    ('{"videos":' * 100_000, ["x.json: The file is nested too deeply"]),
    (b'[{"video": "a.mp4",\n"text": "K\xfcche"}]', ["x.json:2: Byte 11 of the line is not UTF-8"]),
]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("x.jsonl", '{"clip": "a", "cap": "x"}\n', ["The keys 'cap', 'clip' match no"]),
        ("x.csv", "clip;words\nA.mov;x\n", ["x.csv:1: There is no column", "the columns are 'clip;words'"]),
        ("x.csv", "clip;caption\n1;x\n", ["x.csv:1: There is no column"]),
        ("captions.csv", "clip;words\n1;x\n", ["captions.csv:1: There is no column"]),
        ("x.csv", "\n\n", ["x.csv: It lists no videos"]),
        ("x.csv", "file,caption\n", ["x.csv: It lists no videos"]),
        ("x.parquet", b"PAR1", ["x.parquet"]),
        *(("x.json", content, expected) for content, expected in BAD_DOCUMENTS),
    ],
)
def test_table_that_is_not_understood_is_named(
    name: str, content: Any, expected: list[str], tmp_path: Path
) -> None:
    raw = content if isinstance(content, bytes) else content_of(content)
    files = {"a.mp4": b"A", "a.txt": b"a dog", name: raw}
    listing = list_folder_videos(write_files(tmp_path, files))
    assert _shown(list(listing.videos)) == {"a.mp4": DOG}
    with pytest.raises(InvalidInput) as caught:
        listing.require_all()
    for text in expected:
        assert text in str(caught.value)
    with pytest.raises(InvalidInput):
        unpack_archive(pack_zip(files), "a.zip", "tsk_1")
    assert not (settings().uploads_dir / "tsk_1").exists()


class _Endless(io.RawIOBase):
    """A file of 1 GB that consists of one part, and remembers how much of it was read."""

    def __init__(self, head: bytes, part: bytes) -> None:
        self._parts = self._generate(head, part)
        self._rest = b""
        self.sent = 0

    def _generate(self, head: bytes, part: bytes) -> Iterator[bytes]:
        yield head
        for _ in range(2**30 // len(part)):
            yield part

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._rest = self._rest or next(self._parts, b"")
        part, self._rest = self._rest[: len(buffer)], self._rest[len(buffer) :]
        buffer[: len(part)] = part
        self.sent += len(part)
        return len(part)


@pytest.mark.parametrize(
    ("head", "part", "expected"),
    [
        (b"file,text\n", b"a.mp4," + b"x" * 8000 + b"\n", "The file is larger than"),
        (b"video_id,text\n", b"gone," + b"x" * 8000 + b"\n", "The file is larger than"),
        (b"[", b'{"video_id": "gone", "text": "' + b"x" * 8000 + b'"},', "The JSON document is larger than"),
        (b"[", b"[]," * 2000, "The JSON document is larger than"),
        (b'{"file": "', b"x" * 8192, "The JSON document is larger than"),
        (b"\xff\xfe" + "[".encode("utf-16-le"), "[],".encode("utf-16-le") * 2000, "The file is larger than"),
    ],
)
def test_table_of_a_gigabyte_is_refused_before_it_is_read(
    head: bytes, part: bytes, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 2**21
    monkeypatch.setattr(request_limits, "MAX_TABLE_BYTES", limit)
    monkeypatch.setattr(request_limits, "MAX_DOCUMENT_BYTES", limit)
    source = _Endless(head, part)
    tables = CaptionTables(lambda: ["a.mp4"])
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInput, match=expected):
            tables.add("x.json", io.BufferedReader(source))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert source.sent < 8 * limit
    assert peak < 32 * limit


def test_values_of_a_document_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes up to 72 bytes of memory, and 3 bytes of the file."""
    monkeypatch.setattr(request_limits, "MAX_DOCUMENT_VALUES", 1000)
    tables = CaptionTables(lambda: ["a.mp4"])
    with pytest.raises(InvalidInput, match="has more than 1000 values"):
        tables.add("x.json", io.BytesIO(b"[" + b"[]," * 1000 + b"[]]"))


def test_many_rows_of_a_video_after_many_blank_lines_are_merged_without_copies(tmp_path: Path) -> None:
    rows = (
        {"file_name": "a.mp4", "text": "a cat", "transcript": [{"start": n, "end": n + 1, "text": "x"}]}
        for n in range(15_000)
    )
    blank = b"\n" * 400_000
    write_files(tmp_path, {"a.mp4": b"video", "t.jsonl": blank + "\n".join(map(json.dumps, rows)).encode()})
    (video,) = list_folder_videos(tmp_path).videos
    assert (video.captions, len(video.transcript)) == (["a cat"], 15_000)


def test_tables_that_are_no_files_are_left_out(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.mp4": b"video"})
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "lost.json").symlink_to(tmp_path / "nowhere")
    assert [video.uri for video in list_folder_videos(tmp_path).videos] == ["a.mp4"]
