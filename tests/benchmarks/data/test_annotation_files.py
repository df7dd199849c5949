"""Reading of annotation files: complete files, streams, and files of another form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import BaseModel, TypeAdapter

import benchmarks.data.annotation_files
from benchmarks.data.annotation_files import DataFolder, read_annotations, stream_annotations
from benchmarks.errors import ProtocolError
from tests.image_text_files import write_jpeg


class Row(BaseModel):
    id: int
    words: list[str] = []


ROW, ROWS = TypeAdapter(Row), TypeAdapter(list[Row])


def test_stream_reads_the_same_rows_as_a_complete_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"id": n, "words": ["a, b", "[c]", "é\\", '"}'] * (n % 7)} for n in range(60)]
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(rows, indent=2))
    expected = read_annotations(path, ROWS)
    for size in (1, 2, 7, 64, 1 << 20):
        monkeypatch.setattr(benchmarks.data.annotation_files, "_CHUNK", size)
        assert list(stream_annotations(path, ROW)) == expected


def test_numbers_are_not_cut_at_the_end_of_a_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "numbers.json"
    path.write_text(" [12345 ,678, 9]\n")
    for size in (2, 3, 4, 5):
        monkeypatch.setattr(benchmarks.data.annotation_files, "_CHUNK", size)
        assert list(stream_annotations(path, TypeAdapter(int))) == [12345, 678, 9]
    path.write_text("[]")
    assert list(stream_annotations(path, TypeAdapter(int))) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it does not begin with a bracket"),
        (b'{"id": 1}', "it does not begin with a bracket"),
        (b'[{"id": 1}', "is not a JSON list"),
        (b'[{"id": 1} {"id": 2}]', "follows without a comma"),
        (b'[{"id": 1}, {"id": }]', "is not a JSON list"),
        (b'[{"id": 1}, {"id": "x"}]', r"1\.id: "),
        (b'[{"id": 1, "words": ["a", 3]}]', r"0\.words\.1: "),
        (b"[1]", r"rows\.json: 0: "),
        (b'[{"id": "\xff"}]', "is not a JSON list"),
        (b"[" * 100_000, "is not a JSON list"),
    ],
)
def test_stream_of_another_form_raises_with_file_and_field(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "rows.json"
    path.write_bytes(content)
    with pytest.raises(ProtocolError, match=rf"rows\.json.*{message}" if "rows" not in message else message):
        list(stream_annotations(path, ROW))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"rows\.json: the file: Invalid JSON"),
        (b"[1]", r"rows\.json: 0: "),
        (b'[{"id": 1}, {}]', r"rows\.json: 1\.id: Field required; download"),
        (b"\xff\xfe", r"rows\.json: the file: Invalid JSON"),
        (b"[" * 100_000, r"rows\.json: the file: Invalid JSON"),
    ],
)
def test_file_of_another_form_raises_with_file_and_field(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "rows.json"
    path.write_bytes(content)
    with pytest.raises(ProtocolError, match=message):
        read_annotations(path, ROWS)


def test_unreadable_file_raises_with_its_name(tmp_path: Path) -> None:
    for read in (lambda: read_annotations(tmp_path, ROWS), lambda: list(stream_annotations(tmp_path, ROW))):
        with pytest.raises(ProtocolError, match=rf"{tmp_path.name} cannot be read"):
            read()


def test_folder_finds_files_at_any_depth_by_name_only(tmp_path: Path) -> None:
    inside = write_jpeg(tmp_path / "data" / "a" / "b" / "1.jpg")
    write_jpeg(tmp_path / "2.jpg")
    folder = DataFolder(tmp_path / "data", "some files")
    assert folder.images(["1.jpg"]) == {"1.jpg": inside}
    with pytest.raises(
        ProtocolError, match=r"lacks 2 of 3 images: \.\./2\.jpg, 3\.jpg\. It must contain.*some files"
    ):
        folder.images(["1.jpg", "../2.jpg", "3.jpg"])
    with pytest.raises(ProtocolError, match=r"lacks notes\.json\. It must contain.*some files"):
        folder.annotations("notes.json")


def test_missing_folder_raises_with_the_option(tmp_path: Path) -> None:
    with pytest.raises(ProtocolError, match=r"--videos.*some files"):
        DataFolder(None, "some files")
    with pytest.raises(ProtocolError, match=r"nowhere is not a folder.*--videos"):
        DataFolder(tmp_path / "nowhere", "some files")
