"""The user's own folders as demo videos: captions, errors, and the choice of sample searches."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cli.demo.demo_videos import OwnVideos
from tests.cli.invocation import run


def _domain(folder: Path, captions: str | None, videos: int = 3) -> Path:
    folder.mkdir(parents=True)
    for number in range(videos):
        (folder / f"{number}.mp4").write_bytes(b"video")
    if captions is not None:
        (folder / "captions.csv").write_text(captions)
    return folder


def _captions(count: int) -> str:
    return "file,caption\n" + "".join(f"{number}.mp4,bird number {number}\n" for number in range(count))


def test_captions_are_read_from_csv_and_jsonl(tmp_path: Path) -> None:
    _domain(tmp_path / "birds", _captions(3))
    fish = _domain(tmp_path / "fish at home", None)
    lines = [{"uri": f"{n}.mp4", "captions": ["a fish"], "id": f"fish{n}", "split": "test"} for n in range(2)]
    (fish / "manifest.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / ".hidden").mkdir()

    own_videos = OwnVideos(tmp_path)
    assert list(own_videos.videos) == ["birds", "fish at home"]
    assert [video.id for video in own_videos.videos["birds"]] == ["birds-00001", "birds-00002", "birds-00003"]
    assert next(video.captions for video in own_videos.videos["birds"]) == ["bird number 0"]
    assert [(video.id, video.split) for video in own_videos.videos["fish at home"]] == [
        ("fish0", "test"),
        ("fish1", "test"),
    ]


def test_folder_with_captions_is_one_domain(tmp_path: Path) -> None:
    _domain(tmp_path / "birds", _captions(2))
    assert list(OwnVideos(tmp_path / "birds").videos) == ["birds"]


@pytest.mark.parametrize(
    ("captions", "problem", "hint"),
    [
        (None, "birds has no captions", "captions.csv (columns file and caption"),
        (_captions(1), "captions.csv has 1 video with captions", "at least 2"),
        ("file,caption\n0.mp4,\n1.mp4,\n", "captions.csv has 0 videos with captions", "at least 2"),
        (_captions(4), "1 file does not exist", "relative to"),
        ("name,caption\n0.mp4,bird\n", "no column 'file'", ""),
    ],
)
def test_unusable_domain_is_named_before_anything_starts(
    tmp_path: Path, captions: str | None, problem: str, hint: str
) -> None:
    _domain(tmp_path / "birds", captions)
    outcome = run("demo", "--videos", str(tmp_path), "--data", str(tmp_path / "data"))
    assert outcome.exit_code == (2 if "column" in problem else 1)  # 2: a field of a table is invalid
    assert problem in outcome.output
    assert hint in outcome.output
    assert not (tmp_path / "data").exists()


def test_missing_or_empty_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for name, problem in (
        ("missing", "does not exist"),
        ("file", "is not a folder"),
        ("empty", "has neither captions nor subfolders"),
    ):
        outcome = run("demo", "--videos", str(tmp_path / name))
        assert outcome.exit_code == 1
        assert f"{tmp_path / name} {problem}" in outcome.output


def test_folders_with_one_domain_name_are_refused(tmp_path: Path) -> None:
    for name in ("Küche", "küche"):
        _domain(tmp_path / name, _captions(2))
    outcome = run("demo", "--videos", str(tmp_path))
    assert outcome.exit_code == 1
    assert "both give the domain name 'küche'" in " ".join(outcome.output.split())


def test_task_is_created_from_an_archive(tmp_path: Path) -> None:
    _domain(tmp_path / "birds", _captions(2))
    sent: list[Any] = []

    def create(archive: Any, name: str, *, filename: str) -> str:
        with tarfile.open(fileobj=io.BytesIO(archive.read())) as tar:
            sent.append((filename, name, tar.getnames()))
        return "task"

    client: Any = SimpleNamespace(create_task_from_archive=create)
    OwnVideos(tmp_path).create_task(client, "birds")
    names = ["manifest.jsonl", "0.mp4", "1.mp4", "2.mp4"]  # also the video that the table does not name
    assert sent == [("birds.tar", "birds", names)]


def test_sample_searches_of_own_videos_are_a_word_a_sentence_and_letters(tmp_path: Path) -> None:
    _domain(tmp_path / "birds", "file,caption\n0.mp4,an owl sleeps\n1.mp4,an owl sleeps\n2.mp4,a blackbird\n")
    _domain(tmp_path / "cars", _captions(3))
    held_out = {"birds-00001", "birds-00002", "cars-00002"}
    client: Any = SimpleNamespace(
        get_video=lambda name: SimpleNamespace(effective_split="test" if name in held_out else "train")
    )
    word, sentence, letters = OwnVideos(tmp_path).sample_searches(client)
    # The longest word of several videos; only one caption contains "blackbird".
    assert word == ("word", "sleeps", {"birds-00001", "birds-00002"})
    # The caption of two birds describes no single video.
    assert sentence == ("sentence", "bird number 1", {"cars-00002"})
    assert letters.kind == "nothing"
    assert not letters.videos
