"""Export a library as caption tables, which an ingest reads as the same videos."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from cli.commands.video_sources import read_videos
from index.files.manifest_format import Manifest
from service.catalog.database import session_scope
from service.catalog.tables import Video
from service.catalog.video_texts import store_texts
from service.core.settings import Settings
from tests.cli.invocation import run

_LONG = [f"{number} " + "word|" * 390 for number in range(64)]  # 125,000 characters
_CUES = [(float(number), number + 1.5, "said, “loudly”\u2028" + "é" * 900) for number in range(500)]
_VIDEOS: list[dict[str, Any]] = [
    {
        "captions": ["a dog"],
        "split": "train",
        "extra": {"camera": 2, "tags": ["a", "b"], "deep": {"x": [None, 1.5]}},
    },
    {"captions": ["a | b", '["c"]', '<b>"d", e</b>', "=1+1"], "split": "test", "extra": {"metadata": "text"}},
    {"captions": ["{x}"], "split": "val", "extra": {}},
    {"captions": [], "split": "appended", "extra": {"text": "not a caption", "file": "x"}},
    {"captions": _LONG, "split": None, "extra": {}, "transcript": _CUES},
]


@pytest.fixture
def library(folder: Settings, publish_task: Callable[..., Manifest]) -> Path:
    """The media root of a library with the domain ``a``, whose files are in the folder ``street``."""
    publish_task("a", len(_VIDEOS))
    with session_scope(write=True) as session:
        for number, (row, fields) in enumerate(
            zip(session.scalars(select(Video).order_by(Video.vector_id)), _VIDEOS, strict=True)
        ):
            content = b"video" * (number + 1)
            path = folder.media_root / "street" / f"{'deep/' * (number == 1)}{number}.mp4"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            row.uri, row.status = str(path.relative_to(folder.media_root)), "accepted"
            row.bytes, row.content_hash = len(content), hashlib.sha256(content).hexdigest()
            row.captions, row.effective_split = fields["captions"], fields["split"]
            row.extra = fields["extra"]
            store_texts(session, {row.vector_id: {"speech": fields.get("transcript", [])}})
    return folder.media_root


def _expected() -> dict[str, dict[str, Any]]:
    cues = [
        {"start": start, "end": end, "text": text, "source": "speech", "id": None}
        for start, end, text in _CUES
    ]
    return {
        f"{'deep/' * (number == 1)}{number}.mp4": {
            "captions": fields["captions"],
            "split": fields["split"] if fields["split"] != "appended" else None,
            "metadata": fields["extra"] or None,
            "transcript": cues if "transcript" in fields else [],
        }
        for number, fields in enumerate(_VIDEOS)
    }


@pytest.mark.parametrize("table_format", ["jsonl", "csv"])
def test_exported_tables_have_the_same_videos(table_format: str, library: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run("export", out, "--format", table_format, "--videos", "--json")
    assert result.exit_code == 0, result.output
    table = out / "tsk_a" / f"metadata.{table_format}"
    assert json.loads(result.output) == [{"domain": "a", "table": str(table), "videos": 5}]
    for path in (table.parent, table):
        listing = read_videos(path)
        described = {
            video.uri: video.model_dump(exclude={"uri", "id", "replaces"}) for video in listing.videos
        }
        assert described == _expected()
        assert all(
            (listing.base / uri).read_bytes() == (library / "street" / uri).read_bytes() for uri in described
        )
    assert not [path for path in out.rglob("*") if path.name.startswith(".")]


def test_table_beside_the_files_is_written_once(library: Path) -> None:
    """Paths are relative to the videos' folder, so the table can be written there."""
    result = run("export", library / "street", "--task", "a")
    assert result.exit_code == 0, result.output
    assert {video.uri for video in read_videos(library / "street").videos} == {*_expected()}
    result = run("export", library / "street", "--task", "a")
    assert result.exit_code == 1
    assert "metadata.jsonl exists. Nothing was written." in " ".join(result.output.split())


@pytest.mark.parametrize("mine", [b"mine", b"mine!" * 3])
def test_file_that_is_another_is_kept(library: Path, tmp_path: Path, mine: bytes) -> None:
    (tmp_path / "0.mp4").write_bytes(b"video")  # as an interrupted export left it
    (tmp_path / "2.mp4").write_bytes(mine)
    result = run("export", tmp_path, "--task", "a", "--videos")
    assert result.exit_code == 1
    assert "2.mp4 exists, and is another file" in " ".join(result.output.split())
    assert (tmp_path / "2.mp4").read_bytes() == mine
    assert not (tmp_path / "metadata.jsonl").exists()


def test_deleted_domain_is_not_exported(
    library: Path, publish_task: Callable[..., Manifest], tmp_path: Path
) -> None:
    publish_task("b", 2)
    assert run("delete", "--task", "b", "--yes").exit_code == 0
    result = run("export", tmp_path / "out", "--json")
    assert result.exit_code == 0, result.output
    assert [each["domain"] for each in json.loads(result.output)] == ["a"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["tsk_a"]
