"""Domains of a folder and their splits."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from benchmarks.data.clip_folders import read_clip_domains, select_held_out
from benchmarks.errors import ProtocolError


def write_domain(folder: Path, rows: list[dict[str, object]]) -> None:
    folder.mkdir(parents=True)
    for row in rows:
        (folder / str(row["uri"])).write_bytes(b"")
    (folder / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_fifth_of_the_clips_is_held_out_by_hash() -> None:
    uris = [f"{number}.mp4" for number in range(23)]
    held_out = select_held_out(uris)
    assert len(held_out) == 4
    assert held_out == set(sorted(uris, key=lambda uri: hashlib.sha1(uri.encode()).hexdigest())[:4])
    assert len(select_held_out(uris[:5])) == 2


def test_given_splits_are_kept(tmp_path: Path) -> None:
    rows = [
        {"uri": f"{n}.mp4", "captions": ["a b"], "split": "test" if n == 3 else "train"} for n in range(9)
    ]
    write_domain(tmp_path / "one", rows)
    write_domain(tmp_path / "two", [{key: row[key] for key in ("uri", "captions")} for row in rows])
    one, two = read_clip_domains(tmp_path)
    assert [video.id for video in one.videos if video.split == "test"] == ["3.mp4"]
    assert {v.id for v in two.videos if v.split == "test"} == select_held_out([str(r["uri"]) for r in rows])
    assert {video.split for video in two.videos} == {"train", "test"}


def test_errors_name_the_manifest(tmp_path: Path) -> None:
    with pytest.raises(ProtocolError, match=r"no subfolder of .* has a manifest.jsonl or manifest.csv"):
        read_clip_domains(tmp_path)
    write_domain(tmp_path / "one", [{"uri": "a.mp4", "captions": ["a"], "split": "train"}])
    with pytest.raises(ProtocolError, match=r"one/manifest.jsonl has no test clip with a caption"):
        read_clip_domains(tmp_path)
    write_domain(tmp_path / "a-small", [{"uri": f"{n}.mp4", "captions": ["a"]} for n in range(2)])
    with pytest.raises(ProtocolError, match=r"a-small/manifest.jsonl has no training clip with a caption"):
        read_clip_domains(tmp_path)
