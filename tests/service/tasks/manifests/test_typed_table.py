"""Parquet files and spreadsheets as manifests of commands, with pandas and without. The service reads none."""

from __future__ import annotations

import importlib
import io
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from cli.commands.video_sources import read_videos
from service.core.errors import InvalidInput
from service.tasks.manifests.folder_videos import list_folder_videos
from tests.manifest_videos import parse_manifest


@pytest.mark.parametrize(
    ("name", "packages"), [("clips.parquet", "pandas pyarrow"), ("Clips.XLSX", "pandas openpyxl")]
)
def test_missing_package_is_named(name: str, packages: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(module: str) -> Any:
        raise ImportError(module)

    monkeypatch.setattr(importlib, "import_module", refuse)
    with pytest.raises(InvalidInput) as caught:
        parse_manifest(io.BytesIO(b""), name, typed_tables=True)
    assert f"pip install {packages}" in str(caught.value)


@pytest.mark.parametrize("name", ["manifest.parquet", "Clips.XLSX"])
def test_service_does_not_read_typed_tables(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib, "import_module", lambda module: _Pandas({"file": ["a.mp4"]}))
    (tmp_path / name).touch()
    for read in (lambda: parse_manifest(io.BytesIO(), name), lambda: list_folder_videos(tmp_path / name)):
        with pytest.raises(InvalidInput, match=f"doesn't read '{name}'.*Convert it to CSV or JSONL"):
            read()
    assert [video.uri for video in read_videos(tmp_path / name)[1]] == ["a.mp4"]  # a command does


class _Frame:
    """The part of a data frame that the parser uses."""

    def __init__(self, columns: dict[str, list[Any]]) -> None:
        self.columns = list(columns)
        self.iloc = self
        self._values = list(columns.values())

    def __getitem__(self, position: tuple[slice, int]) -> _Frame:
        return _Frame({"": self._values[position[1]]})

    def tolist(self) -> list[Any]:
        return self._values[0]


class _Pandas:
    def __init__(self, columns: dict[str, list[Any]]) -> None:
        self._columns = columns

    def read_excel(self, stream: object, dtype: type = object) -> _Frame:
        return _Frame(self._columns)

    read_parquet = read_excel


def read_sheet(monkeypatch: pytest.MonkeyPatch, **columns: list[Any]) -> Any:
    monkeypatch.setattr(importlib, "import_module", lambda module: _Pandas(columns))
    return parse_manifest(io.BytesIO(b""), "clips.xlsx", typed_tables=True)


def test_typed_cells_are_kept_as_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = read_sheet(
        monkeypatch,
        File=["a.mp4", "b.mp4"],
        caption=["one|two", float("nan")],
        id=[17, None],
        camera=[3, float("nan")],
        day=[datetime(2026, 1, 2), None],
    )
    assert (first.id, first.captions) == ("17", ["one", "two"])
    assert first.metadata == {"camera": 3, "day": "2026-01-02T00:00:00"}
    assert (second.id, second.captions, second.metadata) == (None, [], None)


def test_bad_row_is_named_as_in_the_sheet(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput, match=r"clips\.xlsx:3\.split"):
        read_sheet(monkeypatch, file=["a.mp4", "b.mp4"], split=["train", "none"])


def test_parquet_is_read_with_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    content = io.BytesIO()
    pandas.DataFrame(
        {"video": ["a.mp4", "b.mp4"], "captions": [["one", "two"], []], "camera": [3, None]}
    ).to_parquet(content)
    content.seek(0)
    first, second = parse_manifest(content, "clips.parquet", typed_tables=True)
    assert (first.uri, first.captions, first.metadata) == ("a.mp4", ["one", "two"], {"camera": 3.0})
    assert (second.captions, second.metadata) == ([], None)
    with pytest.raises(InvalidInput, match="cannot be read"):
        parse_manifest(io.BytesIO(b"no table"), "clips.parquet", typed_tables=True)
